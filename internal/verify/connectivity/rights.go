package connectivity

import (
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// Rule is what canaries take.
func Rule() cluster.Rule {
	return cluster.Rule{
		Why: "Canaries, which come and go, and their own NetworkPolicies.",
		Rights: cluster.In(v1alpha1.SystemNamespace, slices.Concat(
			cluster.Grant("", "pods", "", "create deletecollection"),
			cluster.Grant("networking.k8s.io", "networkpolicies", "", "create deletecollection"),
		)...),
	}
}
