package nodes

import (
	"slices"

	"github.com/replumb/replumb/internal/kube/cluster"
)

// Rights are what a user needs. deploy/rbac-nodes.yaml grants exactly these.
func Rights() []cluster.Right {
	return slices.Concat(
		cluster.Grant("", "nodes", "", "get list patch delete"),
		cluster.Grant("", "namespaces", "", "get create delete"),
		cluster.Grant("", "services", "", "get list patch"),
		cluster.Grant("", "configmaps", "", "list create update delete"),
		cluster.Grant("", "events", "", "create"),
		cluster.Grant("", "persistentvolumes", "", "list"),
		cluster.Grant("", "persistentvolumeclaims", "", "get list"),
		cluster.Grant("", "pods", "", "get list create delete deletecollection"),
		cluster.Grant("", "pods", "eviction", "create"),
		cluster.Grant("apps", "deployments", "", "get list watch patch"),
		cluster.Grant("apps", "statefulsets", "", "get list"),
		cluster.Grant("apps", "daemonsets", "", "get list"),
		cluster.Grant("apps", "replicasets", "", "get list"),
		cluster.Grant("batch", "jobs", "", "get"),
		cluster.Grant("policy", "poddisruptionbudgets", "", "list"),
		cluster.Grant("discovery.k8s.io", "endpointslices", "", "list"),
		cluster.Grant("storage.k8s.io", "volumeattachments", "", "list"),
		cluster.Grant("coordination.k8s.io", "leases", "", "get create update delete"),
		cluster.Grant("networking.k8s.io", "networkpolicies", "", "create deletecollection"),
		cluster.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "get create update"),
		cluster.Grant("replumb.dev", "migrations", "", "get list create update"),
		cluster.Grant("replumb.dev", "migrations", "status", "update"),
	)
}
