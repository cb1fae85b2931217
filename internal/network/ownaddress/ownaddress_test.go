package ownaddress

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/replumb/replumb/api/v1alpha1"
)

func kinds() map[string]*corev1.Service {
	at := func(change func(*corev1.ServiceSpec)) *corev1.Service {
		svc := &corev1.Service{Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7", "fd00:96::7"},
			Ports: []corev1.ServicePort{{Port: 80}},
		}}
		change(&svc.Spec)
		return svc
	}
	return map[string]*corev1.Service{
		"plain": at(func(*corev1.ServiceSpec) {}),
		"node ports": at(func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
			s.Ports[0].NodePort = 30080
		}),
		"an address of its owner's": at(func(s *corev1.ServiceSpec) {
			s.ExternalIPs, s.ExternalTrafficPolicy = []string{"192.0.2.7"}, corev1.ServiceExternalTrafficPolicyLocal
		}),
	}
}

// TestThereAndBack: a Service is as it was once its address is exchanged back and removed.
func TestThereAndBack(t *testing.T) {
	from, to := netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("172.24.0.7")
	for name, svc := range kinds() {
		for _, form := range []v1alpha1.OverlapForm{v1alpha1.OverlapExternalIP, v1alpha1.OverlapLoadBalancer} {
			t.Run(name+" "+string(form), func(t *testing.T) {
				is := svc.DeepCopy()
				Add(is, to, form)
				once := is.DeepCopy()
				if Add(is, to, form); !equality.Semantic.DeepEqual(is, once) {
					t.Errorf("added twice it is %+v", is)
				}
				if have, there := FormOf(is, to); !there || have != form {
					t.Errorf("it answers at %s as %q", to, have)
				}
				Exchange(is, from, to)
				if have, _ := FormOf(is, from); have != form || is.Spec.ClusterIP != to.String() || is.Spec.ClusterIPs[1] != "fd00:96::7" {
					t.Errorf("exchanged it is at %v, and answers at %s as %q", is.Spec.ClusterIPs, from, have)
				}
				if _, there := FormOf(is, to); there {
					t.Errorf("it is at %s, and answers there beside", to)
				}
				Exchange(is, to, from)
				if Remove(is, to); !equality.Semantic.DeepEqual(is, svc) {
					t.Errorf("it was\n%+v\nand is\n%+v", svc, is)
				}
			})
		}
	}
}

// TestUnanswered: of a Service that has the type and no address, as between the two patches of
// Write, the type goes as well. One of another class is its owner's.
func TestUnanswered(t *testing.T) {
	to := netip.MustParseAddr("172.24.0.7")
	for name, svc := range kinds() {
		t.Run(name, func(t *testing.T) {
			is := svc.DeepCopy()
			Add(is, to, v1alpha1.OverlapLoadBalancer)
			is.Status.LoadBalancer.Ingress = nil
			if !Unanswered(is) {
				t.Error("it is not seen")
			}
			if Remove(is, to); !equality.Semantic.DeepEqual(is, svc) {
				t.Errorf("it was\n%+v\nand is\n%+v", svc, is)
			}
			foreign := svc.DeepCopy()
			foreign.Spec.Type = corev1.ServiceTypeLoadBalancer
			was := foreign.DeepCopy()
			if Remove(foreign, to); Unanswered(foreign) || !equality.Semantic.DeepEqual(foreign, was) {
				t.Errorf("its owner's was\n%+v\nand is\n%+v", was, foreign)
			}
		})
	}
}
