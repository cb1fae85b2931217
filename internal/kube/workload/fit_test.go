package workload

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFits: labels choose nodes, and taints keep pods away that do not tolerate them.
func TestFits(t *testing.T) {
	cordoned := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	gpu := corev1.Taint{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoExecute}
	slow := corev1.Taint{Key: "slow", Effect: corev1.TaintEffectPreferNoSchedule}
	for name, tt := range map[string]struct {
		pod    corev1.PodSpec
		taints []corev1.Taint
		except []string
		want   bool
	}{
		"any node":                 {want: true},
		"chosen by a label":        {pod: corev1.PodSpec{NodeSelector: map[string]string{"disk": "ssd"}}, want: true},
		"not chosen":               {pod: corev1.PodSpec{NodeSelector: map[string]string{"disk": "tape"}}},
		"cordoned":                 {taints: []corev1.Taint{cordoned}},
		"cordoned, for DaemonSets": {taints: []corev1.Taint{cordoned}, except: []string{cordoned.Key}, want: true},
		"only less liked":          {taints: []corev1.Taint{slow}, want: true},
		"kept away":                {taints: []corev1.Taint{gpu}},
		"tolerated": {
			pod:    corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "gpu", Value: "yes"}}},
			taints: []corev1.Taint{gpu}, want: true,
		},
		"another value": {
			pod:    corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "gpu", Value: "no"}}},
			taints: []corev1.Taint{gpu},
		},
		"everything tolerated": {
			pod:    corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
			taints: []corev1.Taint{gpu, cordoned}, want: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": "ssd"}}}
			n.Spec.Taints = tt.taints
			if got := Fits(&tt.pod, n, tt.except...); got != tt.want {
				t.Errorf("it fits: %t", got)
			}
		})
	}
}
