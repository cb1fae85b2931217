package checks

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

func proxyChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1201", Severity: findings.Blocking, Run: checkReplaced,
			Claim: "kube-proxy programs Services, or Cilium in its place those that keep their old address themselves",
			Why: "bridges and the proof that nodes know them were tried with kube-proxy; what replaces it may treat an address of two " +
				"Services, or externalTrafficPolicy Local, in another way. Cilium refuses an address that another Service has; a Service that keeps " +
				"its old address itself loses nothing there, and only etcd can write it so",
			Fix: "behind Cilium set spec.serviceCIDR.etcd and spec.serviceCIDR.strategies {clusterIP: Etcd, nodePort: Etcd}, and pin what is named all " +
				"the same: kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=pin. Behind others go back to kube-proxy for the time of the " +
				"migration, or pin",
		},
		{
			Code: "RP1202", Severity: findings.Blocking, Run: checkProxyMode,
			Claim: "kube-proxy runs in mode iptables or nftables on every node",
			Why: "in mode ipvs an address that two Services have is one virtual server, whose servers either takes away from the other; and one on the " +
				"Service itself may lose connections while it moves",
			Fix: "change kube-proxy's mode to iptables first, by a Migration with spec.kubeProxy.mode: iptables (docs/runbooks/kube-proxy.md#out-of-ipvs)",
		},
		{
			Code: "RP1209", Severity: findings.Blocking, Run: checkLinux,
			Claim: "every node on which pods call Services is a Linux machine",
			Why: "an old address is an external one with externalTrafficPolicy Local during the overlap. kube-proxy on Windows does not lead pods to " +
				"endpoints of other nodes at such an address, and no agent runs there to see it",
			Fix: "drain such nodes for the time of the migration; or pin what their pods call (kubectl annotate service -n NAMESPACE NAME " +
				"replumb.dev/strategy=pin), and move applications only (spec.serviceCIDR.clusterServices: Stay) if they use cluster DNS. Then vouch for " +
				"each of them by a label that no kubelet can set: kubectl label node NODE replumb.dev.node-restriction.kubernetes.io/agents=none",
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
		{
			Code: "RP1207", Severity: findings.Warning, Run: checkClientsSeen,
			Claim: "nodes see who still uses old addresses",
			Why: "Cilium's socket load balancing translates where a client connects, so that no table of the node has the old address: finish cannot " +
				"wait for the last client, nor name it",
			Fix: "let the overlap last longer than any client lives that may have looked a name up before, restart what carries old addresses " +
				"(spec.serviceCIDR.refresh), and then finish",
		},
		{
			Code: "RP1208", Severity: findings.Warning, Run: checkTypeKept,
			Claim: "manifests that say another type of a Service can be applied during the overlap",
			Why: "a Service that keeps its old address as a load balancer's is of type LoadBalancer until finish. Where no policy corrects manifests that say " +
				"type ClusterIP, the freeze refuses them: Flux, Helm and kubectl apply fail for such Services meanwhile",
			Fix: "use Kubernetes 1.36 or later, or enable MutatingAdmissionPolicy on all API servers; or suspend what applies these Services until finish",
		},
	}
}

func (in Input) bridging() bool { return len(in.Inventory.Moves) > 0 }

func checkReplaced(in Input) []findings.Result {
	if !in.bridging() {
		return findings.Skip(noMoves)
	}
	out := in.unread("configmaps", "daemonsets", "pods", "felixconfigurations")
	bridged := in.bridgedBehindCilium()
	for _, r := range in.Found().Replacements {
		if strings.HasPrefix(r.By, string(inventory.PlaneCilium)) {
			if len(bridged) > 0 {
				out = append(out, findings.Failed(r.Object, "%s does the work of kube-proxy, as %s shows, and loses what is sent to a bridge; "+
					"%s, such as %s: %s", r.By, r.Object, wouldHaveBridges(bridged), bridged[0].Key(), bridged[0].Overlap.Why))
			}
			if in.Image == "" {
				out = append(out, findings.Failed(r.Object, "%s does the work of kube-proxy, as %s shows, and only agents on every node can prove "+
					"what it serves: there are to be none (spec.proof.agents, spec.image)", r.By, r.Object))
			}
			out = append(out, in.untriedCilium(r)...)
			continue
		}
		out = append(out, findings.Failed(r.Object, "%s does the work of kube-proxy, as %s shows", r.By, r.Object))
	}
	return out
}

// checkLinux goes by the label, which whoever registers a node may leave out, and by what its
// kubelet says.
func checkLinux(in Input) (out []findings.Result) {
	if !in.bridging() {
		return findings.Skip(noMoves)
	}
	for i := range in.Snapshot.Nodes {
		n := &in.Snapshot.Nodes[i]
		if n.Labels[v1alpha1.LabelTrial] != "" || n.Labels[v1alpha1.LabelAgents] == v1alpha1.NoAgents {
			continue
		}
		label, says := n.Labels[corev1.LabelOSStable], n.Status.NodeInfo.OperatingSystem
		switch {
		case label != "" && !strings.EqualFold(label, linux):
			out = append(out, findings.Failed("Node "+n.Name, "old addresses would not answer pods on node %s: its label %s is %s",
				n.Name, corev1.LabelOSStable, label))
		case says != "" && !strings.EqualFold(says, linux):
			out = append(out, findings.Failed("Node "+n.Name, "old addresses would not answer pods on node %s: its kubelet runs on %s", n.Name, says))
		}
	}
	return out
}

const linux = "linux"

// bridgedBehindCilium are the Services that would need a bridge, which Cilium does not serve.
func (in Input) bridgedBehindCilium() []*services.Entry {
	return slices.DeleteFunc(in.Inventory.All(), (*services.Entry).KeepsItself)
}

// firstCilium is the first version that Services were moved behind.
const firstCilium = "1.20"

// untriedCilium tells of versions before that, unless each Service is annotated to move by etcd.
func (in Input) untriedCilium(r inventory.Replacement) (out []findings.Result) {
	all := slices.DeleteFunc(in.waiting(), func(e *services.Entry) bool {
		return e.Service.Annotations[v1alpha1.AnnotationStrategy] == v1alpha1.StrategyEtcd
	})
	for _, p := range in.planes(inventory.PlaneCilium) {
		major, minor, known := inventory.Minor(p.Version)
		if len(all) > 0 && (!known || major == 1 && minor < 20) {
			out = append(out, findings.Failed(r.Object, "%s of %s, as %s shows, and Services were moved from %s on alone; %s",
				cmp.Or(p.Version, "an unknown version"), p.Plane, p.Object, firstCilium, wouldMove(all)))
		}
	}
	return out
}

func wouldHaveBridges(all []*services.Entry) string {
	return english.Plural(len(all), "Service", "") + " would have one"
}

func checkClientsSeen(in Input) (out []findings.Result) {
	if !in.bridging() {
		return findings.Skip(noMoves)
	}
	for _, m := range in.Found().CiliumModes {
		if m.Replaces() {
			out = append(out, findings.Failed(m.Object, "%s has kube-proxy-replacement: %s", m.Object, m.Value))
		}
	}
	return out
}

func checkTypeKept(in Input) []findings.Result {
	if !in.Inventory.AsLoadBalancers() {
		return findings.Skip("no Service keeps its address as that of a load balancer")
	}
	if in.KeepType == nil {
		return nil
	}
	return []findings.Result{findings.Failed("", "MutatingAdmissionPolicies cannot be used: %v", in.KeepType)}
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
	proxies := in.seen(func(inventory.Proxy) {})
	if len(proxies) == 0 {
		return findings.Skip(noProxies)
	}
	for _, p := range proxies {
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
	proxies := in.seen(func(inventory.Proxy) {})
	if len(proxies) == 0 {
		return findings.Skip(noProxies)
	}
	for _, p := range proxies {
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
	if !in.bridging() {
		return findings.Skip(noMoves)
	}
	if len(in.Found().Replacements) > 0 {
		return findings.Skip("something else does the work of kube-proxy (RP1201)")
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
