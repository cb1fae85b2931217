//go:build apiserver && programs && long

package mirror

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// began reports whether a step has begun.
func (f *fixture) began(step string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.events, func(e engine.Event) bool { return e.Step == step && e.Kind == engine.StepStarted })
}

func noLoss(*fixture) int { return 0 }

// TestWatched: agents watch from the source while names move there and back, and are gone at the
// end.
func TestWatched(t *testing.T) {
	f := watched(t, noLoss, never)
	f.must(f.run(0, f.apply))
	f.leads(targetAt, 1e9)
	if p := f.status().Proof; !f.did("agents/steady") || p == nil || p.Nodes != 1 || p.Sent == 0 || p.Failed != 0 {
		t.Errorf("proof: %+v", p)
	}
	f.must(f.run(0, f.finish))
	sets := &appsv1.DaemonSetList{}
	f.must(f.source.List(t.Context(), sets, client.InNamespace(v1alpha1.SystemNamespace)))
	if len(sets.Items) > 0 {
		t.Errorf("agents are left: %s", sets.Items[0].Name)
	}
}

// TestUnheardLossKeepsNames: so does what no agent had reported yet when names were about to move.
func TestUnheardLossKeepsNames(t *testing.T) {
	f := watched(t, afterSteady, func(f *fixture) bool { return f.did("agents/steady") && !f.began("agents/heard") })
	f.keepsNames()
	if !f.began("agents/heard") {
		t.Error("the run ended before it listened once more")
	}
}
