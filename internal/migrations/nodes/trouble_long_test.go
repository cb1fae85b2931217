//go:build apiserver && long

package nodes

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

func TestTooFewNewNodes(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.Nodes.Join.Count = 3
		m.Spec.Nodes.GateWait = &metav1.Duration{Duration: 10 * time.Second}
	})
	f.Deployment("web", 2)
	f.Fails(f.apply(), "2 of 3 new nodes take pods")
	f.on("a b", "web", 2)
}

// TestBudgetInTheWay names the budget, and goes on when it allows.
func TestBudgetInTheWay(t *testing.T) {
	f := setup(t)
	f.Deployment("web", 2)
	f.Deployment("guard", 2)
	budget := f.Budget("guard", 1)
	f.idle = true
	ended := f.applying()
	f.Waiting("0 of 2 new nodes take pods")
	f.patch(budget, `{"spec":{"minAvailable":2}}`)
	f.node("c", "198.51.100.1")
	f.node("d", "198.51.100.2")
	f.Waiting("cannot be evicted now")
	f.patch(budget, `{"spec":{"minAvailable":1}}`)
	f.Mu.Lock()
	f.idle = false
	f.Mu.Unlock()
	f.Must(<-ended)
	f.on("c d", "guard", 2)
}

// TestForcedByName: a pod that a budget would keep for ever goes since it is named, and no other
// does.
func TestForcedByName(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.Nodes.Drain.Force = []string{"shop/db-0"} })
	f.StatefulSet("db", 1)
	f.Must(f.apply())
	f.on("c d", "db", 1)
}

// TestInterruptedAndTakenUp ends a run in the middle of a drain, and another one goes on.
func TestInterruptedAndTakenUp(t *testing.T) {
	f := setup(t, atFinish)
	f.populate()
	ctx, stop := context.WithCancel(t.Context())
	sink := f.runner.Sink
	f.runner.Sink = func(e engine.Event) {
		sink(e)
		if e.Step == "settled/a" && e.Kind == engine.StepStarted {
			stop()
		}
	}
	_, err := f.job.Apply(ctx, f.runner)
	f.Fails(err, "interrupted")
	f.runner.Sink = sink
	f.Must(f.apply())
	f.allOn("c d")
}

// TestPartialRoom: old nodes are emptied although not everything has a place from the start.
func TestPartialRoom(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.Nodes.Join.Room = v1alpha1.RoomPartial
		m.Spec.Nodes.Join.Count = 1
	})
	f.Deployment("web", 3)
	f.Must(f.apply())
	f.on("c d", "web", 3)
}

// TestPartWayBack: a node whose end has been asked for does not come back, and what is left does.
func TestPartWayBack(t *testing.T) {
	f := setup(t)
	f.Deployment("web", 3)
	f.idle = true
	ended := f.applying()
	f.Waiting("0 of 2 new nodes take pods")
	f.node("c", "198.51.100.1")
	f.node("d", "198.51.100.2")
	f.Waiting("node a is still there")
	f.Must(server.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	f.Waiting("node b is still there")
	f.patch(&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, `{"spec":{"paused":true}}`)
	f.Must(server.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}))
	f.Fails(<-ended, "paused")
	f.patch(&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, `{"spec":{"paused":false}}`)
	f.Must(f.rollback())
	f.on("c d", "web", 3)
	if got := f.nodes(); got != "c d" {
		t.Errorf("nodes after rollback: %s", got)
	}
}

// TestDefinitionRefuses: the API server refuses what the definition rules out.
func TestDefinitionRefuses(t *testing.T) {
	f := setup(t)
	f.Deployment("web", 1)
	f.Must(f.apply())
	m := f.job.Migration.DeepCopy()
	f.Must(server.Get(t.Context(), client.ObjectKeyFromObject(m), m))
	m.Spec.Nodes.Old.CIDRs = []string{"203.0.113.0/24"}
	f.Fails(server.Update(t.Context(), m), "cannot be changed")
	f.with(m)
	f.Fails(f.apply(), "differs from migration m in the cluster")
}

func ends(command ...string) func(*v1alpha1.Migration) {
	return func(m *v1alpha1.Migration) {
		m.Spec.Nodes.Terminate.Action = &v1alpha1.Action{
			Exec: &v1alpha1.ExecAction{Command: command}, Timeout: &metav1.Duration{Duration: 5 * time.Second},
		}
	}
}

// TestActionFails: the failure is reported, without what the program said, and the same command
// calls it again.
func TestActionFails(t *testing.T) {
	once := filepath.Join(t.TempDir(), "once")
	f := setup(
		t,
		ends("sh", "-c", `cat >/dev/null; test -e `+once+` || { touch `+once+`; echo "no quota for $REPLUMB_NODE" >&2; exit 1; }`),
	)
	f.Deployment("web", 2)
	f.Fails(f.apply(), "step terminate/a", "exit status 1; its output is on the terminal")
	if got := f.nodes(); got != "a:NoSchedule b:NoSchedule c d" {
		t.Errorf("nodes: %s", got)
	}
	if st := f.again(); !nodeRecord(st.Nodes, "a").Ended || nodeRecord(st.Nodes, "b").Ended {
		t.Errorf("who may have ended: %+v", st.Nodes)
	}
	f.Must(f.apply())
	if got := f.nodes(); got != "c d" {
		t.Errorf("nodes: %s", got)
	}
}

// TestActionHangs: it is ended, and nothing is left half removed.
func TestActionHangs(t *testing.T) {
	f := setup(t, ends("sleep", "60"))
	f.Deployment("web", 2)
	f.Fails(f.apply(), "step terminate/a", "no answer within 5s")
	if got := f.nodes(); got != "a:NoSchedule b:NoSchedule c d" {
		t.Errorf("nodes: %s", got)
	}
	f.on("b c d", "web", 2)
}

// TestNodeLost: the machine of a node dies while it is being emptied. Once its Node is deleted, as
// its owner is asked to, the run goes on.
func TestNodeLost(t *testing.T) {
	f := setup(t)
	f.Deployment("web", 2)
	f.Deployment("guard", 2)
	budget := f.Budget("guard", 1)
	f.idle = true
	ended := f.applying()
	f.Waiting("0 of 2 new nodes take pods")
	f.patch(budget, `{"spec":{"minAvailable":2}}`)
	f.node("c", "198.51.100.1")
	f.node("d", "198.51.100.2")
	f.Waiting("cannot be evicted now")
	f.Must(
		server.DeleteAllOf(
			t.Context(),
			&corev1.Pod{},
			client.InNamespace("shop"),
			client.MatchingFields{"spec.nodeName": "a"},
			client.GracePeriodSeconds(0),
		),
	)
	f.Must(server.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	f.patch(budget, `{"spec":{"minAvailable":1}}`)
	f.Waiting("node b is still there")
	f.Must(server.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}))
	f.Must(<-ended)
	f.on("c d", "web", 2)
	f.on("c d", "guard", 2)
}
