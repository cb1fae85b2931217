package nodes

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestRemains: the node with the fewest pods comes first, and the workload with the most.
func TestRemains(t *testing.T) {
	s := surveyOf(t, ", drain: {mode: Wait}", nil)
	pod := func(name, owner string) *corev1.Pod {
		p := podOn("old", name, "1", of("StatefulSet", owner))
		return &p
	}
	bare := podOn("other", "tool", "1")
	left := map[string][]*corev1.Pod{
		"old": {pod("a-0", "a"), pod("b-0", "b"), pod("b-1", "b"), pod("c-0", "c"), pod("d-0", "d")}, "other": {&bare},
	}
	const want = "6 pods left on 2 old nodes: other has 1 (shop/tool 1), old has 5 (shop/b 2, shop/a 1, shop/c 1, and 1 more)"
	if got := s.remains(left); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	many := map[string][]*corev1.Pod{}
	for _, name := range strings.Fields("n1 n2 n3 n4 n5 n6 n7") {
		many[name] = []*corev1.Pod{&bare}
	}
	if got := s.remains(many); !strings.HasSuffix(got, "n5 has 1 (shop/tool 1), 2 nodes more") {
		t.Errorf("got %s", got)
	}
}

// TestVacated: closed nodes without pods have their turn, where machines end at finish once each.
func TestVacated(t *testing.T) {
	s := surveyOf(t, ", drain: {mode: Wait}", []corev1.Pod{podOn("other", "web", "1"), podOn("e", "log", "1", of("DaemonSet", "log"))})
	closed := func(n corev1.Node) corev1.Node {
		n.Spec.Taints = append(n.Spec.Taints, leavingTaint("m", corev1.TaintEffectNoSchedule))
		return n
	}
	seen := closed(nodeAt("seen", "10.1.0.8"))
	seen.Annotations = map[string]string{v1alpha1.AnnotationDrainedSince: "2026-01-01T00:00:00Z"}
	s.Nodes = []corev1.Node{
		closed(
			nodeAt("e", "10.1.0.1"),
		),
		closed(nodeAt("other", "10.1.0.2")),
		nodeAt("open", "10.1.0.3"),
		seen,
		closed(nodeAt("ends", "10.1.0.9")),
	}
	s.Recorded = []v1alpha1.NodeStatus{{Name: "ends", Role: v1alpha1.RoleWorker, Ended: true}}
	for end, want := range map[bool][]string{true: {"e", "ends", "seen"}, false: {"e", "ends"}} {
		var got []string
		for _, n := range s.vacated(end) {
			got = append(got, n.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("end %v: got %v, want %v", end, got, want)
		}
	}
}

// TestEarlyWhileWaiting: Services are restored when their pods have left, whatever is first, and
// until then the wait ends with the last of them.
func TestEarlyWhileWaiting(t *testing.T) {
	pods := []corev1.Pod{podOn("old", "web", "1", ready), podOn("new", "edge", "1", ready)}
	s := surveyOf(t, ", drain: {mode: Wait}", pods, edgeOf("edge", true), edgeOf("web", true))
	if early := s.Ingress().early(); len(early) != 1 || early[0].Name != "edge" {
		t.Errorf("restored are %v", early)
	}
	waited := s.Ingress().stillOnOld()
	if len(waited) != 1 || waited[0].Name != "web" {
		t.Fatalf("waited for are %v", waited)
	}
	if s.Ingress().anyLeft(waited, map[string][]*corev1.Pod{"old": {&pods[0]}}) || !s.Ingress().anyLeft(waited, map[string][]*corev1.Pod{"old": {}}) {
		t.Error("it does not end with the last pod of web")
	}
}
