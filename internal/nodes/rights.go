package nodes

import (
	"context"
	"strings"

	"github.com/replumb/replumb/internal/cluster"
)

type right struct{ group, resource, subresource, verbs string }

// Rights are what a user needs. deploy/rbac-nodes.yaml grants exactly these.
func Rights() []cluster.Right {
	var all []cluster.Right
	for _, r := range []right{
		{"", "nodes", "", "get list patch delete"},
		{"", "namespaces", "", "get create delete"},
		{"", "services", "", "get list patch"},
		{"", "configmaps", "", "list create update delete"},
		{"", "events", "", "create"},
		{"", "persistentvolumes", "", "list"},
		{"", "persistentvolumeclaims", "", "get list"},
		{"", "pods", "", "get list create delete deletecollection"},
		{"", "pods", "eviction", "create"},
		{"apps", "deployments", "", "get list watch patch"},
		{"apps", "statefulsets", "", "get list"},
		{"apps", "daemonsets", "", "get list"},
		{"apps", "replicasets", "", "get list"},
		{"batch", "jobs", "", "get"},
		{"policy", "poddisruptionbudgets", "", "list"},
		{"discovery.k8s.io", "endpointslices", "", "list"},
		{"storage.k8s.io", "volumeattachments", "", "list"},
		{"coordination.k8s.io", "leases", "", "get create update delete"},
		{"networking.k8s.io", "networkpolicies", "", "create deletecollection"},
		{"apiextensions.k8s.io", "customresourcedefinitions", "", "get create update"},
		{"replumb.dev", "migrations", "", "get list create update"},
		{"replumb.dev", "migrations", "status", "update"},
	} {
		for verb := range strings.FieldsSeq(r.verbs) {
			all = append(all, cluster.Right{Verb: verb, Group: r.group, Resource: r.resource, Subresource: r.subresource})
		}
	}
	return all
}

// authorize asks for the user's rights once. Without those to look there is nothing to check; the others are a finding.
func (j *Job) authorize(ctx context.Context) error {
	if j.access != nil {
		return nil
	}
	access, err := j.Tools.Cluster.Access(ctx, Rights())
	if err != nil {
		return err
	}
	blind := false
	var denied []cluster.Right
	for _, a := range access {
		if !a.Allowed {
			denied = append(denied, a.Right)
			blind = blind || a.Right.Verb == "list" && a.Right.Group != "storage.k8s.io" || a.Right.Resource == "migrations"
		}
	}
	if blind {
		return &cluster.DeniedError{Rights: denied}
	}
	j.access = access
	return nil
}
