package mirror

import (
	"slices"

	"github.com/replumb/replumb/internal/kube/cluster"
)

// Rights are what a user needs in the source. deploy/rbac-mirror.yaml grants exactly these.
func Rights() []cluster.Right {
	return slices.Concat(
		cluster.Grant("*", "*", "", "get list watch"),
		cluster.Grant("cert-manager.io", "certificates", "", "patch"),
		cluster.Grant("networking.k8s.io", "ingresses", "", "patch"),
		cluster.Grant("apps", "deployments", "", "patch"),
		cluster.Grant("apps", "statefulsets", "", "patch"),
		cluster.Grant("batch", "cronjobs", "", "patch"),
		cluster.Grant("admissionregistration.k8s.io", "validatingadmissionpolicies", "", "create update delete"),
		cluster.Grant("admissionregistration.k8s.io", "validatingadmissionpolicybindings", "", "create update delete"),
		cluster.Grant("", "services", "", "patch"),
		cluster.Grant("", "namespaces", "", "create delete"),
		cluster.Grant("", "configmaps", "", "list create update delete"),
		cluster.Grant("", "events", "", "create"),
		cluster.Grant("coordination.k8s.io", "leases", "", "create update delete"),
		cluster.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "create update"),
		cluster.Grant("replumb.dev", "migrations", "", "create update"),
		cluster.Grant("replumb.dev", "migrations", "status", "update"),
	)
}

// TargetRights are what a user needs in the target: objects of every kind are made there, roles and bindings among them.
func TargetRights() []cluster.Right {
	return cluster.Grant("*", "*", "", "get list watch create patch delete")
}

// toLook reports whether a right is needed to look: without it there is nothing to check.
func toLook(r cluster.Right) bool { return r.Verb == "list" || r.Verb == "get" }
