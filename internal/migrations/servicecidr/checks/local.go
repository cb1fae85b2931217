package checks

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/network/calico"
)

// localChecks are about pods that kube-proxy may not take for pods. A bridge has
// externalTrafficPolicy Local, whose chain leads traffic of unknown origin to endpoints of its node
// alone, and drops it where there are none (syncProxyRules in k8s.io/kubernetes
// pkg/proxy/iptables/proxier.go and pkg/proxy/nftables/proxier.go). A ClusterIP masquerades and
// answers it: such a cluster works until its Services move.
func localChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1205", Severity: findings.Blocking, Run: checkOutside,
			Claim: "kube-proxy recognises every pod as part of the cluster",
			Why: "bridges have externalTrafficPolicy Local: kube-proxy leads pods to endpoints on all nodes, and others to those of their own node " +
				"alone; it drops the requests of such a pod to old addresses on every node without an endpoint",
			Fix: "set clusterCIDR in kube-proxy's configuration to a range that has all pods in it (of several for one " +
				"family it takes the first). Or have it know pods by their interfaces: with Calico detectLocalMode: " +
				"InterfaceNamePrefix and detectLocal.interfaceNamePrefix: cali. Restart kube-proxy on every node, one " +
				"node after another",
		},
		{
			Code: "RP1206", Severity: findings.Warning, Run: checkInterfaces,
			Claim: "kube-proxy knows the interfaces of all pods, where it recognises pods by them",
			Why: "no API shows the interfaces of pods; what kube-proxy does not take for a pod loses requests to old addresses on nodes without an " +
				"endpoint",
			Fix: "look at some nodes (ip link): every pod's interface, or the bridge that it hangs on, has to be the " +
				"one that the configuration names. Agents try it before anything moves, from pods on every node " +
				"without an endpoint; they try one pool of addresses",
		},
	}
}

type stranger struct {
	pod  *corev1.Pod
	addr netip.Addr
}

// checkOutside follows getLocalDetectors in k8s.io/kubernetes cmd/kube-proxy/app/server_linux.go.
func checkOutside(in Input) []findings.Result {
	if !in.bridging() {
		return findings.Skip(noMoves)
	}
	out := in.unread("pods")
	if len(out) == 0 {
		out = in.unseen()
	}
	proxies := in.seen(func(inventory.Proxy) {})
	if len(proxies) == 0 {
		return append(out, findings.Skip(noProxies)...)
	}
	for _, p := range proxies {
		switch p.DetectLocalMode {
		case "", "ClusterCIDR":
			if r, ok := in.firstOfFamily(p.ClusterCIDRs); ok {
				out = append(
					out,
					strange(p, "clusterCIDR "+r.String(), in.strangers(func(string) (netip.Prefix, bool) { return r, true }))...)
			}
		case "NodeCIDR":
			ranges := in.rangesOfNodes()
			out = append(out, strange(p, "the pod ranges of their nodes", in.strangers(func(node string) (netip.Prefix, bool) {
				r, ok := ranges[node]
				return r, ok
			}))...)
		}
	}
	return out
}

func (in Input) firstOfFamily(all []netip.Prefix) (netip.Prefix, bool) {
	for _, r := range all {
		if in.ofFamily([]netip.Prefix{r}) {
			return r, true
		}
	}
	return netip.Prefix{}, false
}

// rangesOfNodes are the ranges by which kube-proxies know pods; RP1203 is about nodes without one.
func (in Input) rangesOfNodes() map[string]netip.Prefix {
	all := map[string]netip.Prefix{}
	for i := range in.Snapshot.Nodes {
		n := &in.Snapshot.Nodes[i]
		if r, ok := in.firstOfFamily(podRanges(n)); ok {
			all[n.Name] = r
		}
	}
	return all
}

func (in Input) strangers(known func(node string) (netip.Prefix, bool)) []stranger {
	var all []stranger
	if in.Workloads == nil {
		return nil
	}
	for i := range in.Workloads.Pods {
		pod := &in.Workloads.Pods[i]
		r, ok := known(pod.Spec.NodeName)
		if !ok || pod.Spec.NodeName == "" || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		for _, a := range calico.PodAddresses(pod) {
			if a.Is4() == r.Addr().Is4() && !r.Contains(a) {
				all = append(all, stranger{pod, a})
			}
		}
	}
	return all
}

func strange(p inventory.Proxy, of string, all []stranger) []findings.Result {
	if len(all) == 0 {
		return nil
	}
	namespaces, nodes, pods := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, s := range all {
		namespaces[s.pod.Namespace], nodes[s.pod.Spec.NodeName] = true, true
		pods[fmt.Sprintf("%s/%s (%s)", s.pod.Namespace, s.pod.Name, s.addr)] = true
	}
	return []findings.Result{findings.Failed(
		p.Object, "%d addresses of pods lie outside of %s, by which kube-proxy knows pods (%s): %s; in namespaces %s; on nodes %s",
		len(all), of, p.Object, firstFive(pods), firstFive(namespaces), firstFive(nodes),
	)}
}

func checkInterfaces(in Input) []findings.Result {
	var out []findings.Result
	proxies := in.seen(func(inventory.Proxy) {})
	if len(proxies) == 0 {
		return findings.Skip(noProxies)
	}
	for _, p := range proxies {
		switch {
		case p.DetectLocalMode == "InterfaceNamePrefix" && in.Found().HasCalico() &&
			p.LocalInterface != "" && strings.HasPrefix("cali", p.LocalInterface): //nolint:gocritic // it may be shorter than interfaceprefix in felix/config/config_params.go
		case p.DetectLocalMode == "InterfaceNamePrefix", p.DetectLocalMode == "BridgeInterface":
			out = append(
				out,
				findings.NotKnown(
					p.Object,
					"kube-proxy knows pods by their interface (detectLocalMode %s, %q in %s), and no API shows those",
					p.DetectLocalMode,
					p.LocalInterface,
					p.Object,
				),
			)
		}
	}
	return out
}
