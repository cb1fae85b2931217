package cni

import (
	"context"
	"strings"

	"github.com/replumb/replumb/internal/cluster"
)

type right struct{ group, resource, subresource, verbs string }

// Rights are what a user needs whichever networks it is about. deploy/rbac-cni.yaml grants exactly these. What the manifests hold
// beyond them, such as objects of kinds of their own, takes rights to these; nobody can give roles more rights than they have.
func Rights() []cluster.Right {
	var all []cluster.Right
	for _, r := range []right{
		{"", "nodes", "", "list"},
		{"", "namespaces", "", "get create patch delete"},
		{"", "configmaps", "", "get list create update patch delete"},
		{"", "secrets", "", "list create delete"},
		{"", "serviceaccounts", "", "get create patch delete"},
		{"", "services", "", "get create patch delete deletecollection"},
		{"", "events", "", "create"},
		{"", "pods", "", "get list create delete deletecollection"},
		{"apps", "daemonsets", "", "get list create patch delete"},
		{"apps", "deployments", "", "get list create patch delete"},
		{"policy", "poddisruptionbudgets", "", "get create patch delete"},
		{"coordination.k8s.io", "leases", "", "get create update delete"},
		{"networking.k8s.io", "networkpolicies", "", "list create deletecollection"},
		{"networking.k8s.io", "servicecidrs", "", "list"},
		{"rbac.authorization.k8s.io", "clusterroles", "", "get create patch delete"},
		{"rbac.authorization.k8s.io", "clusterrolebindings", "", "get create patch delete"},
		{"admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "list"},
		{"admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "list"},
		{"apiextensions.k8s.io", "customresourcedefinitions", "", "get create update patch delete"},
		{calicoGroup, "ippools", "", "get list create patch delete"},
		{calicoGroup, "networkpolicies", "", "list"},
		{calicoGroup, "globalnetworkpolicies", "", "list"},
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
			looks := a.Right.Verb == "list" || a.Right.Verb == "get"
			blind = blind || looks && a.Right.Resource != "secrets" && a.Right.Resource != "servicecidrs"
		}
	}
	if blind {
		return &cluster.DeniedError{Rights: denied}
	}
	j.access = access
	return nil
}
