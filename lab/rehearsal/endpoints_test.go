package rehearsal

import (
	"strings"
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

// TestNear: no pod that a Service selects is overlooked, and few others are looked at.
func TestNear(t *testing.T) {
	x := podIndex{}
	for _, p := range []struct{ namespace, name, app, track string }{
		{"shop", "web-1", "web", "stable"}, {"shop", "web-2", "web", "canary"}, {"shop", "db-1", "db", "stable"}, {"other", "web-1", "web", "stable"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name}}
		pod.Labels = map[string]string{"app": p.app, "track": p.track}
		x.add(pod)
	}
	for _, c := range []struct {
		selector map[string]string
		want     string
	}{
		{map[string]string{"app": "web"}, "web-1 web-2"},
		{map[string]string{"app": "web", "track": "canary"}, "web-2"},
		{map[string]string{"app": "none", "track": "stable"}, ""},
		{nil, ""},
	} {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: corev1.ServiceSpec{Selector: c.selector}}
		var names []string
		for _, p := range x.near(svc) {
			names = append(names, p.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%v: %q, want %q", c.selector, got, c.want)
		}
	}
}
