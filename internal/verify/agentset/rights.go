package agentset

import (
	"slices"

	"github.com/replumb/replumb/internal/kube/cluster"
)

type right struct{ group, resource, subresource, verbs string }

// agentRights are what agents may do: see what they watch, and report.
func agentRights() []right {
	return []right{
		{"", "services", "", "list watch"},
		{"", "pods", "", "list watch"},
		{"replumb.dev", "migrations", "", "get list watch"},
		{"replumb.dev", "nodereports", "", "get create patch"},
		{"replumb.dev", "nodereports", "status", "get patch"},
	}
}

// Rights are what a user needs to have agents run: no user can give agents more rights than they have, hence those of agents are among
// them.
func Rights() []cluster.Right {
	all := slices.Concat(
		cluster.Grant("", "nodes", "", "list"),
		cluster.Grant("", "namespaces", "", "get patch"),
		cluster.Grant("", "services", "", "get list create patch delete"),
		cluster.Grant("", "serviceaccounts", "", "get create patch delete"),
		cluster.Grant("", "pods", "", "list delete"),
		cluster.Grant("", "events", "", "list"),
		cluster.Grant("apps", "daemonsets", "", "get list create patch delete"),
		cluster.Grant("discovery.k8s.io", "endpointslices", "", "list"),
		cluster.Grant("rbac.authorization.k8s.io", "clusterroles", "", "get create patch delete"),
		cluster.Grant("rbac.authorization.k8s.io", "clusterrolebindings", "", "get create patch delete"),
		cluster.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "get create update"),
		cluster.Grant("replumb.dev", "migrations", "", "get"),
		cluster.Grant("replumb.dev", "nodereports", "", "list watch deletecollection"),
	)
	for _, r := range agentRights() {
		for _, one := range cluster.Grant(r.group, r.resource, r.subresource, r.verbs) {
			if !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	}
	return all
}
