package agents

import (
	"strings"

	"github.com/replumb/replumb/internal/cluster"
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

// Rights are what a user needs to have agents run: nobody can give agents more rights than they have, hence those of agents are among
// them.
func Rights() []cluster.Right {
	seen := map[cluster.Right]bool{}
	var all []cluster.Right
	for _, r := range append([]right{
		{"", "nodes", "", "list"},
		{"", "namespaces", "", "get patch"},
		{"", "services", "", "get list create patch delete"},
		{"", "serviceaccounts", "", "get create patch delete"},
		{"", "pods", "", "list delete"},
		{"", "events", "", "list"},
		{"apps", "daemonsets", "", "get list create patch delete"},
		{"discovery.k8s.io", "endpointslices", "", "list"},
		{"rbac.authorization.k8s.io", "clusterroles", "", "get create patch delete"},
		{"rbac.authorization.k8s.io", "clusterrolebindings", "", "get create patch delete"},
		{"apiextensions.k8s.io", "customresourcedefinitions", "", "get create update"},
		{"replumb.dev", "migrations", "", "get"},
		{"replumb.dev", "nodereports", "", "list watch deletecollection"},
	}, agentRights()...) {
		for verb := range strings.FieldsSeq(r.verbs) {
			one := cluster.Right{Verb: verb, Group: r.group, Resource: r.resource, Subresource: r.subresource}
			if !seen[one] {
				seen[one] = true
				all = append(all, one)
			}
		}
	}
	return all
}
