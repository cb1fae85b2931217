//go:build apiserver && programs

package mirror

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// watched has agents of the source played, of whose ten requests so many fail, and which are mute
// for a time.
func watched(t *testing.T, losing func(*fixture) int, mute func(*fixture) bool) *fixture {
	t.Helper()
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.Image, m.Spec.Proof = "replumb", v1alpha1.ProofSpec{Agents: v1alpha1.AgentsEnabled}
	})
	player := &fakekubelet.Agents{
		Client: f.source,
		Lose:   func(*corev1.Pod) int { return losing(f) },
		Mute:   func(*corev1.Pod) bool { return mute(f) },
	}
	ctx, stop := context.WithCancel(context.Background())
	var playing sync.WaitGroup
	playing.Go(func() { player.Run(ctx) })
	t.Cleanup(func() {
		stop()
		playing.Wait()
		ours := client.HasLabels{v1alpha1.LabelMigration}
		for _, o := range []client.Object{&appsv1.DaemonSet{}, &corev1.ServiceAccount{}} {
			_ = f.source.DeleteAllOf(context.Background(), o, ours, client.InNamespace(v1alpha1.SystemNamespace))
		}
		for _, o := range []client.Object{&v1alpha1.NodeReport{}, &rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}} {
			_ = f.source.DeleteAllOf(context.Background(), o, ours)
		}
	})
	return f
}

// did reports whether a step is done, or had nothing to do: what it waits for may be there when it
// begins.
func (f *fixture) did(step string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.events, func(e engine.Event) bool {
		return e.Step == step && (e.Kind == engine.StepDone || e.Kind == engine.StepUnchanged)
	})
}

func never(*fixture) bool { return false }

// afterSteady are the losses from when all was well.
func afterSteady(f *fixture) int {
	if f.did("agents/steady") {
		return 3
	}
	return 0
}

// TestLossKeepsNames: what is lost before names move keeps them where they are.
func TestLossKeepsNames(t *testing.T) {
	watched(t, afterSteady, never).keepsNames()
}

// keepsNames applies, and fails the test unless a loss ends that before names move.
func (f *fixture) keepsNames() {
	f.Helper()
	var loss *lossguard.LossError
	if err := f.run(0, f.apply); !errors.As(err, &loss) {
		f.Fatalf("ended with %v", err)
	}
	if st := f.status(); st.Mirror != nil && st.Mirror.Serving != "" && st.Mirror.Serving != v1alpha1.ServingSource {
		f.Errorf("names have moved all the same: %s serves", st.Mirror.Serving)
	}
}
