package rollout

import (
	"slices"

	"github.com/replumb/replumb/internal/kube/cluster"
)

// Rights are what Load and the steps need.
func Rights() []cluster.Right {
	return slices.Concat(ListRights(), cluster.Grant("policy", "poddisruptionbudgets", "", "list"),
		cluster.Grant("", "nodes", "", "list"), RestartRights())
}

// TurnRights are what drains of several nodes at once need beside the others.
func TurnRights() []cluster.Right {
	return slices.Concat(cluster.Grant("", "pods", "", "watch"), cluster.Grant("policy", "poddisruptionbudgets", "", "watch"))
}

// ListRights are what it takes to list pods, and the workloads that own them.
func ListRights() []cluster.Right {
	return slices.Concat(
		cluster.Grant("", "pods", "", "list"),
		cluster.Grant("apps", "deployments", "", "list"),
		cluster.Grant("apps", "statefulsets", "", "list"),
		cluster.Grant("apps", "daemonsets", "", "list"),
		cluster.Grant("apps", "replicasets", "", "list"),
	)
}

// RestartRights are for steps that restart workloads and evict the pods of others.
func RestartRights() []cluster.Right {
	return slices.Concat(
		cluster.Grant("", "pods", "", "get"),
		cluster.Grant("", "pods", "eviction", "create"),
		cluster.Grant("apps", "deployments", "", "get watch patch"),
		cluster.Grant("apps", "statefulsets", "", "get watch patch"),
		cluster.Grant("apps", "daemonsets", "", "get watch patch"),
		cluster.Grant("apps", "replicasets", "", "get"),
		cluster.Grant("batch", "jobs", "", "get"),
	)
}

// RelieveRights are needed beside RestartRights to have pods leave their Services before they end.
func RelieveRights() []cluster.Right { return cluster.Grant("", "pods", "", "patch delete") }
