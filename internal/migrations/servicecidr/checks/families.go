package checks

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

func familyChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1740", Severity: findings.Blocking, Run: checkFamilyProof,
			Claim: "nodes can prove that they know bridges in each family",
			Why: "kube-proxy answers health checks for each IP family separately (before Kubernetes 1.36 at addresses of IPv4). Without agents it is " +
				"asked through API servers, which call a node at its first address alone",
			Fix: "name an image of replumb that nodes can pull in spec.image, so that agents ask",
		},
		{
			Code: "RP1741", Severity: findings.Warning, Run: checkCalledBySix,
			Claim: "API servers call only Services that keep their IPv6 address",
			Why: "API servers call a Service of type ExternalName by its externalName, which cannot be an address of IPv6: for the milliseconds of its hop it is " +
				"the name of its bridge, which API servers on hosts without cluster DNS do not find. A webhook or aggregated API fails meanwhile",
			Fix: "give it a window of its own, or pin it: kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=pin",
		},
	}
}

// answersInFamily is the first minor version whose kube-proxy is known to answer at addresses of a
// Service's family, not of IPv4 alone (newServiceHealthServer in k8s.io/kubernetes
// pkg/proxy/healthcheck/service_health.go).
const answersInFamily = 36

// checkFamilyProof asks whether API servers, which call nodes at their first address, reach
// kube-proxy's answers where no agents do.
func checkFamilyProof(in Input) []findings.Result {
	s := in.spec()
	agents := in.Image != "" && (s.Barrier == "" || s.Barrier == v1alpha1.BarrierAgent)
	switch {
	case !in.bridging() || len(s.To) == 0:
		return findings.Skip(noMoves)
	case s.Barrier == v1alpha1.BarrierWait:
		return findings.Skip("nodes prove nothing with barrier.mode Wait (RP1008)")
	case agents:
		return nil
	}
	if other := in.Inventory.OtherFamily(); other != "" {
		return []findings.Result{
			findings.Failed("", "Services have addresses of both families, and API servers call nodes in one of them alone"),
		}
	}
	asked := s.To[0].Addr().Is6() && in.minor() >= answersInFamily // at addresses of IPv6
	for i := range in.Snapshot.Nodes {
		n := &in.Snapshot.Nodes[i]
		if called, err := netip.ParseAddr(inventory.InternalIP(n)); err == nil && called.Is6() != asked {
			return []findings.Result{findings.Failed("Node "+n.Name,
				"API servers call node %s at %s, where its kube-proxy does not answer about Services in %s", n.Name, called, s.To[0])}
		}
	}
	return nil
}

func (in Input) minor() int {
	if in.Snapshot.Version == nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimRight(in.Snapshot.Version.Minor, "+"))
	if err != nil {
		return 0
	}
	return n
}

func checkCalledBySix(in Input) []findings.Result {
	if len(in.spec().To) == 0 || in.spec().To[0].Addr().Is4() {
		return findings.Skip("the target is one of IPv4")
	}
	var out []findings.Result
	seen := map[*services.Entry]bool{}
	unread := in.calls(func(e *services.Entry, _ inventory.Called) {
		if !seen[e] {
			out = append(out, failedService(e, "is called by API servers, and leaves %s", e.Old))
		}
		seen[e] = true
	})
	return append(unread, out...)
}
