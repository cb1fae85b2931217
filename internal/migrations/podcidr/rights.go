package podcidr

import (
	"context"
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/references"
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

// NodeRights are what is needed beside Rights where Nodes carry the ranges. deploy/rbac-pod-cidr-nodes.yaml grants exactly
// these.
func NodeRights() []cluster.Right {
	return slices.Concat(
		cluster.Grant("", "nodes", "", "get create patch delete"),
		cluster.Grant("", "configmaps", "", "get update"),
		cluster.Grant("", "pods", "", "patch"),
		cluster.Grant("", "events", "", "list"),
		cluster.Grant("coordination.k8s.io", "leases", "", "patch"),
		cluster.Grant("storage.k8s.io", "csinodes", "", "get patch"),
		cluster.Grant("discovery.k8s.io", "endpointslices", "", "list"),
	)
}

// Rights are what a user needs. deploy/rbac-pod-cidr.yaml grants exactly these, and those that agents need.
func Rights() []cluster.Right { return append(workRights(), lookRights()...) }

// authorize asks for the user's rights once. Without those to look there is nothing to check; the others are a finding.
func (j *Job) authorize(ctx context.Context) (err error) {
	if j.access != nil {
		return nil
	}
	work := workRights()
	j.access, err = j.Tools.Cluster.Authorize(ctx, append(work, j.agents().Rights()...), func(r cluster.Right) bool {
		return slices.Contains(work, r) && (r.Verb == "list" || r.Resource == "migrations")
	})
	return err
}

// input reads what checks look at beside the survey. Only a cluster whose Nodes carry the ranges needs rights on them.
func (j *Job) input(ctx context.Context, s *Survey) (Input, error) {
	in := Input{Survey: s, Live: cluster.Live{Access: j.access}}
	ranges := &networkingv1.ServiceCIDRList{}
	err := j.Tools.Cluster.List(ctx, ranges)
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return in, fmt.Errorf("listing servicecidrs: %w", err)
	}
	in.ServiceCIDRs = ranges.Items
	scanner, err := references.New(s.Spec.From, s.Spec.To, nil)
	if err != nil {
		return in, fmt.Errorf("looking for old ranges: %w", err)
	}
	if s.OnNodes() {
		access, err := j.Tools.Cluster.Access(ctx, NodeRights())
		if err != nil {
			return in, err
		}
		in.Live.Access = slices.Concat(j.access, access)
	}
	in.Live.Inspection, err = j.Tools.Cluster.References(ctx, scanner)
	return in, err
}
