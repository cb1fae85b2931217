package checks

import (
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

func ownerChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1750", Severity: findings.Blocking, Run: checkOwner,
			Claim: "the certificates and flags that gates ask for are the user's to set",
			Why: "kubernetes at its new address needs API servers with a certificate for it, and a range goes only when it is no API server's flag; " +
				"where a cloud or an operator runs them, the gates wait in vain",
			Fix: "move applications alone, which takes no gate: spec.serviceCIDR.clusterServices: Stay; if the whole range has to go, make another cluster, and " +
				"mirror to it (spec.mirror)",
		},
	}
}

const gateAPIServers = "gate api-servers"

func checkOwner(in Input) []findings.Result {
	origin := inventory.OriginOf(in.Snapshot.Nodes, in.Found().Kubeadm)
	gates := controlPlaneGates(in.Inventory)
	if len(gates) == 0 || in.Back {
		return findings.Skip("no gate is about the control plane")
	}
	if origin.Distribution.Owner() == "" {
		return nil
	}
	return []findings.Result{findings.Failed("", "the cluster is %s, whose control plane is run by %s: it is theirs to pass %s",
		origin.Distribution, origin.Distribution.Owner(), strings.Join(gates, " and "))}
}

func controlPlaneGates(s *services.Inventory) []string {
	var gates []string
	if s.Kubernetes() != nil {
		gates = append(gates, "gate certificates")
	}
	if s.Bitmap || slices.ContainsFunc(ranges.ToRetire(s), func(c *networkingv1.ServiceCIDR) bool { return c.Name == ranges.DefaultRange }) {
		gates = append(gates, gateAPIServers)
	}
	return gates
}
