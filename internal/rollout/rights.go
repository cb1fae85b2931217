package rollout

import (
	"strings"

	"github.com/replumb/replumb/internal/cluster"
)

// Rights are what Load and the steps need.
func Rights() []cluster.Right {
	var all []cluster.Right
	for _, r := range []struct{ group, resource, subresource, verbs string }{
		{"", "pods", "", "get list"},
		{"", "pods", "eviction", "create"},
		{"apps", "deployments", "", "get list watch patch"},
		{"apps", "statefulsets", "", "get list watch patch"},
		{"apps", "daemonsets", "", "get list watch patch"},
		{"apps", "replicasets", "", "get list"},
		{"batch", "jobs", "", "get"},
		{"policy", "poddisruptionbudgets", "", "list"},
	} {
		for verb := range strings.FieldsSeq(r.verbs) {
			all = append(all, cluster.Right{Verb: verb, Group: r.group, Resource: r.resource, Subresource: r.subresource})
		}
	}
	return all
}
