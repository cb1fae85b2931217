//go:build apiserver && long

package noderanges

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// TestCiliumNodeReturnsAfterAKill: wherever the way back ends, the next command completes it before
// anything else, and apply stops there.
func TestCiliumNodeReturnsAfterAKill(t *testing.T) {
	for name, pool := range map[string]string{"of the operator": "", "of a pool": "default"} {
		t.Run(name, func(t *testing.T) { killOnTheWayBack(t, pool) })
	}
}

// killOnTheWayBack kills it after its first step, after its second, and so on.
func killOnTheWayBack(t *testing.T, pool string) {
	for cut := 1; ; cut++ {
		last := false
		t.Run(fmt.Sprintf("after %d steps", cut), func(t *testing.T) {
			w := newTroubled(t, pool)
			ctx, kill := context.WithCancelCause(t.Context())
			w.sick.Store(true)
			done, back := 0, false
			groups := w.planner(true).moveNodes(forward)
			r := &engine.Runner{Deadline: w.deadline, Sink: func(e engine.Event) {
				if back = back || e.Kind == engine.StepStarted && e.Step == "return/a"; !back {
					return
				}
				w.sick.Store(false)
				if e.Kind == engine.StepDone || e.Kind == engine.StepUnchanged {
					if done++; done == cut {
						kill(errors.New("killed"))
					}
				}
			}}
			err := r.Run(ctx, &engine.Plan{Name: "apply", Phases: []engine.Phase{{Name: "nodes", Groups: groups}}})
			if last = ctx.Err() == nil; last {
				requireReturned(t, err, "node a")
				return
			}
			nodes := &corev1.NodeList{}
			must(t, w.c.List(t.Context(), nodes))
			plan := w.planner(true).Return(v1alpha1.DesiredApplied)
			if Returning(nodes.Items) != (plan != nil) {
				t.Fatalf("a plan of the way back: %v", plan)
			}
			if plan != nil {
				requireReturned(t, (&engine.Runner{Deadline: w.deadline}).Run(t.Context(), plan), "node a")
			}
			w.requireAsBefore()
		})
		if last || t.Failed() {
			break
		}
	}
}
