package connectivity

import (
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
)

// Rule is what canaries take.
func Rule() access.Rule {
	return access.Rule{
		Why: "Canaries, which come and go, and their own NetworkPolicies.",
		Rights: access.In(v1alpha1.SystemNamespace, slices.Concat(
			access.Grant("", "pods", "", "create deletecollection"),
			access.Grant("networking.k8s.io", "networkpolicies", "", "create deletecollection"),
		)...),
	}
}
