//go:build apiserver && long

package rollout

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

// short takes the availability of a Deployment away.
func (f *fixture) short(d *appsv1.Deployment) {
	f.Helper()
	f.complete(d)
	d.Status.AvailableReplicas, d.Status.ReadyReplicas = 0, 0
	f.must(f.Status().Update(f.Context(), d))
}

// notes are what the steps that ended had to say.
func (f *fixture) notes() (all []string) {
	for {
		select {
		case e := <-f.events:
			if e.Note != "" {
				all = append(all, e.Note)
			}
		default:
			return all
		}
	}
}

// TestBrokenBeforeIsLeftAlone: no image, before replumb came. The control has no patience, restarts
// it, and waits in vain.
func TestBrokenBeforeIsLeftAlone(t *testing.T) {
	for _, tt := range []struct {
		name     string
		patience time.Duration
	}{{"left", time.Minute}, {"control", 0}} {
		t.Run(tt.name, func(t *testing.T) {
			f := setupNamed(t, "broken-"+tt.name)
			f.tools.Patience = tt.patience
			d := f.deployment()
			p := f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d))))
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: "side", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}},
			})
			f.must(f.Status().Update(t.Context(), p))
			f.short(d)
			plan := f.load().Plan(f.changes, "")
			if len(plan.Restarts) != 1 || !strings.Contains(plan.Restarts[0].Unfinished, "Available: 0/1") {
				t.Errorf("planned: %+v", plan.Restarts)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := f.start(ctx, f.restart())
			if tt.patience == 0 {
				f.waiting("has not seen the change")
				cancel()
				if err := <-ended; !errors.Is(err, engine.ErrInterrupted) || f.restartedAt(d) == "" {
					t.Errorf("the control ended with %v", err)
				}
				return
			}
			f.must(<-ended)
			if at := f.restartedAt(d); at != "" {
				t.Errorf("restarted at %s", at)
			}
			if notes := strings.Join(f.notes(), ""); !strings.Contains(notes, "Deployment broken-left/web is left alone") ||
				!strings.Contains(notes, "ImagePullBackOff") {
				t.Errorf("said %q", notes)
			}
		})
	}
}

// TestOwnersRolloutIsWaitedFor: what is not complete for a moment is restarted once it is.
func TestOwnersRolloutIsWaitedFor(t *testing.T) {
	f := setup(t)
	f.tools.Patience = time.Minute
	d := f.deployment()
	old := f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d))))
	f.short(d)
	ended := f.start(t.Context(), f.restart())
	f.waiting("is not complete, and not by its restart")
	if at := f.restartedAt(d); at != "" {
		t.Errorf("restarted at %s", at)
	}
	f.complete(d)
	f.waiting("has not seen the change")
	f.remove(old)
	f.complete(d)
	f.must(<-ended)
}

// TestUnavailableForLongIsLeftAlone: patience ends.
func TestUnavailableForLongIsLeftAlone(t *testing.T) {
	f := setup(t)
	f.tools.Patience = 100 * time.Millisecond
	d := f.deployment()
	f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d))))
	f.short(d)
	f.must(<-f.start(t.Context(), f.restart()))
	if at := f.restartedAt(d); at != "" || len(f.notes()) != 1 {
		t.Errorf("restarted at %q", at)
	}
}

// TestDaemonSetWithoutANode: nothing is renewed on a node that is not ready, and no one waits for
// it. The control is the same node, ready.
func TestDaemonSetWithoutANode(t *testing.T) {
	f := setup(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.ns}}
	f.must(f.Create(t.Context(), node))
	defer f.remove(node)
	ready := func(s corev1.ConditionStatus) {
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: s}}
		f.must(f.Status().Update(t.Context(), node))
	}
	ready(corev1.ConditionTrue)
	d := &appsv1.DaemonSet{ObjectMeta: f.meta("log"), Spec: appsv1.DaemonSetSpec{Selector: selector(), Template: template()}}
	f.must(f.Create(t.Context(), d))
	by := controlledBy("DaemonSet", d)
	here := f.pod("log-here", 2*time.Hour, by)
	lost := &corev1.Pod{ObjectMeta: f.meta("log-lost"), Spec: template().Spec}
	lost.OwnerReferences, lost.Spec.NodeName = []metav1.OwnerReference{by}, node.Name
	f.must(f.Create(t.Context(), lost))
	lost.Status = here.Status
	lost.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	f.must(f.Status().Update(t.Context(), lost))

	ended := f.start(t.Context(), f.restart())
	f.waiting("has not seen the change")
	f.remove(here)
	f.pod("log-new", 0, by)
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(d), d))
	d.Status = appsv1.DaemonSetStatus{
		ObservedGeneration:     d.Generation,
		DesiredNumberScheduled: 2,
		CurrentNumberScheduled: 2,
		UpdatedNumberScheduled: 1,
		NumberAvailable:        1,
		NumberReady:            1,
	}
	f.must(f.Status().Update(t.Context(), d))
	f.waiting("Updated: 1/2")
	ready(corev1.ConditionUnknown)
	f.must(<-ended)
	plan := f.load().Plan(f.changes, "")
	if len(plan.Restarts) != 0 || len(plan.Reported) != 1 || !strings.Contains(plan.Reported[0].Reason, "is not ready") {
		t.Errorf("left: %+v", plan)
	}
}
