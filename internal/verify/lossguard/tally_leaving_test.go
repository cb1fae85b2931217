package lossguard

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestCordonedNode: what a cordoned node loses waits until it is known whether the node leaves the
// cluster, and counts if it does not.
func TestCordonedNode(t *testing.T) {
	tests := []struct {
		name  string
		nodes map[string]bool
		after time.Duration
		// failed counts, and said is in the status.
		failed int64
		said   string
	}{
		{name: "may be leaving", nodes: map[string]bool{"n": true}, after: time.Second, said: "n: it is cordoned and lost 4 requests"},
		{name: "has left", nodes: map[string]bool{"m": false}, after: time.Second, said: "n: it was cordoned and has left the cluster, and 4 requests"},
		{name: "serves again", nodes: map[string]bool{"n": false}, after: time.Second, failed: 4},
		{name: "stays", nodes: map[string]bool{"n": true}, after: leaveWithin + time.Second, failed: 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t)
			for range 3 {
				s.tick(0, true)
			}
			s.tally.Cordon(map[string]bool{"n": true})
			if fresh := s.tick(2, true); len(fresh) > 0 || s.tally.Failed != 0 {
				t.Errorf("counts at once: %v", fresh)
			}
			s.tally.Cordon(tt.nodes)
			counted := s.tally.Settle(s.now.Add(tt.after))
			if s.tally.Failed != tt.failed || (len(counted) > 0) != (tt.failed > 0) || len(s.tally.Losses) != len(counted) {
				t.Errorf("counts %d: %v, in all %v", s.tally.Failed, counted, s.tally.Losses)
			}
			if said := strings.Join(s.tally.leavers(), "\n"); !strings.HasPrefix(said, tt.said) || (said == "") != (tt.said == "") {
				t.Errorf("says %q", said)
			}
			if again := s.tally.Settle(s.now.Add(tt.after)); len(again) > 0 {
				t.Errorf("counts again: %v", again)
			}
		})
	}
}

// TestCordonedByOthers: losses at nodes that replumb itself empties do not wait.
func TestCordonedByOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*corev1.Node)
		want bool
	}{
		"schedulable": {func(n *corev1.Node) { n.Spec.Unschedulable = false }, false},
		"by others":   {func(*corev1.Node) {}, true},
		"by replumb":  {func(n *corev1.Node) { n.Annotations = map[string]string{v1alpha1.AnnotationCordoned: "pods"} }, false},
		"by others, before replumb moves it": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: v1alpha1.TaintMoving, Value: "pods", Effect: corev1.TaintEffectNoSchedule}}
		}, false},
	} {
		n := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}
		if tt.edit(n); cordonedByOthers(n) != tt.want {
			t.Errorf("%s: %v, want %v", name, !tt.want, tt.want)
		}
	}
}
