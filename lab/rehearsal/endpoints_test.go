package rehearsal

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestTargetPort: a bridge's endpoints are those of its Service, which a port by name decides.
func TestTargetPort(t *testing.T) {
	pod := func(app string, port int32) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: port}}}},
			},
		}
	}
	pods := []*corev1.Pod{pod("other", 9090), pod("web", 8080)}
	chosen := labels.SelectorFromSet(map[string]string{"app": "web"})
	for want, target := range map[int32]intstr.IntOrString{
		8080: intstr.FromString("http"), 7070: intstr.FromInt32(7070), 80: intstr.FromString("grpc"),
	} {
		if got := targetPort(&corev1.ServicePort{Port: 80, TargetPort: target}, pods, chosen); got != want {
			t.Errorf("%s: %d, want %d", target.String(), got, want)
		}
	}
}

// TestForgetKeys: what the API server made of the keys stays.
func TestForgetKeys(t *testing.T) {
	spread := map[string]any{"matchLabelKeys": []any{"hash"}, "labelSelector": map[string]any{"matchLabels": map[string]any{"hash": "1"}}}
	near := map[string]any{"labelSelector": map[string]any{}, "mismatchLabelKeys": []any{"hash"}}
	forgetKeys(map[string]any{
		"topologySpreadConstraints": []any{spread},
		"affinity": map[string]any{
			"podAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": []any{near}},
		},
	})
	if len(spread) != 1 || len(near) != 1 || spread["labelSelector"] == nil {
		t.Errorf("%v, %v", spread, near)
	}
}
