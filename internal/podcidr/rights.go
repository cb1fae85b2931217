package podcidr

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/cluster"
	"github.com/replumb/replumb/internal/references"
)

// Rights are everything that apply, finish and rollback need. deploy/rbac.yaml grants exactly these.
func Rights() []cluster.Right {
	var all []cluster.Right
	for _, r := range []struct{ group, resource, subresource, verbs string }{
		{"", "nodes", "", "list"},
		{"", "namespaces", "", "get list create delete"},
		{"", "services", "", "get list"},
		{"", "configmaps", "", "get list create delete"},
		{"", "pods", "", "get list create delete deletecollection"},
		{"", "pods", "eviction", "create"},
		{"apps", "deployments", "", "get list watch patch"},
		{"apps", "statefulsets", "", "get list watch patch"},
		{"apps", "daemonsets", "", "get list watch patch"},
		{"apps", "replicasets", "", "get list"},
		{"batch", "jobs", "", "get list"},
		{"policy", "poddisruptionbudgets", "", "list"},
		{"coordination.k8s.io", "leases", "", "get create update delete"},
		{"networking.k8s.io", "servicecidrs", "", "list"},
		{"networking.k8s.io", "networkpolicies", "", "list create deletecollection"},
		{"crd.projectcalico.org", "ippools", "", "get list create patch delete"},
		{"crd.projectcalico.org", "ipamblocks", "", "list update delete"},
		{"crd.projectcalico.org", "blockaffinities", "", "list update delete"},
		{"crd.projectcalico.org", "ipamhandles", "", "list delete"},
		{"crd.projectcalico.org", "clusterinformations", "", "list"},
		{"operator.tigera.io", "installations", "", "list"},
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

// authorize asks for the user's rights once.
func (j *Job) authorize(ctx context.Context) error {
	if j.access != nil {
		return nil
	}
	access, err := j.Tools.Cluster.Access(ctx, Rights())
	j.access = access
	return err
}

// snapshot reads what checks look at beside the survey.
func (j *Job) snapshot(ctx context.Context, s *Survey) (*cluster.Snapshot, error) {
	snap, err := j.Tools.Cluster.Load(ctx)
	if err != nil {
		return nil, err
	}
	snap.Access = j.access
	scanner, err := references.New(s.Spec.From, s.Spec.To, nil)
	if err != nil {
		return nil, fmt.Errorf("looking for old ranges: %w", err)
	}
	if err := j.Tools.Cluster.References(ctx, scanner, snap); err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	return snap, nil
}
