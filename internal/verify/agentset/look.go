package agentset

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/workload"
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
			v.Sets[sets[i].Name] = sets[i].Spec.Template.Annotations[workload.TemplateAnnotation]
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

func (s *Set) everyPod(ctx context.Context) ([]corev1.Pod, error) {
	return s.podsOf(ctx, v1alpha1.RoleAgent, v1alpha1.RoleProbe, v1alpha1.RoleSingle)
}

func (s *Set) podsOf(ctx context.Context, roles ...string) ([]corev1.Pod, error) {
	return workload.Pods(ctx, s.Cluster, "agents", s.ours(roles...))
}

// deployment is that behind the Service with a single endpoint; nil if there is none of this
// migration.
func (s *Set) deployment(ctx context.Context) (*appsv1.Deployment, error) {
	if !s.services() {
		return nil, nil
	}
	d, key := &appsv1.Deployment{}, client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: Single}
	there, err := workload.Get(ctx, s.Cluster, "deployment "+key.String(), key, d)
	if err != nil || !there || d.Labels[v1alpha1.LabelMigration] != s.Migration {
		return nil, err
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

func (s *Set) news(ctx context.Context, sets []appsv1.DaemonSet) (map[string]string, error) {
	return workload.News(ctx, s.Cluster, func(of *corev1.ObjectReference) bool {
		return slices.ContainsFunc(sets, func(d appsv1.DaemonSet) bool { return d.UID == of.UID }) // not one before it
	})
}

func (s *Set) reporting() engine.Step {
	note := ""
	return &engine.Wait{
		Name: "agents/reporting", About: "Verify that agents report from every ready node",
		Limit: s.wait(), Again: true, Remark: func() string { return note },
		For: func(ctx context.Context) error {
			o, err := s.Reporting(ctx)
			if err != nil {
				return err
			}
			if note = o.Note(); len(o.Missing) > 0 {
				return engine.NotYet("%w", &SilentError{Missing: o.Missing})
			}
			return nil
		},
	}
}
