package podcidr

import (
	"context"
	"slices"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/podcidr/noderanges"
)

// workRights are everything that apply, finish and rollback need.
func workRights() []cluster.Right {
	return slices.Concat(
		cluster.Grant("", "nodes", "", "list"),
		cluster.Grant("", "namespaces", "", "get list create delete"),
		cluster.Grant("", "services", "", "get"),
		cluster.Grant("", "configmaps", "", "get list create update delete"),
		cluster.Grant("", "pods", "", "get list create delete deletecollection"),
		cluster.Grant("", "pods", "eviction", "create"),
		cluster.Grant("apps", "deployments", "", "get list watch patch"),
		cluster.Grant("apps", "statefulsets", "", "get list watch patch"),
		cluster.Grant("apps", "daemonsets", "", "get list watch create patch delete"),
		cluster.Grant("apps", "replicasets", "", "get list"),
		cluster.Grant("batch", "jobs", "", "get list"),
		cluster.Grant("policy", "poddisruptionbudgets", "", "list"),
		cluster.Grant("coordination.k8s.io", "leases", "", "get create update delete"),
		cluster.Grant("networking.k8s.io", "networkpolicies", "", "create deletecollection"),
		cluster.Grant("crd.projectcalico.org", "ippools", "", "get list create patch delete"),
		cluster.Grant("crd.projectcalico.org", "ipamblocks", "", "get list update delete"),
		cluster.Grant("crd.projectcalico.org", "blockaffinities", "", "get list update delete"),
		cluster.Grant("crd.projectcalico.org", "ipamhandles", "", "get list update delete"),
		cluster.Grant("crd.projectcalico.org", "ipreservations", "", "get list create patch delete"),
		cluster.Grant("crd.projectcalico.org", "clusterinformations", "", "get list"),
		cluster.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "get create update"),
		cluster.Grant("replumb.dev", "migrations", "", "get list create update"),
		cluster.Grant("replumb.dev", "migrations", "status", "update"),
	)
}

// lookRights are for what checks look through (cluster.References), and for what is a courtesy.
func lookRights() []cluster.Right {
	return slices.Concat(
		cluster.Grant("", "events", "", "create"),
		cluster.Grant("", "persistentvolumes", "", "list"),
		cluster.Grant("", "services", "", "list"),
		cluster.Grant("batch", "cronjobs", "", "list"),
		cluster.Grant("networking.k8s.io", "networkpolicies", "", "list"),
		cluster.Grant("networking.k8s.io", "servicecidrs", "", "list"),
		cluster.Grant("admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "list"),
		cluster.Grant("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "list"),
		cluster.Grant("admissionregistration.k8s.io", "validatingadmissionpolicies", "", "list"),
		cluster.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "list"),
		cluster.Grant("crd.projectcalico.org", "felixconfigurations", "", "get"),
		cluster.Grant("operator.tigera.io", "installations", "", "list"),
	)
}

// Rights are what a user needs. deploy/rbac-pod-cidr.yaml grants exactly these, and those that agents need.
func Rights() []cluster.Right { return append(workRights(), lookRights()...) }

// NodeRights are what is needed beside Rights where Nodes carry the ranges.
func NodeRights() []cluster.Right { return noderanges.Rights() }

// authorize asks for the user's rights once.
func (j *Job) authorize(ctx context.Context) error {
	work := workRights()
	return j.Authorize(ctx, j.Tools.Cluster, append(work, j.agents().Rights()...), func(r cluster.Right) bool {
		return slices.Contains(work, r) && (r.Verb == "list" || r.Resource == "migrations")
	})
}
