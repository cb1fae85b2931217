//go:build apiserver && long

package nodes

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/access"
)

func byReleases(m *v1alpha1.Migration) { m.Spec.Nodes.Drain.Mode = v1alpha1.DrainWait }

// prefers a node, as long as that takes pods.
func prefers(node string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
				}},
			}},
		}}
	}
}

// release replaces the pods of a Deployment, as its owner does.
func (f *fixture) release(name string) {
	f.Helper()
	f.patch(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}},
		`{"spec":{"template":{"metadata":{"annotations":{"release":"`+time.Now().Format(time.RFC3339Nano)+`"}}}}}`)
}

// requireNoEviction fails the test if the operator has evicted or deleted a pod.
func (f *fixture) requireNoEviction() {
	f.Helper()
	for _, right := range []access.Right{
		{Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "shop"}, {Verb: "delete", Resource: "pods", Namespace: "shop"},
	} {
		if f.requests.Made(right) {
			f.Errorf("in mode Wait a request took: %s", right)
		}
	}
}

// began are the steps that have begun.
func (f *fixture) began() []string {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	var all []string
	for _, e := range f.Events {
		if e.Kind == engine.StepStarted {
			all = append(all, e.Step)
		}
	}
	return all
}

// TestReleasesEmptyNodes: nothing is evicted; it is told what is left where and whose; ingress is
// Local again once it has been released, each node ends when it is empty, a pause ends the wait,
// and the same command takes it up.
func TestReleasesEmptyNodes(t *testing.T) {
	f := setup(t, byReleases)
	f.Deployment("left", 2, prefers("a"))
	f.Deployment("right", 3, prefers("b"))
	svc := f.edge("left")
	f.on("a", "left", 2)
	f.on("b", "right", 3)
	ended := f.applying()
	f.Waiting("5 pods left on 2 old nodes: a has 2 (shop/left 2), b has 3 (shop/right 3)")
	f.on("a", "left", 2)

	f.release("left")
	f.Waiting("3 pods left on 1 old node: b has 3 (shop/right 3)")
	f.on("c d", "left", 2)
	f.requireLocal(svc, "once ingress was released")
	if got := f.nodes(); got != "b:NoSchedule c d" {
		t.Errorf("nodes after the first release: %s", got)
	}
	f.on("b", "right", 3)
	f.patch(&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, `{"spec":{"paused":true}}`)
	f.Fails(<-ended, "paused")

	f.patch(&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, `{"spec":{"paused":false}}`)
	f.again()
	ended = f.applying()
	f.release("right")
	f.Must(<-ended)
	f.on("c d", "right", 3)
	if got := f.nodes(); got != "c d" {
		t.Errorf("nodes at the end: %s", got)
	}
	if st := f.again(); st.Phase != v1alpha1.PhaseMoved || st.Counts.Moved != 2 {
		t.Errorf("status: %+v", st)
	}
	if n := count(f.began(), "canary"); n != 1 {
		t.Errorf("new nodes were tested %d times", n)
	}
	f.requireNoEviction()
	f.requireLocal(svc, "at the end")
	f.Must(f.finish())
}

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

// TestRollbackWhileWaiting goes back when one node has been released, and all is where it was.
func TestRollbackWhileWaiting(t *testing.T) {
	f := setup(t, byReleases, atFinish)
	f.Deployment("left", 2, prefers("a"))
	f.Deployment("right", 2, prefers("b"))
	svc := f.edge("right")
	ended := f.applying()
	f.Waiting("4 pods left on 2 old nodes")
	f.release("left")
	f.Waiting("2 pods left on 1 old node: b has 2 (shop/right 2)")
	f.patch(&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, `{"spec":{"paused":true}}`)
	f.Fails(<-ended, "paused")
	f.requireNoEviction()
	f.patch(&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, `{"spec":{"paused":false}}`)
	f.Must(f.rollback())
	if !f.requests.Made(access.Right{Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "shop"}) {
		t.Error("rollback evicted nothing, or that is not seen")
	}
	f.on("a b", "left", 2)
	f.on("a b", "right", 2)
	f.requireLocal(svc, "after rollback")
	if got := f.nodes(); got != "a b c:NoSchedule d:NoSchedule" {
		t.Errorf("nodes after rollback: %s", got)
	}
}

// TestWaitingKeepsWindows: an empty node waits for its window, and hooks after the phase are called
// when the last node is empty.
func TestWaitingKeepsWindows(t *testing.T) {
	at := func(later time.Duration) string { return time.Now().UTC().Add(later).Format("15:04") }
	f := setup(t, byReleases, func(m *v1alpha1.Migration) {
		m.Spec.Windows = []v1alpha1.Window{{Start: at(3 * time.Hour), End: at(4 * time.Hour), TimeZone: "UTC"}}
		m.Spec.Hooks = []v1alpha1.Hook{{
			Name: "over", When: v1alpha1.AfterPhase, Of: []string{phaseDrain},
			Action: v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: []string{"true"}}},
		}}
	})
	f.Deployment("left", 2, prefers("a"))
	f.Deployment("right", 2, prefers("b"))
	ended := f.applying()
	f.Waiting("4 pods left on 2 old nodes")
	f.release("left")
	f.Waiting("outside the maintenance windows until")
	if got := f.nodes(); !strings.HasPrefix(got, "a:NoSchedule b:NoSchedule") {
		t.Errorf("nodes outside of the window: %s", got)
	}
	f.patch(&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, `{"spec":{"paused":true}}`)
	f.Fails(<-ended, "paused")
	f.patch(&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, `{"spec":{"paused":false,"windows":null}}`)
	f.again()
	ended = f.applying()
	f.Waiting("2 pods left on 1 old node: b has 2")
	hooked := func(step string) bool { return strings.HasPrefix(step, "hook/over") }
	if slices.ContainsFunc(f.began(), hooked) {
		t.Error("a hook was called after phase drain, which was not over")
	}
	f.release("right")
	f.Must(<-ended)
	if !slices.ContainsFunc(f.began(), hooked) {
		t.Error("no hook was called after phase drain")
	}
}
