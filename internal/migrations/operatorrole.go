package migrations

import (
	"fmt"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// OperatorRole is what the operator needs to run Migrations of all kinds: the union of their roles, and what following Migrations takes. What
// only a run without agents takes is not in it: that would make it root on every node.
func OperatorRole() cluster.Role {
	role := cluster.Role{
		Name: "replumb-operator", File: "rbac-operator.yaml", Purpose: cluster.Operate,
		Rules: []cluster.Rule{
			{
				Why: "Migrations that are created, changed and approved, and what becomes of them.",
				Rights: slices.Concat(
					cluster.Grant("replumb.dev", "migrations", "", "get list watch update"),
					cluster.Grant("replumb.dev", "migrations", "status", "update patch"),
				),
			},
			{
				Why:    "Which replica leads.",
				Rights: cluster.In(v1alpha1.SystemNamespace, cluster.Grant("coordination.k8s.io", "leases", "", "get create update")...),
			},
		},
	}
	seen := map[cluster.Right]bool{}
	for _, rule := range role.Rules {
		for _, r := range rule.Rights {
			seen[r] = true
		}
	}
	for _, kind := range All() {
		for _, one := range kind.Roles {
			if one.Purpose == cluster.WithoutAgents {
				continue
			}
			rule := cluster.Rule{Why: fmt.Sprintf("What %s has, and the rules above do not.", one.Name)}
			for _, r := range one.Rights() {
				if !seen[r] {
					rule.Rights = append(rule.Rights, r)
				}
				seen[r] = true
			}
			role.Rules = append(role.Rules, rule)
		}
	}
	return role
}
