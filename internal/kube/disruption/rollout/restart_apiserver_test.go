//go:build apiserver && long

package rollout

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

func TestRestartDeployment(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	old := f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d))))
	budget := f.budget(0)
	step := f.restart()
	f.state(step, engine.Pending)

	ended := f.start(t.Context(), step)
	f.waiting("pdb " + f.ns + "/guard allows no disruption now")
	if at := f.restartedAt(d); at != "" {
		t.Fatalf("restarted at %s against the budget", at)
	}
	f.allow(budget, 1)
	f.waiting("its controller has not seen the change")
	if f.restartedAt(d) == "" {
		t.Fatal("not restarted")
	}
	f.complete(d)
	f.waiting("pods with old addresses: web-old")
	f.pod("web-new", 0, controlledBy("ReplicaSet", f.replicaSet("web-2", controlledBy("Deployment", d))))
	f.remove(old)
	f.must(<-ended)
	f.state(step, engine.Done)
	if !slices.ContainsFunc(d.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == v1alpha1.FieldManager && strings.Contains(m.FieldsV1.GetRawString(), v1alpha1.AnnotationRestartedAt)
	}) {
		t.Error("the annotation is not replumb's")
	}
	if plan := f.load().Plan(f.changes, v1alpha1.BarePodsEvict); len(plan.Restarts)+len(plan.Evictions)+len(plan.Reported) > 0 {
		t.Errorf("still to do: %+v", plan)
	}
}

// TestBesideRestartsAndEvictions: what is rolled beside others is rolled just before their pods
// end, and as long as it cannot be, none ends.
func TestBesideRestartsAndEvictions(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d))))
	var calls []string
	refused := true
	f.tools.Beside = func(context.Context) error {
		calls = append(calls, f.restartedAt(d))
		if refused {
			refused = false
			return engine.NotYet("what rolls beside others cannot be reached")
		}
		return nil
	}
	step := f.restart()
	if err := step.Do(t.Context()); err == nil || f.restartedAt(d) != "" {
		t.Errorf("restarted at %q although nothing rolls beside it: %v", f.restartedAt(d), err)
	}
	f.must(step.Do(t.Context()))
	if len(calls) != 2 || calls[1] != "" || f.restartedAt(d) == "" {
		t.Errorf("it was asked to roll after restarts at %q", calls)
	}
	bare := f.pod("bare", 2*time.Hour)
	f.must(f.tools.Evict(bare, f.changes).Do(t.Context()))
	if len(calls) != 3 {
		t.Errorf("it was asked to roll %d times", len(calls))
	}
}

func TestRestartTakesUpWhereKilled(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	old := f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d))))
	ctx, kill := context.WithCancel(t.Context())
	ended := f.start(ctx, f.restart())
	f.waiting("has not seen the change")
	kill()
	if err := <-ended; !errors.Is(err, engine.ErrInterrupted) {
		t.Fatal(err)
	}
	first := f.restartedAt(d)

	// Killed before the controller did anything.
	ended = f.start(t.Context(), f.restart())
	f.waiting("has not seen the change")
	again := f.restart()
	// Killed when the old pods had gone, and the new ones were not there yet.
	f.remove(old)
	f.state(again, engine.Pending)
	f.must(again.Do(t.Context()))
	if now := f.restartedAt(d); now != first || d.Generation != 2 {
		t.Errorf("restarted at %s and again at %s, generation %d", first, now, d.Generation)
	}
	f.complete(d)
	f.must(<-ended)
	f.state(again, engine.Done)

	// A change that came later restarts it again, for it has Changes of its own.
	f.pod("web-new", 0, controlledBy("ReplicaSet", f.replicaSet("web-2", controlledBy("Deployment", d))))
	f.changes.KubernetesMovedAt = time.Now().Add(time.Second)
	later := f.changes.KubernetesMovedAt
	f.tools.Now = func() time.Time { return later }
	if err := f.restart().Do(t.Context()); !engine.Retryable(err) || !strings.Contains(err.Error(), "distinguished from old ones") {
		t.Errorf("in the second of the change: %v", err)
	}
	if now := f.restartedAt(d); now != first {
		t.Errorf("restarted at %s, too early", now)
	}
	f.tools.Now = func() time.Time { return later.Add(time.Second) }
	f.must(f.restart().Do(t.Context()))
	if now := f.restartedAt(d); now == first {
		t.Error("not restarted for the later change")
	}
}

func TestRestartOfDeletedWorkload(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d))))
	step := f.restart()
	ended := f.start(t.Context(), step)
	f.waiting("has not seen the change")
	f.must(f.Delete(t.Context(), d, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	f.must(<-ended)
	f.state(step, engine.Done)
	second := f.deployment() // of the same name
	f.pod("web-second", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-2", controlledBy("Deployment", second))))
	f.state(step, engine.Done)
	f.must(step.Do(t.Context()))
	if at := f.restartedAt(second); at != "" {
		t.Errorf("another deployment was restarted at %s", at)
	}
}

func TestRestartOnlyWaitsForEndingPods(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	rs := f.replicaSet("web-1", controlledBy("Deployment", d))
	p := f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", rs))
	p.Finalizers = []string{"replumb.dev/test"}
	f.must(f.Update(t.Context(), p))
	f.must(f.Delete(t.Context(), p))
	ended := f.start(t.Context(), f.restart())
	f.waiting("pods with old addresses: web-old")
	if at := f.restartedAt(d); at != "" {
		t.Errorf("restarted at %s", at)
	}
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	p.Finalizers = nil
	f.must(f.Update(t.Context(), p))
	f.must(<-ended)
}

func TestRestartLeavesPausedAlone(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d))))
	step := f.restart()
	f.must(f.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":true}}`))))
	if err := step.Do(t.Context()); !engine.Retryable(err) || !strings.Contains(err.Error(), "is paused") {
		t.Errorf("got %v", err)
	}
	if at := f.restartedAt(d); at != "" {
		t.Errorf("restarted at %s", at)
	}
}

func TestRestartAllAtOnceNeedsMoreOfBudget(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	f.must(
		f.Patch(
			t.Context(),
			d,
			client.RawPatch(types.MergePatchType, []byte(`{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`)),
		),
	)
	rs := controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d)))
	f.pod("web-a", 2*time.Hour, rs)
	f.pod("web-b", 2*time.Hour, rs)
	budget := f.budget(1)
	step := f.restart()
	if err := step.Do(t.Context()); !engine.Retryable(err) || !strings.Contains(err.Error(), "stops 2 pods at once") {
		t.Errorf("got %v", err)
	}
	f.allow(budget, 2)
	f.must(step.Do(t.Context()))
	if f.restartedAt(d) == "" {
		t.Error("not restarted")
	}
}

func TestRestartStatefulSetInPart(t *testing.T) {
	f := setup(t)
	two, partition := int32(2), int32(1)
	s := &appsv1.StatefulSet{ObjectMeta: f.meta("db"), Spec: appsv1.StatefulSetSpec{
		Replicas: &two, Selector: selector(), Template: template(),
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
			Type:          appsv1.RollingUpdateStatefulSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition},
		},
	}}
	f.must(f.Create(t.Context(), s))
	f.pod("db-0", 2*time.Hour, controlledBy("StatefulSet", s))
	second := f.pod("db-1", 2*time.Hour, controlledBy("StatefulSet", s))
	ended := f.start(t.Context(), f.restart())
	f.waiting("has not seen the change")
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(s), s))
	s.Status = appsv1.StatefulSetStatus{
		ObservedGeneration: s.Generation,
		Replicas:           2,
		UpdatedReplicas:    1,
		ReadyReplicas:      2,
		AvailableReplicas:  2,
	}
	f.must(f.Status().Update(t.Context(), s))
	f.waiting("old addresses: db-1")
	f.remove(second)
	f.pod("db-1", 0, controlledBy("StatefulSet", s))
	f.must(<-ended)
	plan := f.load().Plan(f.changes, v1alpha1.BarePodsReport)
	if len(plan.Restarts) != 0 || len(plan.Reported) != 1 || plan.Reported[0].Pod.Name != "db-0" {
		t.Errorf("left: %+v", plan)
	}
}

func TestRestartDaemonSet(t *testing.T) {
	f := setup(t)
	d := &appsv1.DaemonSet{ObjectMeta: f.meta("log"), Spec: appsv1.DaemonSetSpec{Selector: selector(), Template: template()}}
	f.must(f.Create(t.Context(), d))
	old := f.pod("log-old", 2*time.Hour, controlledBy("DaemonSet", d))
	ended := f.start(t.Context(), f.restart())
	f.waiting("has not seen the change")
	f.remove(old)
	f.pod("log-new", 0, controlledBy("DaemonSet", d))
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(d), d))
	d.Status = appsv1.DaemonSetStatus{
		ObservedGeneration:     d.Generation,
		DesiredNumberScheduled: 1,
		CurrentNumberScheduled: 1,
		UpdatedNumberScheduled: 1,
		NumberAvailable:        1,
		NumberReady:            1,
	}
	f.must(f.Status().Update(t.Context(), d))
	f.must(<-ended)
}
