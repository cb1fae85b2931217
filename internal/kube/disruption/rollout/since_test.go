package rollout

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSince: on the way back only pods count that were started while the addresses that are left
// now were given out.
func TestSince(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	at := func(minutes int) metav1.Time { return metav1.NewTime(noon.Add(time.Duration(minutes) * time.Minute)) }
	pod := func(sandbox, container int) *corev1.Pod {
		start := at(sandbox)
		return &corev1.Pod{Status: corev1.PodStatus{
			Phase: corev1.PodRunning, StartTime: &start,
			ContainerStatuses: []corev1.ContainerStatus{{
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(container)}},
			}},
		}}
	}
	changes := Changes{KubernetesMovedAt: noon.Add(time.Hour), Since: noon}
	for _, tt := range []struct {
		name  string
		pod   *corev1.Pod
		stale bool
	}{
		{"older than the addresses", pod(-10, -10), false},
		{"started among them", pod(10, 10), true},
		{"old, with a container started again among them", pod(-10, 10), true},
		{"started after them", pod(70, 70), false},
		{"in the very second they came up", pod(0, 0), true},
	} {
		if got := len(Stale(tt.pod, changes)) > 0; got != tt.stale {
			t.Errorf("%s: stale is %v", tt.name, got)
		}
	}
}
