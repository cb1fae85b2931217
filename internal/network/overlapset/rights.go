package overlapset

import (
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/overlap"
)

const (
	discovery    = "discovery.k8s.io"
	networking   = "networking.k8s.io"
	coordination = "coordination.k8s.io"
	roles        = "rbac.authorization.k8s.io"
)

// everywhere is what replicas may do in all namespaces. No role can tell bridges from other
// Services: reservations decide what is written (bridge.Follower).
func everywhere() []cluster.Right {
	return slices.Concat(
		cluster.Grant("", "services", "", "get list watch patch"),
		cluster.Grant(discovery, "endpointslices", "", "list watch create patch delete"),
		cluster.Grant(networking, "ipaddresses", "", "list watch"),
	)
}

// leases is what they may do in replumb's namespace: choose who leads, and say that they are there.
func leases() []cluster.Right {
	return slices.Concat(
		cluster.Grant(coordination, "leases", "", "create patch"),
		cluster.Named(cluster.Grant(coordination, "leases", "", "get update"), overlap.LeaseName),
	)
}

// applied is what server-side apply and removal of one object take. The authorizer sees the name at
// its creation as well.
func applied(group, resource, name string) []cluster.Right {
	all := cluster.Grant(group, resource, "", "get create patch delete")
	for i := range all {
		all[i].Name = name
	}
	return all
}

// Rights are what a user needs to run the Deployment. Those of its account are among them, as no
// user can grant more than they have.
func Rights() []cluster.Right {
	return slices.Concat(
		everywhere(),
		cluster.In(v1alpha1.SystemNamespace, slices.Concat(
			leases(),
			cluster.Grant(coordination, "leases", "", "list delete"),
			cluster.Grant("", "pods", "", "list"),
			cluster.Grant("", "events", "", "list"),
			applied("apps", "deployments", Name),
			applied("policy", "poddisruptionbudgets", Name),
			applied("", "serviceaccounts", Name),
			applied(roles, "roles", Access),
			applied(roles, "rolebindings", Access),
		)...),
		applied(roles, "clusterroles", Access),
		applied(roles, "clusterrolebindings", Access),
	)
}

// ViewRights are what it takes to see how it fares.
func ViewRights() []cluster.Right {
	return slices.Concat(
		cluster.In(v1alpha1.SystemNamespace, cluster.Grant(coordination, "leases", "", "list")...),
		cluster.In(v1alpha1.SystemNamespace, cluster.Named(cluster.Grant("apps", "deployments", "", "get"), Name)...),
	)
}
