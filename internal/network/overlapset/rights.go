package overlapset

import (
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/network/overlap"
)

const (
	discovery    = "discovery.k8s.io"
	networking   = "networking.k8s.io"
	coordination = "coordination.k8s.io"
	roles        = "rbac.authorization.k8s.io"

	// lock is the Lease of who is at work (package safety/lease).
	lock = "replumb"
)

// everywhere is what replicas may do in all namespaces. No role can tell bridges, and Services that
// keep an address themselves, from others: reservations decide what is written (bridge.Follower).
func everywhere() []access.Right {
	return slices.Concat(
		access.Grant("", "services", "", "get list watch patch"),
		access.Grant(discovery, "endpointslices", "", "list watch create patch delete"),
		access.Grant("", "services", "status", "patch"),
		access.Grant(networking, "ipaddresses", "", "get list watch"),
		access.Grant(v1alpha1.GroupVersion.Group, "migrations", "", "get"),
		access.Named(access.Grant(coordination, "leases", "", "get"), lock),
	)
}

// leases is what they may do in replumb's namespace: choose who leads, and say that they are there.
func leases() []access.Right {
	return slices.Concat(
		access.Grant(coordination, "leases", "", "create patch"),
		access.Named(access.Grant(coordination, "leases", "", "get update"), overlap.LeaseName),
	)
}

// applied is what server-side apply and removal of one object take. The authorizer sees the name at
// its creation as well.
func applied(group, resource, name string) []access.Right {
	all := access.Grant(group, resource, "", "get create patch delete")
	for i := range all {
		all[i].Name = name
	}
	return all
}

// Rights are what a user needs to run the Deployment. Those of its account are among them, as no
// user can grant more than they have.
func Rights() []access.Right {
	return slices.Concat(
		everywhere(),
		access.In(v1alpha1.SystemNamespace, slices.Concat(
			leases(),
			access.Grant(coordination, "leases", "", "list delete"),
			access.Grant("", "pods", "", "list"),
			access.Grant("", "events", "", "list"),
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
func ViewRights() []access.Right {
	return slices.Concat(
		access.In(v1alpha1.SystemNamespace, access.Grant(coordination, "leases", "", "list")...),
		access.In(v1alpha1.SystemNamespace, access.Named(access.Grant("apps", "deployments", "", "get"), Name)...),
	)
}
