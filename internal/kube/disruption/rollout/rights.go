package rollout

import (
	"slices"

	"github.com/replumb/replumb/internal/kube/access"
)

// Rights are what Load and the steps need.
func Rights() []access.Right {
	return slices.Concat(ListRights(), access.Grant("policy", "poddisruptionbudgets", "", "list"),
		access.Grant("", "nodes", "", "list"), RestartRights())
}

// TurnRights are what drains of several nodes at once need beside the others.
func TurnRights() []access.Right {
	return slices.Concat(access.Grant("", "pods", "", "watch"), access.Grant("policy", "poddisruptionbudgets", "", "watch"))
}

// ListRights are what it takes to list pods, and the workloads that own them.
func ListRights() []access.Right {
	return slices.Concat(
		access.Grant("", "pods", "", "list"),
		access.Grant("apps", "deployments", "", "list"),
		access.Grant("apps", "statefulsets", "", "list"),
		access.Grant("apps", "daemonsets", "", "list"),
		access.Grant("apps", "replicasets", "", "list"),
	)
}

// RestartRights are for steps that restart workloads and evict the pods of others.
func RestartRights() []access.Right {
	return slices.Concat(
		access.Grant("", "pods", "", "get"),
		access.Grant("", "pods", "eviction", "create"),
		access.Grant("apps", "deployments", "", "get watch patch"),
		access.Grant("apps", "statefulsets", "", "get watch patch"),
		access.Grant("apps", "daemonsets", "", "get watch patch"),
		access.Grant("apps", "replicasets", "", "get"),
		access.Grant("batch", "jobs", "", "get"),
	)
}

// RelieveRights are needed beside RestartRights to have pods leave their Services before they end.
func RelieveRights() []access.Right { return access.Grant("", "pods", "", "patch delete") }
