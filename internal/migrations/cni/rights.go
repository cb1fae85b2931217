package cni

import (
	"slices"

	"github.com/replumb/replumb/internal/kube/cluster"
)

// Rights are what a user needs whichever networks it is about. deploy/rbac-cni.yaml grants exactly these. What the manifests hold
// beyond them, such as objects of kinds of their own, takes rights to these; no one can give roles more rights than they have.
func Rights() []cluster.Right {
	return slices.Concat(
		cluster.Grant("", "nodes", "", "list"),
		cluster.Grant("", "namespaces", "", "get create patch delete"),
		cluster.Grant("", "configmaps", "", "get list create update patch delete"),
		cluster.Grant("", "secrets", "", "list create delete"),
		cluster.Grant("", "serviceaccounts", "", "get create patch delete"),
		cluster.Grant("", "services", "", "get create patch delete deletecollection"),
		cluster.Grant("", "events", "", "create"),
		cluster.Grant("", "pods", "", "get list create delete deletecollection"),
		cluster.Grant("apps", "daemonsets", "", "get list create patch delete"),
		cluster.Grant("apps", "deployments", "", "get list create patch delete"),
		cluster.Grant("policy", "poddisruptionbudgets", "", "get create patch delete"),
		cluster.Grant("coordination.k8s.io", "leases", "", "get create update delete"),
		cluster.Grant("networking.k8s.io", "networkpolicies", "", "list create deletecollection"),
		cluster.Grant("networking.k8s.io", "servicecidrs", "", "list"),
		cluster.Grant("rbac.authorization.k8s.io", "clusterroles", "", "get create patch delete"),
		cluster.Grant("rbac.authorization.k8s.io", "clusterrolebindings", "", "get create patch delete"),
		cluster.Grant("admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "list"),
		cluster.Grant("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "list"),
		cluster.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "get create update patch delete"),
		cluster.Grant(calicoGroup, "ippools", "", "get list create patch delete"),
		cluster.Grant(calicoGroup, "networkpolicies", "", "list"),
		cluster.Grant(calicoGroup, "globalnetworkpolicies", "", "list"),
		cluster.Grant("replumb.dev", "migrations", "", "get list create update"),
		cluster.Grant("replumb.dev", "migrations", "status", "update"),
	)
}

// toLook reports whether a right is needed to look: without it there is nothing to check.
func toLook(r cluster.Right) bool {
	return (r.Verb == "list" || r.Verb == "get") && r.Resource != "secrets" && r.Resource != "servicecidrs"
}
