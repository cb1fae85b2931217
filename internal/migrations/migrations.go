// Package migrations lists the kinds of migrations. Each has a package of its own below; none knows another.
package migrations

import (
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/offline"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni"
	"github.com/replumb/replumb/internal/migrations/mirror"
	"github.com/replumb/replumb/internal/migrations/nodes"
	"github.com/replumb/replumb/internal/migrations/podcidr"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
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
	// Outlines have the phases of each command with their titles, one for each kind of clusters with phases of its own.
	Outlines []migration.Outline
	// Command is its name where commands are about kinds, and Does what who has its roles does.
	Command, Does string
	// Roles are what users need, by purpose. Files under deploy/ grant exactly these.
	Roles cluster.Roles
	// Examples is the folder of its Migrations under examples/.
	Examples string
}

// Shared are the checks and roles of what every kind can be asked for. It is no kind.
func Shared() Kind {
	return Kind{
		Title:   "All kinds",
		Checks:  append(findings.Describe(offline.Checks()), findings.Describe(migration.DeploymentChecks())...),
		Command: "freeze",
		Does:    "keeps others from deploying (spec.deploymentFreeze), beside those of a kind",
		Roles:   migration.DeploymentRoles(),
	}
}

// All lists the kinds, in the order in which people read of them.
func All() []Kind {
	return []Kind{
		{
			Field: "serviceCIDR", Checks: findings.Describe(servicecidr.Checks()), Examples: "service-cidr",
			Apply: servicecidr.ApplyPhases(), Phases: servicecidr.PhaseNames(), Outlines: servicecidr.Outlines(),
			Command: "services", Does: "moves Services (spec.serviceCIDR)", Roles: servicecidr.Roles(),
		},
		{
			Field: "podCIDR", Title: "Pods", Checks: findings.Describe(podcidr.Checks()), Examples: "pod-cidr",
			Apply: podcidr.ApplyPhases(), Phases: podcidr.PhaseNames(), Outlines: podcidr.Outlines(),
			Command: "pods", Does: "moves pods (spec.podCIDR)", Roles: podcidr.Roles(),
		},
		{
			Field: "nodes", Title: "Nodes", Checks: findings.Describe(nodes.Checks()), Examples: "nodes",
			Apply: nodes.ApplyPhases(), Phases: nodes.PhaseNames(), Outlines: nodes.Outlines(),
			Command: "nodes", Does: "moves nodes (spec.nodes)", Roles: nodes.Roles(),
		},
		{
			Field: "mirror", Title: "Mirrors", Checks: findings.Describe(mirror.Checks()), Examples: "mirror",
			Apply: mirror.ApplyPhases(), Phases: mirror.PhaseNames(), Outlines: mirror.Outlines(),
			Command: "mirrors", Does: "copies a cluster (spec.mirror), in the cluster that is copied", Roles: mirror.Roles(mirror.Usual()),
		},
		{
			Field: "cni", Title: "Networks", Checks: findings.Describe(cni.Checks()), Examples: "cni",
			Apply: cni.AllApplyPhases(), Phases: cni.PhaseNames(), Outlines: cni.Outlines(),
			Command: "networks", Does: "replaces the network (spec.cni)", Roles: cni.Roles(),
		},
	}
}
