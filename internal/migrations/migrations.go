// Package migrations lists the kinds of migrations. Each has a package of its own below; none knows another.
package migrations

import (
	"slices"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/cni"
	"github.com/replumb/replumb/internal/migrations/mirror"
	"github.com/replumb/replumb/internal/migrations/nodes"
	"github.com/replumb/replumb/internal/migrations/podcidr"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// Kind is what is true of every migration of a kind, whatever the cluster.
type Kind struct {
	// Field of spec that holds it, such as serviceCIDR.
	Field string
	// Title is its heading in docs/findings.md; empty for the first, which the page is named for.
	Title string
	// Checks in the order in which they run.
	Checks []findings.Description
	// Apply are the names of the phases of apply, Phases those of all commands, each in order.
	Apply, Phases []string
	// Roles are the files under deploy/ that grant what a user needs, and what each has to grant.
	Roles map[string][]cluster.Right
	// Examples is the folder of its Migrations under examples/.
	Examples string
}

// All lists the kinds, in the order in which people read of them.
func All() []Kind {
	return []Kind{
		{
			Field: "serviceCIDR", Checks: findings.Describe(servicecidr.Checks()), Examples: "service-cidr",
			Apply: servicecidr.ApplyPhases(), Phases: servicecidr.PhaseNames(),
			Roles: map[string][]cluster.Right{"rbac.yaml": slices.Concat(servicecidr.Rights(), agentset.Rights())},
		},
		{
			Field: "podCIDR", Title: "Pods", Checks: findings.Describe(podcidr.Checks()), Examples: "pod-cidr",
			Apply: podcidr.ApplyPhases(), Phases: podcidr.PhaseNames(),
			Roles: map[string][]cluster.Right{
				"rbac-pod-cidr.yaml":       slices.Concat(podcidr.Rights(), agentset.Rights()),
				"rbac-pod-cidr-nodes.yaml": podcidr.NodeRights(),
			},
		},
		{
			Field: "nodes", Title: "Nodes", Checks: findings.Describe(nodes.Checks()), Examples: "nodes",
			Apply: nodes.ApplyPhases(), Phases: nodes.PhaseNames(),
			Roles: map[string][]cluster.Right{"rbac-nodes.yaml": nodes.Rights()},
		},
		{
			Field: "mirror", Title: "Mirrors", Checks: findings.Describe(mirror.Checks()), Examples: "mirror",
			Apply: mirror.ApplyPhases(), Phases: mirror.PhaseNames(),
			Roles: map[string][]cluster.Right{"rbac-mirror.yaml": mirror.Rights()},
		},
		{
			Field: "cni", Title: "Networks", Checks: findings.Describe(cni.Checks()), Examples: "cni",
			Apply: cni.ApplyPhases(), Phases: cni.PhaseNames(),
			Roles: map[string][]cluster.Right{"rbac-cni.yaml": cni.Rights()},
		},
	}
}
