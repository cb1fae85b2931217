//go:build apiserver && long

package rollout

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// operator owns a StatefulSet whose template it writes anew whenever somebody else has changed it.
type operator struct {
	*fixture
	set   *appsv1.StatefulSet
	made  map[string]*corev1.Pod
	mu    sync.Mutex
	times int
}

// operated is a StatefulSet with two pods of before, and an operator that takes restarts back.
func (f *fixture) operated() *operator {
	f.Helper()
	two := int32(2)
	o := &operator{fixture: f, made: map[string]*corev1.Pod{}}
	o.set = &appsv1.StatefulSet{ObjectMeta: f.meta("db"), Spec: appsv1.StatefulSetSpec{
		Replicas: &two, Selector: selector(), Template: template(),
	}}
	f.must(f.Create(f.Context(), o.set, client.FieldOwner("db-operator")))
	for _, name := range []string{"db-0", "db-1"} {
		o.made[name] = f.pod(name, 2*time.Hour, controlledBy("StatefulSet", o.set))
	}
	f.must(o.reconcile(f.Context()))
	ctx, cancel := context.WithCancel(f.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		for ctx.Err() == nil {
			if err := o.reconcile(ctx); err != nil && ctx.Err() == nil {
				f.Log("the operator:", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	f.Cleanup(func() { cancel(); ended.Wait() })
	return o
}

// reconcile plays the operator, and the controller of StatefulSets, which makes pods anew.
func (o *operator) reconcile(ctx context.Context) error {
	now := &appsv1.StatefulSet{}
	if err := o.Get(ctx, client.ObjectKeyFromObject(o.set), now); err != nil {
		return err
	}
	if len(now.Spec.Template.Annotations) > 0 {
		now.Spec.Template.Annotations = nil
		if err := o.Update(ctx, now, client.FieldOwner("db-operator")); err != nil {
			return client.IgnoreNotFound(conflictIsNone(err))
		}
		o.mu.Lock()
		o.times++
		o.mu.Unlock()
	}
	for name, had := range o.made {
		err := o.Get(ctx, client.ObjectKeyFromObject(had), &corev1.Pod{})
		if err == nil {
			continue
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		o.made[name] = o.pod(name, 0, controlledBy("StatefulSet", o.set))
	}
	now.Status = appsv1.StatefulSetStatus{
		ObservedGeneration: now.Generation, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2, CurrentReplicas: 2,
	}
	return conflictIsNone(o.Status().Update(ctx, now))
}

func conflictIsNone(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (o *operator) tookBack() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.times
}

// TestRestartIsTakenBack: the owner of the template puts it back. The pods are evicted one by one
// then, and the run is told who it was.
func TestRestartIsTakenBack(t *testing.T) {
	f := setup(t)
	f.tools.Timeout = 10 * time.Second
	o := f.operated()
	step := f.restart()
	if err := <-f.start(t.Context(), step); err != nil {
		for len(f.events) > 0 {
			t.Logf("%+v", <-f.events)
		}
		t.Fatal(err)
	}
	f.state(step, engine.Done)
	if n := o.tookBack(); n != 1 {
		t.Errorf("it was restarted %d times", n)
	}
	notes := strings.Join(f.notes(), "")
	if !strings.Contains(notes, "db-operator") || !strings.Contains(notes, "one by one") {
		t.Errorf("said %q", notes)
	}
}

// TestTakenBackBefore: a restart that was undone is not tried again, and an owner whose pods cannot
// be evicted either holds nothing up.
func TestTakenBackBefore(t *testing.T) {
	f := setup(t)
	f.tools.Timeout = 2 * time.Second
	f.changes = Changes{KubernetesMovedAt: time.Now().Add(-time.Hour)}
	o := f.operated()
	f.budget(0)
	state := f.load()
	state.KnowTakenBack([]v1alpha1.TakenBackStatus{{UID: string(o.set.UID), By: "db-operator"}})
	plan := state.Plan(f.changes, v1alpha1.BarePodsReport)
	if len(plan.Restarts) != 1 || !plan.Restarts[0].TakenBack {
		t.Fatalf("plan: %+v", plan.Restarts)
	}
	left := plan.Unfinished(f.changes, state)
	if len(left) != 2 || !strings.Contains(left[0].Reason, "taken back (spec.template is written by db-operator)") {
		t.Errorf("left: %+v", left)
	}
	f.must(<-f.start(t.Context(), f.tools.Restart(plan.Restarts[0], f.changes)))
	notes := strings.Join(f.notes(), "")
	if !strings.Contains(notes, "have its owner restart them") || !strings.Contains(notes, "guard") {
		t.Errorf("said %q", notes)
	}
	if n := o.tookBack(); n != 0 {
		t.Errorf("it was restarted %d times", n)
	}
}

// TestDrainIsTakenBack: the owner of a Deployment with a single pod undoes its restart. It is
// restarted once, and its pod evicted then.
func TestDrainIsTakenBack(t *testing.T) {
	f := setup(t)
	const node = "owned"
	d := f.deployment()
	rs := f.replicaSet("web-1", controlledBy(KindDeployment, d))
	p := f.on(node, "web-1-a", nil, controlledBy(kindReplicaSet, rs))
	step := f.tools.Drain(Leaving{Node: node, Taint: closing()})
	ended := f.start(t.Context(), step)
	times := 0
	for f.Get(t.Context(), client.ObjectKeyFromObject(p), p) == nil && p.DeletionTimestamp.IsZero() {
		if f.restartedAt(d) != "" {
			times++
			d.Spec.Template.Annotations, d.Spec.Template.Spec.Containers[0].Image = nil, "as-the-operator-knows-it"
			f.must(conflictIsNone(f.Update(t.Context(), d, client.FieldOwner("web-operator"))))
			f.complete(d)
		}
		select {
		case err := <-ended:
			t.Fatalf("it ended before the pod went: %v", err)
		case <-t.Context().Done():
			t.Fatal("the pod stays")
		case <-time.After(20 * time.Millisecond):
		}
	}
	f.remove(p)
	f.must(<-ended)
	if times != 1 {
		t.Errorf("it was restarted %d times", times)
	}
	if note := step.(engine.Noter).Note(); !strings.Contains(note, "web-operator") {
		t.Errorf("said %q", note)
	}
}
