//go:build apiserver && long

package podcidr

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// order is where steps stand among those that began.
func (f *watchedFixture) order(steps ...string) []int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	var all []int
	for _, s := range steps {
		all = append(all, slices.IndexFunc(f.Events, func(e engine.Event) bool { return e.Kind == engine.StepStarted && e.Step == s }))
	}
	return all
}

// TestWatched: agents come before anything is changed, their own pods move before all others, and they leave at the end.
func TestWatched(t *testing.T) {
	f := setupWatched(t)
	f.populate()
	f.Must(f.apply())
	f.allIn(newRange)
	order := f.order("agents/service", "agents/steady", "add/"+newPool, "own/agents", "agents/steady/the pods that agents call",
		"restart/Deployment/shop/web")
	if !slices.IsSorted(order) || slices.Contains(order, -1) {
		t.Errorf("steps began in the order %v of: %v", order, f.Events)
	}
	st := f.again()
	if p := st.Proof; p == nil || p.Nodes != 2 || p.Sent == 0 || p.Failed != 0 || len(p.Silent) > 0 {
		t.Errorf("proof: %+v", p)
	}
	if st.Counts.Total != 7 {
		t.Errorf("replumb's own pods are counted: %+v", st.Counts)
	}
	ds := &appsv1.DaemonSet{}
	f.Must(server.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: agentset.PodSet}, ds))
	if u := ds.Spec.UpdateStrategy.RollingUpdate; u.MaxSurge == nil || u.MaxSurge.String() == "0" {
		t.Errorf("pods that agents call end before others begin: %+v", u)
	}
	f.Mu.Lock()
	f.Events = nil
	f.Mu.Unlock()
	f.Must(f.apply())
	if began := f.order("agents/reporting"); began[0] >= 0 {
		t.Error("agents are waited for, and there is nothing to do")
	}
	f.Must(f.finish())
	f.onlyPool(newRange)
	f.gone()
}

// TestSilenceEndsTheMove: the node is named.
func TestSilenceEndsTheMove(t *testing.T) {
	f := setupWatched(t, func(m *v1alpha1.Migration) { m.Spec.Proof.Wait = &metav1.Duration{Duration: 15 * time.Second} })
	f.Deployment("web", 2)
	f.set(&f.obstacle, "slow")
	ended := f.applying()
	f.Waiting("ImagePullBackOff slow")
	f.set(&f.mute, "b")
	var silent *agentset.SilentError
	if err := <-ended; !errors.As(err, &silent) || silent.For == 0 || !strings.Contains(silent.Error(), "node b: pod ") {
		t.Fatalf("ended with %v", err)
	}
	f.set(&f.mute, "")
	f.set(&f.obstacle, "")
	f.Must(f.apply())
	f.in(newRange, "web", 2)
}

// TestBackWithoutAgents: the way back goes on when agents do not report.
func TestBackWithoutAgents(t *testing.T) {
	f := setupWatched(t, func(m *v1alpha1.Migration) { m.Spec.Proof.Wait = &metav1.Duration{Duration: 15 * time.Second} })
	f.Deployment("web", 2)
	f.Must(f.apply())
	f.set(&f.mute, "b")
	f.Must(f.rollback())
	f.in(oldRange, "web", 2)
	f.gone()
}

// TestGoneOnWithout: what an earlier run has left of agents goes with the migration, though it has gone on without them.
func TestGoneOnWithout(t *testing.T) {
	f := setupWatched(t)
	f.Deployment("web", 2)
	f.job.Until = "agents"
	f.Must(f.apply())
	f.job.Until = ""
	f.job.Migration.Spec.Proof.Agents = v1alpha1.AgentsDisabled
	f.Must(f.apply())
	f.in(newRange, "web", 2)
	f.Must(f.finish())
	f.onlyPool(newRange)
	f.gone()
}
