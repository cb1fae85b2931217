package mirror

import (
	"context"
	"strings"

	"github.com/replumb/replumb/internal/cluster"
)

type right struct{ group, resource, subresource, verbs string }

// Rights are what a user needs in the source. deploy/rbac-mirror.yaml grants exactly these.
func Rights() []cluster.Right {
	return expand([]right{
		{"*", "*", "", "get list watch"},
		{"cert-manager.io", "certificates", "", "patch"},
		{"networking.k8s.io", "ingresses", "", "patch"},
		{"apps", "deployments", "", "patch"},
		{"apps", "statefulsets", "", "patch"},
		{"batch", "cronjobs", "", "patch"},
		{"admissionregistration.k8s.io", "validatingadmissionpolicies", "", "create update delete"},
		{"admissionregistration.k8s.io", "validatingadmissionpolicybindings", "", "create update delete"},
		{"", "services", "", "patch"},
		{"", "namespaces", "", "create delete"},
		{"", "configmaps", "", "list create update delete"},
		{"", "events", "", "create"},
		{"coordination.k8s.io", "leases", "", "create update delete"},
		{"apiextensions.k8s.io", "customresourcedefinitions", "", "create update"},
		{"replumb.dev", "migrations", "", "create update"},
		{"replumb.dev", "migrations", "status", "update"},
	})
}

// TargetRights are what a user needs in the target: objects of every kind are made there, roles and bindings among them.
func TargetRights() []cluster.Right {
	return expand([]right{{"*", "*", "", "get list watch create patch delete"}})
}

func expand(all []right) []cluster.Right {
	var out []cluster.Right
	for _, r := range all {
		for verb := range strings.FieldsSeq(r.verbs) {
			out = append(out, cluster.Right{Verb: verb, Group: r.group, Resource: r.resource, Subresource: r.subresource})
		}
	}
	return out
}

// authorize asks for the user's rights in the source once. Without those to look there is nothing to check; the others are a finding.
func authorize(ctx context.Context, c *cluster.Cluster, rights []cluster.Right) ([]cluster.AccessAnswer, error) {
	access, err := c.Access(ctx, rights)
	if err != nil {
		return nil, err
	}
	var blind []cluster.Right
	for _, a := range access {
		if !a.Allowed && (a.Right.Verb == "list" || a.Right.Verb == "get") {
			blind = append(blind, a.Right)
		}
	}
	if len(blind) > 0 {
		return nil, &cluster.DeniedError{Rights: blind}
	}
	return access, nil
}
