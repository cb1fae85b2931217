//go:build apiserver && long

package rollout

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

func TestEvictBarePod(t *testing.T) {
	f := setup(t)
	p := f.pod("bare", 2*time.Hour)
	budget := f.budget(0)
	step := f.evict()
	f.state(step, engine.Pending)
	ended := f.start(t.Context(), step)
	f.waiting("disruption budget guard") // the API server's own words
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(budget), budget))
	f.allow(budget, 1)
	f.must(<-ended)
	if err := f.Get(t.Context(), client.ObjectKeyFromObject(p), p); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the pod is still there: %v", err)
	}
	f.state(step, engine.Done)
	f.pod("bare", 2*time.Hour) // recreated later
	f.state(step, engine.Done)
	f.must(step.Do(t.Context()))
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(p), p))
}

func TestEvictWaitsForReplacement(t *testing.T) {
	f := setup(t)
	rs := f.replicaSet("alone")
	f.pod("alone-old", 2*time.Hour, controlledBy("ReplicaSet", rs))
	step := f.evict()
	ended := f.start(t.Context(), step)
	f.waiting("ReplicaSet alone has 0 of 1 pods ready")
	f.state(step, engine.Pending)
	f.pod("alone-new", 0, controlledBy("ReplicaSet", rs))
	f.must(<-ended)
	f.state(step, engine.Done)
}

func TestEvictedPodEndsSlowly(t *testing.T) {
	f := setup(t)
	p := &corev1.Pod{ObjectMeta: f.meta("slow"), Spec: template().Spec}
	p.Spec.NodeName = "n1" // so that a kubelet has to let it go
	f.must(f.Create(t.Context(), p))
	since := metav1.NewTime(time.Now().Add(-2 * time.Hour))
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &since, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "c", Image: "i", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}},
	}}}
	f.must(f.Status().Update(t.Context(), p))
	ended := f.start(t.Context(), f.evict())
	f.waiting("has not ended yet")
	f.remove(p)
	f.must(<-ended)
}

func TestEvictOwners(t *testing.T) {
	f := setup(t)
	yes := true
	job := &batchv1.Job{ObjectMeta: f.meta("work"), Spec: batchv1.JobSpec{Template: template()}}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	f.must(f.Create(t.Context(), job))
	gone := controlledBy("ReplicaSet", &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "gone", UID: "x"}})
	ofJob := controlledBy("Job", job)
	ofJob.APIVersion = "batch/v1"
	foreign := metav1.OwnerReference{APIVersion: "x.io/v1", Kind: "ReplicaSet", Name: "x", UID: "y", Controller: &yes}
	for _, tt := range []struct {
		name  string
		owner metav1.OwnerReference
		want  string
	}{
		{"gone", gone, ""},
		{"job", ofJob, "Job work has 0 of 1"},
		{"foreign", foreign, "ReplicaSet x has 0 of 1"},
	} {
		p := pod("p", 0)
		p.Namespace, p.Name, p.OwnerReferences = f.ns, tt.name, []metav1.OwnerReference{tt.owner}
		err := f.tools.Evict(&p, f.changes).Verify(t.Context())
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !engine.Retryable(err)) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if err := f.Patch(t.Context(), job, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":true}}`))); err != nil {
		t.Fatal(err)
	}
	p := pod("p", 0)
	p.Namespace, p.Name, p.OwnerReferences = f.ns, "suspended", []metav1.OwnerReference{ofJob}
	f.must(f.tools.Evict(&p, f.changes).Verify(t.Context()))
}

func TestLoadGoesThroughPages(t *testing.T) {
	f := setup(t)
	seen := map[string]bool{}
	for i := range 3 {
		f.pod(fmt.Sprintf("p%d", i), time.Hour)
	}
	// As each does, with pages of one.
	err := each(t.Context(), f.tools.Client, &corev1.PodList{}, func(p *corev1.Pod) { seen[p.Name] = true },
		client.InNamespace(f.ns), client.Limit(1))
	if err != nil || len(seen) != 3 {
		t.Errorf("saw %v, %v", seen, err)
	}
	for _, p := range f.load().Pods {
		if len(p.Status.ContainerStatuses) != 1 || p.ManagedFields != nil || p.Spec.Containers != nil {
			t.Errorf("kept %+v", p)
		}
	}
}
