package checks

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
)

func proxyChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1201", Severity: findings.Blocking, Run: checkReplaced,
			Claim: "kube-proxy, and not a replacement, programs Services",
			Why: "bridges and the proof that nodes know them were tried with kube-proxy; what replaces it may treat an address of two " +
				"Services, or externalTrafficPolicy Local, in another way",
			Fix: "this version moves Services of clusters with kube-proxy only; go back to kube-proxy for the time of the migration, or wait",
		},
		{
			Code: "RP1202", Severity: findings.Blocking, Run: checkProxyMode,
			Claim: "kube-proxy runs in mode iptables or nftables on every node",
			Why: "in mode ipvs every address of a Service is bound to an interface of the node, and what two Services with one address do " +
				"there is not tried",
			Fix: "change kube-proxy's mode to nftables or iptables and restart it on every node, one node after another",
		},
		{
			Code: "RP1203", Severity: findings.Blocking, Run: checkDetectLocal,
			Claim: "kube-proxy recognises pod traffic (clusterCIDR or detectLocalMode is set)",
			Why: "bridges have externalTrafficPolicy Local, which keeps the addresses of clients; kube-proxy exempts pods from it only if it " +
				"knows them, else it drops their requests to old addresses on nodes without an endpoint",
			Fix: "set clusterCIDR in kube-proxy's configuration to the range of all pods, or detectLocalMode: NodeCIDR where nodes have pod " +
				"ranges, and restart kube-proxy",
		},
		{
			Code: "RP1204", Severity: findings.Warning, Run: checkProxyKnown,
			Claim: "kube-proxy's configuration is readable",
			Why:   "its mode and its knowledge of pods decide whether bridges work; k3s and some hosted clusters keep it where no API shows it",
			Fix: "look at it on the nodes: the mode must be iptables or nftables, and clusterCIDR or another detectLocalMode must be set, " +
				"else clients lose requests to old addresses",
		},
	}
}

func (in Input) bridging() bool { return len(in.Inventory.Moves) > 0 }

func checkReplaced(in Input) []findings.Result {
	if !in.bridging() {
		return nil
	}
	out := in.unread("configmaps", "daemonsets", "pods", "felixconfigurations")
	for _, r := range in.Found().Replacements {
		out = append(out, findings.Failed(r.Object, "%s does the work of kube-proxy, as %s shows", r.By, r.Object))
	}
	return out
}

// seen are the configurations of kube-proxy that can be judged; broken gets unreadable ones.
func (in Input) seen(broken func(inventory.Proxy)) []inventory.Proxy {
	var all []inventory.Proxy
	if !in.bridging() {
		return nil
	}
	for _, p := range in.Found().Proxies {
		switch {
		case p.Hidden:
		case p.Problem != "":
			broken(p)
		default:
			all = append(all, p)
		}
	}
	return all
}

// checkProxyMode follows k8s.io/kube-proxy config/v1alpha1: no mode is iptables on Linux.
func checkProxyMode(in Input) []findings.Result {
	var out []findings.Result
	for _, p := range in.seen(func(inventory.Proxy) {}) {
		if !slices.Contains([]string{"", "iptables", "nftables"}, p.Mode) {
			out = append(out, findings.Failed(p.Object, "kube-proxy runs in mode %s, says %s", p.Mode, p.Object))
		}
	}
	return out
}

// checkDetectLocal follows getLocalDetectors in k8s.io/kubernetes
// cmd/kube-proxy/app/server_linux.go.
func checkDetectLocal(in Input) []findings.Result {
	var out []findings.Result
	for _, p := range in.seen(func(inventory.Proxy) {}) {
		switch p.DetectLocalMode {
		case "", "ClusterCIDR":
			if !in.ofFamily(p.ClusterCIDRs) {
				out = append(out, findings.Failed(p.Object, "%s names no clusterCIDR of the target's family", p.Object))
			}
		case "NodeCIDR":
			out = append(out, in.withoutPodRange()...)
		case "BridgeInterface", "InterfaceNamePrefix":
		default:
			out = append(out,
				findings.Failed(p.Object, "kube-proxy does not know the detectLocalMode %q of %s", p.DetectLocalMode, p.Object))
		}
	}
	return out
}

func (in Input) ofFamily(all []netip.Prefix) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool {
		return len(in.spec().To) == 0 || p.Addr().Is4() == in.spec().To[0].Addr().Is4()
	})
}

func (in Input) withoutPodRange() []findings.Result {
	var out []findings.Result
	for i := range in.Snapshot.Nodes {
		n := &in.Snapshot.Nodes[i]
		if !in.ofFamily(podRanges(n)) {
			out = append(out, findings.Failed("Node "+n.Name,
				"kube-proxy's detectLocalMode is NodeCIDR, and node %s has no pod range of the target's family", n.Name))
		}
	}
	return out
}

func podRanges(n *corev1.Node) []netip.Prefix {
	var ranges []netip.Prefix
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			ranges = append(ranges, p)
		}
	}
	return ranges
}

func checkProxyKnown(in Input) []findings.Result {
	if !in.bridging() || len(in.Found().Replacements) > 0 {
		return nil
	}
	out := in.unread("configmaps", "daemonsets", "pods")
	seen := in.seen(func(p inventory.Proxy) {
		out = append(out, findings.NotKnown(p.Object, "kube-proxy's configuration in %s cannot be read: %s", p.Object, p.Problem))
	})
	if len(seen) == 0 && len(out) == 0 {
		out = append(out,
			findings.NotKnown("", "neither a ConfigMap in kube-system nor the command line of a pod tells how kube-proxy is configured"))
	}
	return out
}
