package agentset

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration/incluster"
)

// View reads what there is to see of the agents.
func (s *Set) View(ctx context.Context) (View, error) {
	v := View{From: s.now()}
	nodes, reports := &corev1.NodeList{}, &v1alpha1.NodeReportList{}
	if err := s.Cluster.List(ctx, nodes); err != nil {
		return v, fmt.Errorf("listing nodes: %w", err)
	}
	if err := s.Cluster.List(ctx, reports); client.IgnoreNotFound(err) != nil {
		return v, fmt.Errorf("listing nodereports: %w", err)
	}
	var err error
	if v.Pods, err = s.pods(ctx); err != nil {
		return v, err
	}
	sets, err := s.sets(ctx)
	if err != nil {
		return v, err
	}
	v.Nodes, v.Reports, v.Sets = nodes.Items, reports.Items, map[string]string{}
	for i := range sets {
		if sets[i].DeletionTimestamp.IsZero() {
			v.Sets[sets[i].Name] = sets[i].Spec.Template.Annotations[incluster.TemplateAnnotation]
		}
	}
	if v.incomplete() {
		if v.News, err = s.news(ctx, sets); err != nil {
			return v, err
		}
	}
	v.Until = s.now()
	return v, nil
}

// ours selects what this migration has in replumb's namespace in one of some roles.
func (s *Set) ours(roles ...string) *client.ListOptions {
	want := labels.SelectorFromSet(labels.Set{v1alpha1.LabelMigration: s.Migration})
	in, err := labels.NewRequirement(v1alpha1.LabelRole, selection.In, roles)
	if err != nil {
		return &client.ListOptions{LabelSelector: labels.Nothing()} // of roles that are no labels there are no objects
	}
	return &client.ListOptions{Namespace: v1alpha1.SystemNamespace, LabelSelector: want.Add(*in)}
}

func (s *Set) pods(ctx context.Context) ([]corev1.Pod, error) {
	return s.podsOf(ctx, v1alpha1.RoleAgent, v1alpha1.RoleProbe)
}

// everyPod are those of agents, and those that are only called.
func (s *Set) everyPod(ctx context.Context) ([]corev1.Pod, error) {
	return s.podsOf(ctx, v1alpha1.RoleAgent, v1alpha1.RoleProbe, v1alpha1.RoleSingle)
}

func (s *Set) podsOf(ctx context.Context, roles ...string) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := s.Cluster.List(ctx, all, s.ours(roles...)); err != nil {
		return nil, fmt.Errorf("listing the pods of agents: %w", err)
	}
	return all.Items, nil
}

// deployment is that behind the Service with a single endpoint; nil if there is none of this migration.
func (s *Set) deployment(ctx context.Context) (*appsv1.Deployment, error) {
	if !s.services() {
		return nil, nil
	}
	d := &appsv1.Deployment{}
	err := s.Cluster.Get(ctx, client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: Single}, d)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("deployment %s/%s: %w", v1alpha1.SystemNamespace, Single, err)
	}
	if d.Name == "" || d.Labels[v1alpha1.LabelMigration] != s.Migration { // not found, or another's
		return nil, nil
	}
	return d, nil
}

func (s *Set) sets(ctx context.Context) ([]appsv1.DaemonSet, error) {
	all := &appsv1.DaemonSetList{}
	if err := s.Cluster.List(ctx, all, s.ours(v1alpha1.RoleAgent, v1alpha1.RoleProbe)); err != nil {
		return nil, fmt.Errorf("listing the daemonsets of agents: %w", err)
	}
	return all.Items, nil
}

// incomplete reports whether a pod is missing or has not started, which events may tell more about.
func (v *View) incomplete() bool {
	seen := newIndex(v)
	for i := range v.Nodes {
		for _, o := range Origins(&v.Nodes[i]) {
			if p := seen.pods[agentKey{v.Nodes[i].Name, o}]; p == nil || p.Status.Phase == corev1.PodPending {
				return true
			}
		}
	}
	return false
}

// news is the latest event of every pod of agents, and the latest warning of every DaemonSet.
func (s *Set) news(ctx context.Context, sets []appsv1.DaemonSet) (map[string]string, error) {
	return incluster.News(ctx, s.Cluster, func(of *corev1.ObjectReference) bool {
		return slices.ContainsFunc(sets, func(d appsv1.DaemonSet) bool { return d.UID == of.UID }) // not one before it
	})
}

// reportingStep waits until both agents of every node that is ready report.
type reportingStep struct {
	set  *Set
	note string
}

var (
	_ engine.Waiter = (*reportingStep)(nil)
	_ engine.Timed  = (*reportingStep)(nil)
	_ engine.Noter  = (*reportingStep)(nil)
)

func (*reportingStep) ID() string                                  { return "agents/reporting" }
func (*reportingStep) Title() string                               { return "Verify that agents report from every ready node" }
func (*reportingStep) Waits()                                      {}
func (s *reportingStep) Deadline() time.Duration                   { return s.set.wait() }
func (s *reportingStep) Note() string                              { return s.note }
func (*reportingStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (*reportingStep) Do(context.Context) error                    { return nil }

func (s *reportingStep) Verify(ctx context.Context) error {
	o, err := s.set.Reporting(ctx)
	if err != nil {
		return err
	}
	if s.note = o.Note(); len(o.Missing) > 0 {
		return engine.NotYet("%w", &SilentError{Missing: o.Missing})
	}
	return nil
}
