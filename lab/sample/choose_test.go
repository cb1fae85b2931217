package sample

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// service is one of shop with a port of TCP, changed by some.
func service(name string, change ...func(*corev1.Service)) corev1.Service {
	s := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.3.7", Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Name: "db", Port: 5432, TargetPort: intstr.FromString("pg")}},
		},
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func local(s *corev1.Service) {
	s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
}

func udp(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }

func TestChoose(t *testing.T) {
	all := []corev1.Service{
		service("c"), service("b"), service("a"), service("local", local), service("dns", udp),
		service("none", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }),
		service("name", func(s *corev1.Service) { s.Spec.Type, s.Spec.ClusterIP = corev1.ServiceTypeExternalName, "" }),
		service("hand", func(s *corev1.Service) { s.Spec.Selector = nil }),
		service("sctp", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolSCTP }),
		service("kubernetes", func(s *corev1.Service) { s.Namespace, s.Spec.Selector = metav1.NamespaceDefault, nil }),
	}
	for n, want := range map[int][]string{
		1: {"a"}, 3: {"a", "dns", "local"}, 4: {"a", "dns", "local", "b"}, 99: {"a", "dns", "local", "b", "c"},
	} {
		chosen, leftOut := Choose(all, n)
		var got []string
		for i := range chosen {
			got = append(got, chosen[i].Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("of %d: %q, want %q", n, got, want)
		}
		if want := map[string]int{headless: 1, external: 1, unselective: 1, unanswerable: 1, ofCluster: 1}; !maps.Equal(leftOut, want) {
			t.Errorf("left out %v, want %v", leftOut, want)
		}
	}
}

func TestShape(t *testing.T) {
	for want, s := range map[string]corev1.Service{
		"ClusterIP, 1 TCP port":                               service("a"),
		"ClusterIP, 1 UDP port":                               service("a", udp),
		"NodePort, 1 TCP port, externalTrafficPolicy Local":   service("a", local),
		"ClusterIP, 1 TCP port, session affinity":             service("a", func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }),
		"ClusterIP, 1 TCP port, trafficDistribution SameZone": service("a", func(s *corev1.Service) { s.Spec.TrafficDistribution = ptr.To("SameZone") }),
		"ClusterIP, 1 TCP port, internalTrafficPolicy Local": service("a", func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		}),
		"ClusterIP, 1 TCP port, publishes addresses that are not ready": service("a", func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }),
	} {
		if got := Shape(&s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
