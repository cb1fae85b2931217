package migrations

import (
	"fmt"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
)

// OperatorLease is the name of the Lease of the operator's replica that leads.
const OperatorLease = "replumb-operator"

// OperatorRole is the union of the roles of some kinds, by their fields, or of all, and what
// following Migrations takes. Runs without agents are left out: they would make it root on every
// node.
func OperatorRole(fields ...string) access.Role {
	role := access.Role{
		Name: "replumb-operator", File: "rbac-operator.yaml", Purpose: access.Operate,
		Danger: []string{
			"Its holder is as good as an administrator of the cluster: it is the union of what all kinds of migrations take, so it can lead the",
			"traffic of every Service elsewhere, drain nodes and, for spec.cni, change what runs on them. Who may create Migrations has the",
			"operator do so for them, within what a Migration can say: give create and update of migrations to administrators alone.",
		},
		Rules: []access.Rule{
			{
				Why: "Migrations that are created, changed and approved, and what becomes of them.",
				Rights: slices.Concat(
					access.Grant("replumb.dev", "migrations", "", "get list watch update"),
					access.Grant("replumb.dev", "migrations", "status", "update patch"),
				),
			},
			{
				Why: "Which replica leads.",
				Rights: access.In(v1alpha1.SystemNamespace, slices.Concat(
					access.Grant("coordination.k8s.io", "leases", "", "create"),
					access.Named(access.Grant("coordination.k8s.io", "leases", "", "get update"), OperatorLease),
				)...),
			},
		},
	}
	for _, kind := range All() {
		if len(fields) > 0 && !slices.Contains(fields, kind.Field) {
			continue
		}
		for _, one := range kind.Roles {
			if slices.Contains([]access.Purpose{access.WithoutAgents, access.BehindCilium, access.KubeadmGates, access.KubeadmEtcd}, one.Purpose) {
				continue
			}
			role.Rules = append(role.Rules, access.Rule{
				Why: fmt.Sprintf("What %s has, and the rules above do not.", one.Name), Rights: one.Rights(),
			})
		}
	}
	return narrowed(role)
}

// OperatorLeaseRole is what commands need to see whether an operator is alive.
func OperatorLeaseRole() access.Role {
	return access.Role{
		Name: "replumb-operator-lease", File: "rbac-operator.yaml", Purpose: access.View,
		Rules: []access.Rule{{
			Why: "Whether an operator is alive, which commands hand over to.",
			Rights: access.In(v1alpha1.SystemNamespace,
				access.Named(access.Grant("coordination.k8s.io", "leases", "", "get"), OperatorLease)...),
		}},
	}
}

// narrowed drops rights that another rule grants for all names or namespaces.
func narrowed(role access.Role) access.Role {
	all := map[access.Right]bool{}
	for _, r := range role.Rights() {
		all[r] = true
	}
	var rules []access.Rule
	for _, rule := range role.Rules {
		var own []access.Right
		for _, r := range rule.Rights {
			if !wider(all, r) {
				own = append(own, r)
			}
		}
		if rule.Rights = own; len(own) > 0 {
			rules = append(rules, rule)
		}
	}
	role.Rules = rules
	return role
}

// wider reports whether a right is in another; list, watch and create of one namespace are in those
// of all.
func wider(all map[access.Right]bool, r access.Right) bool {
	for _, w := range []access.Right{unnamed(r), anywhere(r), unnamed(anywhere(r))} {
		if w != r && all[w] {
			return true
		}
	}
	return false
}

func unnamed(r access.Right) access.Right {
	r.Name = ""
	return r
}

func anywhere(r access.Right) access.Right {
	r.Namespace = ""
	return r
}
