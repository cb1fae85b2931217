package rollout

import (
	"slices"

	"github.com/replumb/replumb/internal/kube/cluster"
)

// Rights are what Load and the steps need.
func Rights() []cluster.Right {
	return slices.Concat(
		cluster.Grant("", "pods", "", "get list"),
		cluster.Grant("", "pods", "eviction", "create"),
		cluster.Grant("apps", "deployments", "", "get list watch patch"),
		cluster.Grant("apps", "statefulsets", "", "get list watch patch"),
		cluster.Grant("apps", "daemonsets", "", "get list watch patch"),
		cluster.Grant("apps", "replicasets", "", "get list"),
		cluster.Grant("batch", "jobs", "", "get"),
		cluster.Grant("policy", "poddisruptionbudgets", "", "list"),
	)
}
