package htmlreport

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// Input is what a report is made of.
type Input struct {
	Migration *v1alpha1.Migration
	// Words are what it says of the Migration.
	Words migration.Report
	// Cluster is the one that it is in.
	Cluster engine.Identity
	History *journal.History
	// Services are those that the migration is about, as they are now; for those that moved, what
	// the journal has comes first.
	Services []Service
	// Counts are those of status; nil for those that the latest run has recorded.
	Counts *v1alpha1.Counts
	// Reports are those of the nodes, as long as there are agents.
	Reports []v1alpha1.NodeReport
	// APIServer is its version now, Kubelets how many nodes have which.
	APIServer string
	Kubelets  map[string]int
	Now       time.Time
	// Unread says what could not be read, and why.
	Unread []string
}

// Collect reads what a report is made of. Parts that the user may not read are left out
// and named.
func Collect(ctx context.Context, c *cluster.Cluster, m *v1alpha1.Migration, words migration.Report) (Input, error) {
	in := Input{Migration: m, Words: words, Now: time.Now().UTC(), Kubelets: map[string]int{}}
	var err error
	if in.Cluster, err = c.Identity(ctx); err != nil && !apierrors.IsForbidden(err) {
		return in, err
	}
	if in.History, err = journal.Load(ctx, c, m.Name); err != nil {
		return in, err
	}
	v, err := c.ServerVersion(ctx)
	if err != nil {
		return in, err
	}
	in.APIServer = v.GitVersion
	reports, nodes, services := &v1alpha1.NodeReportList{}, &corev1.NodeList{}, &corev1.ServiceList{}
	for what, err := range map[string]error{
		"reports of nodes": c.List(ctx, reports), "nodes": c.List(ctx, nodes), "services": c.List(ctx, services),
	} {
		switch {
		case apierrors.IsForbidden(err):
			in.Unread = append(in.Unread, fmt.Sprintf("%s could not be read: you have no right to", what))
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err): // no agent has ever run here
		case err != nil:
			return in, fmt.Errorf("listing %s: %w", what, err)
		}
	}
	slices.Sort(in.Unread)
	for i := range reports.Items {
		if reports.Items[i].Labels[v1alpha1.LabelMigration] == m.Name {
			in.Reports = append(in.Reports, reports.Items[i])
		}
	}
	for i := range nodes.Items {
		in.Kubelets[nodes.Items[i].Status.NodeInfo.KubeletVersion]++
	}
	in.Services = annotated(services.Items, m.Name)
	return in, nil
}

// annotated are the Services that say themselves from where to where they go.
func annotated(all []corev1.Service, name string) []Service {
	var out []Service
	for i := range all {
		svc := &all[i]
		a := svc.Annotations
		if a[v1alpha1.LabelMigration] != name || a[v1alpha1.AnnotationOldIP] == "" || svc.Labels[v1alpha1.LabelRole] != "" {
			continue
		}
		s := Service{Name: svc.Namespace + "/" + svc.Name, From: a[v1alpha1.AnnotationOldIP], To: a[v1alpha1.AnnotationTargetIP]}
		arrived := svc.Spec.ClusterIP == s.To || slices.Contains(svc.Spec.ClusterIPs, s.To)
		if at, err := time.Parse(time.RFC3339, a[v1alpha1.AnnotationMovedAt]); err == nil && arrived {
			s.At, s.State = &at, stateMoved
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Service) int { return strings.Compare(a.Name, b.Name) })
	return out
}
