//go:build apiserver && long

package nodes

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// TestWatched: agents come before anything is changed. When a node ends nothing leads to it, the
// agent that others call has left it, and the next one waits until all is answered. They are gone
// at the end.
func TestWatched(t *testing.T) {
	f := setupWatched(t, 0)
	f.Deployment("web", 3)
	f.daemonSet("edge", map[string]string{"app": "edge"})
	f.Must(f.apply())
	f.on("c d", "web", 3)
	order := f.order("agents/service", "agents/steady", "close/a", "drain/a", "leave/a", "barrier/leave/a", "part/a", "agents/apart/a",
		"agents/vacate/a", "terminate/a", "agents/steady/a", "drain/b", "terminate/b", "agents/steady/b")
	if !slices.IsSorted(order) || slices.Contains(order, -1) {
		t.Errorf("steps began in the order %v of: %v", order, f.Events)
	}
	if p := f.again().Proof; p == nil || p.Nodes != 2 || p.Sent == 0 || p.Failed != 0 || len(p.Silent) > 0 {
		t.Errorf("proof: %+v", p)
	}
	f.Must(f.finish())
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: agentset.HostSet}}
	if err := server.Get(t.Context(), client.ObjectKeyFromObject(ds), ds); !apierrors.IsNotFound(err) {
		t.Errorf("agents are left: %v", err)
	}
}
