package podcidr

import (
	"context"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/replumb/replumb/internal/cluster"
	"github.com/replumb/replumb/internal/references"
)

type right struct{ group, resource, subresource, verbs string }

// workRights are everything that apply, finish and rollback need.
func workRights() []cluster.Right {
	return spread([]right{
		{"", "nodes", "", "list"},
		{"", "namespaces", "", "get list create delete"},
		{"", "services", "", "get"},
		{"", "configmaps", "", "get list create update delete"},
		{"", "pods", "", "get list create delete deletecollection"},
		{"", "pods", "eviction", "create"},
		{"apps", "deployments", "", "get list watch patch"},
		{"apps", "statefulsets", "", "get list watch patch"},
		{"apps", "daemonsets", "", "get list watch create patch delete"},
		{"apps", "replicasets", "", "get list"},
		{"batch", "jobs", "", "get list"},
		{"policy", "poddisruptionbudgets", "", "list"},
		{"coordination.k8s.io", "leases", "", "get create update delete"},
		{"networking.k8s.io", "networkpolicies", "", "create deletecollection"},
		{"crd.projectcalico.org", "ippools", "", "get list create patch delete"},
		{"crd.projectcalico.org", "ipamblocks", "", "get list update delete"},
		{"crd.projectcalico.org", "blockaffinities", "", "get list update delete"},
		{"crd.projectcalico.org", "ipamhandles", "", "get list update delete"},
		{"crd.projectcalico.org", "ipreservations", "", "get list create patch delete"},
		{"crd.projectcalico.org", "clusterinformations", "", "get list"},
		{"apiextensions.k8s.io", "customresourcedefinitions", "", "get create update"},
		{"replumb.dev", "migrations", "", "get list create update"},
		{"replumb.dev", "migrations", "status", "update"},
	})
}

// lookRights are for what checks look through (cluster.References), and for what is a courtesy.
func lookRights() []cluster.Right {
	return spread([]right{
		{"", "events", "", "create"},
		{"", "persistentvolumes", "", "list"},
		{"", "services", "", "list"},
		{"batch", "cronjobs", "", "list"},
		{"networking.k8s.io", "networkpolicies", "", "list"},
		{"networking.k8s.io", "servicecidrs", "", "list"},
		{"admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "list"},
		{"admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "list"},
		{"admissionregistration.k8s.io", "validatingadmissionpolicies", "", "list"},
		{"apiextensions.k8s.io", "customresourcedefinitions", "", "list"},
		{"crd.projectcalico.org", "felixconfigurations", "", "get"},
		{"operator.tigera.io", "installations", "", "list"},
	})
}

// NodeRights are what is needed beside Rights where Nodes carry the ranges. deploy/rbac-pod-cidr-nodes.yaml grants exactly
// these.
func NodeRights() []cluster.Right {
	return spread([]right{
		{"", "nodes", "", "get create patch delete"},
		{"", "configmaps", "", "get update"},
		{"", "pods", "", "patch"},
		{"", "events", "", "list"},
		{"coordination.k8s.io", "leases", "", "patch"},
		{"storage.k8s.io", "csinodes", "", "get patch"},
		{"discovery.k8s.io", "endpointslices", "", "list"},
	})
}

// Rights are what a user needs. deploy/rbac-pod-cidr.yaml grants exactly these, and those that agents need.
func Rights() []cluster.Right { return append(workRights(), lookRights()...) }

func spread(rights []right) []cluster.Right {
	var all []cluster.Right
	for _, r := range rights {
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
	work := workRights()
	access, err := j.Tools.Cluster.Access(ctx, unique(append(work, j.agents().Rights()...)))
	if err != nil {
		return err
	}
	blind := false
	var denied []cluster.Right
	for _, a := range access {
		if !a.Allowed {
			denied = append(denied, a.Right)
			blind = blind || slices.Contains(work, a.Right) && (a.Right.Verb == "list" || a.Right.Resource == "migrations")
		}
	}
	if blind {
		return &cluster.DeniedError{Rights: denied}
	}
	j.access = access
	return nil
}

// unique leaves out what is there already.
func unique(all []cluster.Right) []cluster.Right {
	var out []cluster.Right
	for _, r := range all {
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// authorizeNodes asks for the rights that only a cluster needs whose Nodes carry the ranges.
func (j *Job) authorizeNodes(ctx context.Context, snap *cluster.Snapshot) error {
	access, err := j.Tools.Cluster.Access(ctx, NodeRights())
	snap.Access = append(slices.Clone(snap.Access), access...)
	return err
}

// snapshot reads what checks look at beside the survey.
func (j *Job) snapshot(ctx context.Context, s *Survey) (*cluster.Snapshot, error) {
	snap := &cluster.Snapshot{Access: j.access}
	ranges := &networkingv1.ServiceCIDRList{}
	err := j.Tools.Cluster.List(ctx, ranges)
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("listing servicecidrs: %w", err)
	}
	snap.ServiceCIDRs = ranges.Items
	scanner, err := references.New(s.Spec.From, s.Spec.To, nil)
	if err != nil {
		return nil, fmt.Errorf("looking for old ranges: %w", err)
	}
	if s.OnNodes() {
		if err := j.authorizeNodes(ctx, snap); err != nil {
			return nil, err
		}
	}
	return snap, j.Tools.Cluster.References(ctx, scanner, snap)
}
