package checks

import (
	"net/netip"
	"slices"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

const otherTarget = "choose another target in spec.serviceCIDR.to"

func rangeChecks() []findings.Check[Input] {
	return slices.Concat(targetChecks(), neighbourChecks(), outsideChecks(), familyChecks())
}

func targetChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1101", Severity: findings.Blocking, Run: checkFamily,
			Claim: "the target has the IP family of the cluster",
			Why:   "a Service cannot get an address of a family that its cluster does not serve",
			Fix:   "choose a target of the family of the cluster's Service ranges; where it has both families, move one after the other",
		},
		{
			Code: "RP1102", Severity: findings.Blocking, Run: checkPods,
			Claim: "the target is clear of every node's pod range",
			Why:   "a Service with the address of a pod would take that pod's traffic",
			Fix:   otherTarget,
		},
		{
			Code: "RP1103", Severity: findings.Blocking, Run: checkNodeAddresses,
			Claim: "the target is clear of node addresses",
			Why:   "a Service with the address of a node would take that node's traffic",
			Fix:   otherTarget,
		},
		{
			Code: "RP1114", Severity: findings.Blocking, Run: checkReached,
			Claim: "the control plane's endpoint, and etcd outside of the cluster, keep their addresses to themselves",
			Why: "a virtual address or a load balancer before API servers is no node's, and a Service that gets it takes their traffic on every node; one that " +
				"is a Service's own stops answering at finish, with nodes that use it",
			Fix: otherTarget + ", or give the endpoint another address first (controlPlaneEndpoint in ConfigMap kubeadm-config, kubeconfigs of nodes, " +
				"certificates)",
		},
		{
			Code: "RP1104", Severity: findings.Blocking, Run: checkServiceRanges,
			Claim: "the target is clear of other Service ranges",
			Why:   "a range that shares addresses with another cannot be retired, because addresses of both belong to either",
			Fix:   "choose a target that is exactly an existing ServiceCIDR, or overlaps none",
		},
		{
			Code: "RP1105", Severity: findings.Blocking, Run: checkSize,
			Claim: "the target is large enough for the Services and their bridges",
			Why:   "a migration that runs out of addresses stops half way",
			Fix:   "choose a larger target; during the move every Service needs two addresses in it",
		},
	}
}

func neighbourChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1106", Severity: findings.Blocking, Run: checkNetworks,
			Claim: "the target is clear of the networks in spec.serviceCIDR.networks",
			Why:   "pods would reach Services instead of the hosts that have these addresses",
			Fix:   otherTarget,
		},
		{
			Code: "RP1107", Severity: findings.Blocking, Run: checkReserved,
			Claim: "the target is clear of loopback, link-local, multicast and reserved addresses",
			Why:   "hosts do not route such addresses, or give them a meaning of their own (169.254.169.254 is a cloud's metadata server)",
			Fix:   "choose a private range, such as one in 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16, or fd00::/8",
		},
		{
			Code: "RP1108", Severity: findings.Warning, Run: checkDocker,
			Claim: "the target is clear of 172.17.0.0/16, Docker's default bridge",
			Why: "a node with Docker on it has an interface with that range, and sends what is meant for Services there when " +
				"kube-proxy does not catch it",
			Fix: "choose another target, or make sure that no node and no machine that reaches Services runs Docker with its " +
				"default range",
		},
		{
			Code: "RP1109", Severity: findings.Warning, Run: checkShared,
			Claim: "the target is clear of 100.64.0.0/10, shared address space (RFC 6598)",
			Why: "Tailscale gives its machines addresses in it and drops other traffic from it, kOps takes it for pods and Services, and some " +
				"clouds and providers use it inside",
			Fix: "choose another target, or make sure that none of these is in use in or near the cluster",
		},
		{
			Code: "RP1110", Severity: findings.Blocking, Run: checkClusterCIDR,
			Claim: "the target is clear of the pod range in kube-proxy's configuration",
			Why:   "nodes to come get their pod ranges from it, and kube-proxy would take traffic from Services for traffic from pods",
			Fix:   otherTarget,
		},
		{
			Code: "RP1111", Severity: findings.Blocking, Run: checkPodAddresses,
			Claim: "the target is clear of pod addresses",
			Why:   "network plugins with address pools of their own give pods addresses that are in no node's pod range",
			Fix:   otherTarget,
		},
		{
			Code: "RP1112", Severity: findings.Blocking, Run: checkPools,
			Claim: "the target is clear of every pool of Calico's",
			Why: "future pods may get addresses from an unused pool, and a Service with such an address would take that pod's traffic. And Calico " +
				"takes addresses of a pool, also of a disabled one, for pods, and translates no source on the way there",
			Fix: otherTarget + ", or delete the pool if nothing is to use it",
		},
	}
}

func outsideChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1113", Severity: findings.Warning, Run: checkAdvertisers,
			Claim: "clients outside the cluster reach Services by other ways than ClusterIPs",
			Why: "from the moment a Service moves, its old address is its bridge's, which answers clients outside only on nodes with an endpoint " +
				"(externalTrafficPolicy Local): on all others they are dropped. And where the old range alone is advertised, no route leads to new addresses",
			Fix: "have the target advertised beside the old range before apply; before its Service moves, lead who calls it from outside to a load balancer, a " +
				"node port or the Ingress; or pin it: kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=pin. Take the old range out of " +
				"what is advertised after finish",
		},
	}
}

func checkFamily(in Input) []findings.Result {
	if len(in.spec().To) == 0 {
		return findings.Skip("there is no target")
	}
	want4 := in.spec().To[0].Addr().Is4()
	seen := false
	for _, c := range in.Snapshot.ServiceCIDRs {
		for _, text := range c.Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			seen = seen || err == nil
			if err == nil && p.Addr().Is4() == want4 {
				return nil
			}
		}
	}
	if !seen {
		return nil
	}
	return []findings.Result{findings.Failed("", "target %s is of a family in which the cluster has no Service range", in.spec().To[0])}
}

func checkPods(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Snapshot.Nodes {
		n := &in.Snapshot.Nodes[i]
		for _, text := range n.Spec.PodCIDRs {
			p, err := netip.ParsePrefix(text)
			for _, to := range in.spec().To {
				if err == nil && to.Overlaps(p) {
					out = append(out, findings.Failed("Node "+n.Name, "target %s overlaps the pod range %s of node %s", to, p, n.Name))
				}
			}
		}
	}
	return out
}

func checkNodeAddresses(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Snapshot.Nodes {
		n := &in.Snapshot.Nodes[i]
		for _, address := range n.Status.Addresses {
			a, err := netip.ParseAddr(address.Address)
			for _, to := range in.spec().To {
				if err == nil && to.Contains(a) {
					out = append(out, findings.Failed("Node "+n.Name, "target %s contains the address %s of node %s", to, a, n.Name))
				}
			}
		}
	}
	return out
}

func checkServiceRanges(in Input) []findings.Result {
	var out []findings.Result
	for _, c := range in.Snapshot.ServiceCIDRs {
		for _, text := range c.Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			for _, to := range in.spec().To {
				if err == nil && p != to && to.Overlaps(p) {
					out = append(out,
						findings.Failed("ServiceCIDR "+c.Name, "target %s overlaps the Service range %s of servicecidr %s", to, p, c.Name))
				}
			}
		}
	}
	return out
}

// checkSize counts two addresses for each Service, the two reserved ones, and one sentinel.
func checkSize(in Input) []findings.Result {
	foreign := 0
	for i := range in.Snapshot.IPAddresses {
		ip := &in.Snapshot.IPAddresses[i]
		a, err := netip.ParseAddr(ip.Name)
		if _, reserved := bridge.HeldFor(ip); err == nil && !reserved && cidr.Contains(in.spec().To, a) {
			foreign++
		}
	}
	for _, e := range in.Inventory.Moves {
		if e.Position == services.Moved {
			foreign--
		}
		if e.Bridge != nil {
			foreign--
		}
	}
	need := 2*len(in.Inventory.Moves) + 3 + max(0, foreign)
	if have := cidr.Size(in.spec().To, need); have < need {
		return []findings.Result{findings.Failed("", "target %s has %d addresses; %d Services and their bridges need %d",
			lists.Join(in.spec().To, ", "), have, len(in.Inventory.Moves), need)}
	}
	return nil
}

func checkNetworks(in Input) []findings.Result {
	if len(in.spec().Networks) == 0 {
		return findings.Skip("spec.serviceCIDR.networks names none")
	}
	return overlaps(in, in.spec().Networks, "target %s overlaps the network %s")
}

func overlaps(in Input, others []netip.Prefix, message string) []findings.Result {
	var out []findings.Result
	for _, to := range in.spec().To {
		for _, p := range others {
			if to.Overlaps(p) {
				out = append(out, findings.Failed("", message, to, p))
			}
		}
	}
	return out
}

// checkReserved follows the IANA registries of special-purpose addresses.
func checkReserved(in Input) []findings.Result {
	return overlaps(in, prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4",
		"::/127", "::ffff:0:0/96", "fe80::/10", "ff00::/8"), "target %s overlaps %s, which is not for ordinary hosts")
}

func checkDocker(in Input) []findings.Result {
	return overlaps(in, prefixes("172.17.0.0/16"), "target %s overlaps %s")
}

func checkShared(in Input) []findings.Result {
	return overlaps(in, prefixes("100.64.0.0/10"), "target %s overlaps %s")
}

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParsePrefix(text)
	}
	return all
}

func checkClusterCIDR(in Input) []findings.Result {
	if len(in.Found().Proxies) == 0 {
		return findings.Skip(noProxies)
	}
	var out []findings.Result
	for _, p := range in.Found().Proxies {
		for _, to := range in.spec().To {
			for _, pods := range p.ClusterCIDRs {
				if to.Overlaps(pods) {
					out = append(out, findings.Failed(p.Object, "target %s overlaps the pod range %s in %s", to, pods, p.Object))
				}
			}
		}
	}
	return out
}

func checkPodAddresses(in Input) []findings.Result {
	out := in.unread("pods")
	for _, p := range in.Found().InTarget {
		out = append(out, findings.Failed("Pod "+p.Pod, "pod %s has the address %s", p.Pod, p.Address))
	}
	return out
}

func checkPools(in Input) []findings.Result {
	out := in.unread(inventory.PoolResources()...)
	if len(out) == 0 && !in.Found().HasCalico() {
		return findings.Skip("Calico is not seen in the cluster")
	}
	for _, p := range in.Found().Pools {
		for _, to := range in.spec().To {
			if to.Overlaps(p.Range) {
				out = append(out, findings.Failed(p.Object, "target %s overlaps the pool %s of %s", to, p.Range, p.Object))
			}
		}
	}
	return out
}

// checkAdvertisers leaves out ranges that no Service moves from or to.
func checkAdvertisers(in Input) []findings.Result {
	if len(in.Inventory.Moves) == 0 {
		return findings.Skip(noMoves)
	}
	out := in.unread(inventory.AdvertiserResources()...)
	for _, a := range in.Found().Advertisers {
		if len(a.Ranges) == 0 {
			out = append(out, findings.Failed(a.Object, "%s advertises ClusterIPs outside the cluster, as %s shows", a.By, a.Object))
			continue
		}
		for _, p := range a.Ranges {
			if overlapsAny(p, in.spec().From) || overlapsAny(p, in.spec().To) {
				out = append(out,
					findings.Failed(a.Object, "%s advertises %s outside the cluster, as %s shows%s", a.By, p, a.Object, in.unrouted()))
			}
		}
	}
	return out
}

// unrouted says which targets no one advertises, where old ranges are.
func (in Input) unrouted() string {
	var all []netip.Prefix
	for _, a := range in.Found().Advertisers {
		if len(a.Ranges) == 0 { // by the addresses that Services have
			return ""
		}
		all = append(all, a.Ranges...)
	}
	for _, to := range in.spec().To {
		if !slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Bits() <= to.Bits() && p.Contains(to.Addr()) }) {
			return ", and " + to.String() + " is advertised by none that can be seen"
		}
	}
	return ""
}

func overlapsAny(p netip.Prefix, all []netip.Prefix) bool {
	return slices.ContainsFunc(all, p.Overlaps)
}
