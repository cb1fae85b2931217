package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
)

func named(name string, owner ...metav1.OwnerReference) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), OwnerReferences: owner}
}

func by(kind, name string) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(name), Controller: &yes}
}

func owned(name, kind, owner string) corev1.Pod {
	return pod(name, -time.Hour, func(p *corev1.Pod) {
		p.OwnerReferences, p.UID = []metav1.OwnerReference{by(kind, owner)}, types.UID(name)
	})
}

func TestPlan(t *testing.T) {
	partition := int32(1)
	onDelete := appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	mirror := owned("apiserver", "Node", "n1")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	fresh := owned("web-fresh", "ReplicaSet", "web-1")
	fresh.Status.ContainerStatuses[0], fresh.Status.StartTime = running(time.Hour), at(time.Hour)
	covered := pod("guarded", -time.Hour, func(p *corev1.Pod) { p.Labels = map[string]string{"app": "guarded"} })
	guard := func(name string) policyv1.PodDisruptionBudget {
		return policyv1.PodDisruptionBudget{ObjectMeta: named(name), Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}},
		}}
	}
	s := &State{
		Pods: []corev1.Pod{
			owned("web-b", "ReplicaSet", "web-1"), owned("web-a", "ReplicaSet", "web-2"), fresh,
			owned("halted-a", "ReplicaSet", "halted-1"),
			owned("db-0", "StatefulSet", "db"), owned("parted-0", "StatefulSet", "parted"), owned("parted-1", "StatefulSet", "parted"),
			owned("log-x", "DaemonSet", "log"), owned("manual-x", "DaemonSet", "manual"), owned("manual-y", "DaemonSet", "manual"),
			mirror, pod("bare", -time.Hour), owned("work-x", "Job", "work"), owned("canary-x", "ReplicaSet", "canary-1"),
			owned("alone-x", "ReplicaSet", "alone"), owned("lost-x", "ReplicaSet", "lost"), covered,
		},
		ReplicaSets: []metav1.PartialObjectMetadata{
			{ObjectMeta: named("web-1", by("Deployment", "web"))},
			{ObjectMeta: named("web-2", by("Deployment", "web"))},
			{ObjectMeta: named("halted-1", by("Deployment", "halted"))},
			{ObjectMeta: named("alone")},
			{ObjectMeta: named("canary-1", by("Rollout", "canary"))},
		},
		Deployments: []appsv1.Deployment{
			{ObjectMeta: named("web"), Spec: appsv1.DeploymentSpec{
				Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}},
			}},
			{ObjectMeta: named("halted"), Spec: appsv1.DeploymentSpec{Paused: true}},
		},
		StatefulSets: []appsv1.StatefulSet{
			{ObjectMeta: named("db")},
			{ObjectMeta: named("parted"), Spec: appsv1.StatefulSetSpec{UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition},
			}}},
		},
		DaemonSets: []appsv1.DaemonSet{
			{ObjectMeta: named("log")}, {ObjectMeta: named("manual"), Spec: appsv1.DaemonSetSpec{UpdateStrategy: onDelete}},
		},
		Budgets: []policyv1.PodDisruptionBudget{guard("one"), guard("two")},
	}
	c := Changes{KubernetesMovedAt: noon}
	restarts := []string{
		"Deployment shop/web [web-a web-b] map[app:web] at once true", "StatefulSet shop/db [db-0] map[] at once false",
		"DaemonSet shop/log [log-x] map[] at once false", "StatefulSet shop/parted [parted-1] map[] at once false",
	}
	slices.SortFunc(restarts, func(a, b string) int { return strings.Compare(strings.Fields(a)[1], strings.Fields(b)[1]) })
	never := map[string]string{
		"apiserver": "a static pod", "halted-a": "Deployment shop/halted is paused",
	}
	movable := map[string]string{
		"bare": "no owner", "work-x": "Job work has no rollout", "canary-x": "cannot restart its owner, Rollout canary",
		"alone-x": "ReplicaSet alone has no rollout", "lost-x": "cannot restart its owner, ReplicaSet lost",
		"manual-x": "DaemonSet shop/manual has updateStrategy OnDelete", "manual-y": "OnDelete", "parted-0": "in part only",
	}
	for _, tt := range []struct {
		policy   v1alpha1.BarePodsPolicy
		evicted  map[string]string
		reported []map[string]string
	}{
		{v1alpha1.BarePodsReport, nil, []map[string]string{never, movable, {"guarded": "no owner"}}},
		{"", nil, []map[string]string{never, movable, {"guarded": "no owner"}}},
		{v1alpha1.BarePodsEvict, movable, []map[string]string{never, {"guarded": "PodDisruptionBudgets one, two cover it"}}},
	} {
		t.Run("policy "+string(tt.policy), func(t *testing.T) {
			plan := s.Plan(c, tt.policy)
			var got []string
			for _, w := range plan.Restarts {
				got = append(got, fmt.Sprintf("%s %v %v at once %v", w, w.Stale, w.PodLabels, w.AllAtOnce))
			}
			if !slices.Equal(got, restarts) {
				t.Errorf("restarts %q", got)
			}
			if len(plan.Evictions) != len(tt.evicted) {
				t.Errorf("%d evictions", len(plan.Evictions))
			}
			for _, p := range plan.Evictions {
				if tt.evicted[p.Name] == "" {
					t.Errorf("%s is evicted", p.Name)
				}
			}
			want := map[string]string{}
			for _, m := range tt.reported {
				for k, v := range m {
					want[k] = v
				}
			}
			for _, r := range plan.Reported {
				if reason := want[r.Pod.Name]; reason == "" || !strings.Contains(r.Reason, reason) || r.Node != "n1" ||
					len(r.Carries) != 1 {
					t.Errorf("reported %+v, want %q", r, reason)
				}
				delete(want, r.Pod.Name)
			}
			if len(want) > 0 {
				t.Errorf("not reported: %v", want)
			}
		})
	}
	if left := s.Left(c); len(left) != len(s.Pods)-1 {
		t.Errorf("left %d of %d", len(left), len(s.Pods))
	}
	if left := s.Left(Changes{}); len(left) != 0 {
		t.Errorf("without changes: %v", left)
	}
}

func TestPartitionCountsFromFirstOrdinal(t *testing.T) {
	partition := int32(2)
	a := statefulSetAdapter{&appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{
		Ordinals: &appsv1.StatefulSetOrdinals{Start: 5},
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition},
		},
	}}}
	for name, want := range map[string]bool{"db-5": false, "db-6": false, "db-7": true, "db-10": true} {
		p := pod(name, 0)
		if a.renews(&p) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestRounds(t *testing.T) {
	pods := []corev1.Pod{
		owned("a-1", "DaemonSet", "a"), owned("a-2", "DaemonSet", "a"), owned("a-3", "DaemonSet", "a"),
		owned("b-1", "DaemonSet", "b"), owned("b-2", "DaemonSet", "b"), pod("bare-1", 0), pod("bare-2", 0),
	}
	var got []string
	for _, round := range Rounds(pods) {
		var all []string
		for _, p := range round {
			all = append(all, p.Name)
		}
		got = append(got, strings.Join(all, " "))
	}
	if want := []string{"a-1 b-1 bare-1 bare-2", "a-2 b-2", "a-3"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if Rounds(nil) != nil {
		t.Error("rounds of nothing")
	}
}

// TestPlanOfPodsThatWereTaken: a pod that an earlier run of the migration has taken from its
// Deployment is brought to its end, whatever it carries; not those of other migrations, nor where
// the Deployment is gone.
func TestPlanOfPodsThatWereTaken(t *testing.T) {
	taken := func(name, migration, from string) corev1.Pod {
		return slimPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace:   "shop",
			Name:        name,
			Labels:      map[string]string{v1alpha1.LabelRole: v1alpha1.RoleLeaving, v1alpha1.LabelMigration: migration},
			Annotations: map[string]string{v1alpha1.AnnotationLeaving: `{"owner":{"kind":"Deployment","name":"web","uid":"` + from + `"}}`},
		}})
	}
	for name, tt := range map[string]struct {
		pod  corev1.Pod
		want bool
	}{
		"of this migration":       {taken("web-a", "m", "web"), true},
		"of another":              {taken("web-a", "n", "web"), false},
		"of a Deployment no more": {taken("web-a", "m", "another"), false},
		"of no Deployment":        {pod("web-a", -time.Hour), false},
	} {
		s := &State{
			Pods: []corev1.Pod{
				tt.pod,
			},
			Deployments: []appsv1.Deployment{{ObjectMeta: named("web"), Status: appsv1.DeploymentStatus{Replicas: 0}}},
		}
		c := Changes{Migration: "m"}
		plan := s.Plan(c, v1alpha1.BarePodsEvict)
		if found := len(plan.Restarts) == 1 && plan.Restarts[0].Leaving && plan.Restarts[0].Unfinished == ""; found != tt.want {
			t.Errorf("%s: planned %+v", name, plan)
		}
		if s.AnyLeaving(c) != tt.want || len(plan.Evictions)+len(plan.Reported) > 0 {
			t.Errorf("%s: planned %+v", name, plan)
		}
	}
}

// TestWishes: owners say how their workloads are restarted, and restarts that were undone are not
// tried again.
func TestWishes(t *testing.T) {
	wishing := func(name, wish string) appsv1.StatefulSet {
		set := appsv1.StatefulSet{ObjectMeta: named(name)}
		if wish != "" {
			set.Annotations = map[string]string{v1alpha1.AnnotationRestart: wish}
		}
		return set
	}
	s := &State{
		Pods: []corev1.Pod{
			owned("a-0", "StatefulSet", "a"), owned("b-0", "StatefulSet", "b"), owned("c-0", "StatefulSet", "c"), owned("d-0", "StatefulSet", "d"),
		},
		StatefulSets: []appsv1.StatefulSet{
			wishing("a", ""), wishing("b", v1alpha1.RestartPods), wishing("c", v1alpha1.RestartNever), wishing("d", ""),
		},
	}
	s.KnowTakenBack([]v1alpha1.TakenBackStatus{{UID: "d", By: "x"}})
	plan := s.Plan(Changes{KubernetesMovedAt: noon}, v1alpha1.BarePodsEvict)
	var got []string
	for i := range plan.Restarts {
		w := &plan.Restarts[i]
		got = append(got, fmt.Sprintf("%s: one by one %t, taken back %t", w.Name, w.ByPods != "", w.TakenBack))
	}
	want := []string{"a: one by one false, taken back false", "b: one by one true, taken back false", "d: one by one true, taken back true"}
	if !slices.Equal(got, want) {
		t.Errorf("it restarts %q, want %q", got, want)
	}
	if len(plan.Reported) != 1 || !strings.Contains(plan.Reported[0].Reason, "StatefulSet shop/c is left to its owner") {
		t.Errorf("left: %+v", plan.Reported)
	}
}
