package rollout

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// TestEnvironmentThatIsNotRead: a pod is not restarted for a variable that it does not use.
func TestEnvironmentThatIsNotRead(t *testing.T) {
	c := Changes{KubernetesMovedAt: noon, Services: map[string][]Span{"shop": {{Until: noon}}}}
	env := []corev1.EnvVar{{Name: kubernetesHost, Value: "192.0.2.1"}}
	for name, tt := range map[string]struct {
		host       bool
		containers []corev1.Container
		notes      map[string]string
		want       []string
	}{
		"any":                       {true, []corev1.Container{{Name: "agent"}}, nil, []string{CarriesKubernetes, CarriesServices}},
		"kube-proxy":                {true, []corev1.Container{{Name: "kube-proxy"}}, nil, nil},
		"a name like it":            {false, []corev1.Container{{Name: "kube-proxy"}}, nil, []string{CarriesKubernetes, CarriesServices}},
		"something beside it":       {true, []corev1.Container{{Name: "kube-proxy"}, {Name: "x"}}, nil, []string{CarriesKubernetes, CarriesServices}},
		"its own API server":        {true, []corev1.Container{{Name: "agent", Env: env}}, nil, []string{CarriesServices}},
		"one of two has it":         {true, []corev1.Container{{Name: "agent", Env: env}, {Name: "x"}}, nil, []string{CarriesKubernetes, CarriesServices}},
		"what its owner says of it": {true, []corev1.Container{{Name: "agent"}}, map[string]string{annotationUnread: unreadAll}, []string{CarriesKubernetes, CarriesServices}},
	} {
		p := pod("p", -time.Hour, func(p *corev1.Pod) {
			p.Spec.HostNetwork, p.Spec.Containers, p.Annotations = tt.host, tt.containers, tt.notes
		})
		slim := slimPod(&p)
		if got := Stale(&slim, c); !slices.Equal(got, tt.want) {
			t.Errorf("%s: carries %v, want %v", name, got, tt.want)
		}
	}
}

// TestDataPlanesAreKnown: what has rights over the network of nodes.
func TestDataPlanesAreKnown(t *testing.T) {
	with := func(s *corev1.SecurityContext) []corev1.Container {
		return []corev1.Container{{Name: "c", SecurityContext: s}}
	}
	admin := &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}}
	for name, tt := range map[string]struct {
		spec corev1.PodSpec
		want bool
	}{
		"privileged":         {corev1.PodSpec{HostNetwork: true, Containers: with(&corev1.SecurityContext{Privileged: ptr.To(true)})}, true},
		"NET_ADMIN":          {corev1.PodSpec{HostNetwork: true, Containers: with(admin)}, true},
		"in its own network": {corev1.PodSpec{Containers: with(admin)}, false},
		"without rights":     {corev1.PodSpec{HostNetwork: true, Containers: with(nil)}, false},
	} {
		if got := programsNode(&tt.spec); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
	s := &State{
		Pods:       []corev1.Pod{owned("cni-x", "DaemonSet", "cni"), owned("log-x", "DaemonSet", "log")},
		DaemonSets: []appsv1.DaemonSet{{ObjectMeta: named("cni")}, {ObjectMeta: named("log")}},
		DataPlanes: map[types.UID]bool{"cni": true},
	}
	plan := s.Plan(Changes{KubernetesMovedAt: noon}, "")
	if len(plan.Restarts) != 2 || !plan.Restarts[0].DataPlane || plan.Restarts[1].DataPlane {
		t.Errorf("restarts %+v", plan.Restarts)
	}
}
