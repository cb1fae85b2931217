package checks

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/references"
)

func dnsChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1301", Severity: findings.Warning, Run: checkClusterDNS,
			Claim: "every kubelet's clusterDNS is an address of a Service or of a NodeLocal DNSCache",
			Why:   "pods ask there for every name; if replumb does not know who answers, it cannot keep that address answering",
			Fix: "find out what answers at the address; if it is in the old range, make it a Service or change clusterDNS in the kubelet's " +
				"configuration before the migration",
		},
		{
			Code: "RP1302", Severity: findings.Warning, Run: checkNodeLocal,
			Claim: "pods ask kube-dns directly, without NodeLocal DNSCache in between",
			Why: "where it binds the old address of kube-dns, it goes on answering there, and not at the new one, until its manifest is changed. In any case " +
				"it forwards to an address that its Corefile names, or to one that it was started with",
			Fix: "when kube-dns has moved: add the new address to -localip and to every bind in its Corefile, roll the DaemonSet out, let " +
				"kubelets and pods change to the new address. Take the old one out of both before finish. A cache on link-local addresses alone, as " +
				"Kubespray installs it, keeps them, and kubelets keep naming it. There write the new address of cluster DNS after forward, where its Corefile " +
				"(RP1403) and the installer have the old one; plugin reload takes it up, else restart its pods. Do so before finish",
		},
		{
			Code: "RP1303", Severity: findings.Warning, Run: checkReverseZones,
			Claim: "every Corefile is free of the old range",
			Why:   "look-ups of addresses in the new range would go to another server, or be answered with no such name",
			Fix: "add the reverse zone or range of the target beside the old one before the migration, or use in-addr.arpa and " +
				"ip6.arpa as a whole",
		},
	}
}

// checkClusterDNS leaves link-local addresses, by convention, to NodeLocal DNSCache.
func checkClusterDNS(in Input) []findings.Result {
	if !in.toldByKubelets() {
		return findings.Skip("no kubelet told its cluster DNS (RP1007)")
	}
	known := in.serviceAddresses()
	for _, cache := range in.Found().NodeLocal {
		for _, text := range cache.Addresses {
			known[text] = true
		}
	}
	var out []findings.Result
	for _, node := range sortedKeys(in.Snapshot.Kubelets) {
		for _, text := range in.Snapshot.Kubelets[node].DNS {
			a, err := netip.ParseAddr(text)
			if err == nil && (a.IsLinkLocalUnicast() || known[a.String()]) {
				continue
			}
			out = append(out,
				findings.Failed("Node "+node, "the kubelet of node %s gives %s to pods, which is no Service's address", node, text))
		}
	}
	return out
}

func (in Input) serviceAddresses() map[string]bool {
	known := map[string]bool{}
	for i := range in.Snapshot.Services {
		svc := &in.Snapshot.Services[i]
		for _, text := range slices.Concat(svc.Spec.ClusterIPs, svc.Spec.ExternalIPs) {
			known[text] = true
		}
		for _, ingress := range svc.Status.LoadBalancer.Ingress {
			known[ingress.IP] = true
		}
	}
	for _, e := range in.Inventory.Moves {
		known[e.Old.String()] = true
		known[e.New.String()] = true
	}
	return known
}

func checkNodeLocal(in Input) []findings.Result {
	out := in.unread("daemonsets")
	for _, cache := range in.Found().NodeLocal {
		out = append(out, findings.Failed(cache.Object, "%s is a NodeLocal DNSCache on %s", cache.Object, orUnknown(cache.Addresses)))
	}
	return out
}

func orUnknown(all []string) string {
	if len(all) == 0 {
		return "addresses that its command line does not tell"
	}
	return strings.Join(all, ", ")
}

func checkReverseZones(in Input) []findings.Result {
	return in.references([]string{"configmaps"}, inCorefile)
}

func inCorefile(r references.Reference) bool {
	return r.Kind() == "ConfigMap" && (r.IsZone() || r.Field == "data[Corefile]" && strings.Contains(r.Value, "/"))
}
