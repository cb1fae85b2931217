package services

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// TestAsOwnedByWhatIsReserved: an owner who takes the notes off his Service, or changes them, does
// not make of it what it is not. His own fields stay.
func TestAsOwnedByWhatIsReserved(t *testing.T) {
	old, foreign := netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("192.0.2.7")
	for _, form := range []v1alpha1.OverlapForm{v1alpha1.OverlapExternalIP, v1alpha1.OverlapLoadBalancer} {
		for name, notes := range map[string]map[string]string{
			"no notes": nil, "others": {v1alpha1.AnnotationOldIP: "10.96.0.9", v1alpha1.AnnotationTargetIP: "203.0.113.9"},
		} {
			svc := &corev1.Service{Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: "172.24.0.7", Ports: []corev1.ServicePort{{Port: 80}},
				ExternalIPs: []string{foreign.String()},
			}}
			svc.Annotations = notes
			ownaddress.Add(svc, old, form)
			e := &Entry{Service: svc, Reserved: map[netip.Addr]Reservation{old: {Form: form}}}
			is := e.AsOwned(svc)
			_, keeps := ownaddress.FormOf(is, old)
			_, has := ownaddress.FormOf(is, foreign)
			if keeps || !has || is.Spec.Type != corev1.ServiceTypeClusterIP {
				t.Errorf("%s, %s: it is of type %s with externalIPs %v", form, name, is.Spec.Type, is.Spec.ExternalIPs)
			}
			if _, there := ownaddress.FormOf(svc, old); !there {
				t.Error("the Service itself was changed")
			}
			e.Reserved = map[netip.Addr]Reservation{old: {}} // held for a bridge: the Service's own word is its owner's
			if _, keeps := ownaddress.FormOf(e.AsOwned(svc), old); !keeps {
				t.Errorf("%s, %s: an address of its owner's is gone", form, name)
			}
		}
	}
}

// TestAsOwnedWithoutStatus: a Service that was killed between its type and its address, or whose
// status others have emptied, is still what its owner made of it, and does not count as pinned.
func TestAsOwnedWithoutStatus(t *testing.T) {
	beside := netip.MustParseAddr("172.24.0.7")
	made := func(notes map[string]string) *corev1.Service {
		svc := &corev1.Service{Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.7", Ports: []corev1.ServicePort{{Port: 80}},
		}}
		ownaddress.Add(svc, beside, v1alpha1.OverlapLoadBalancer)
		svc.Status.LoadBalancer.Ingress, svc.Annotations = nil, notes
		return svc
	}
	for name, e := range map[string]*Entry{
		"by its notes":         {Service: made(map[string]string{v1alpha1.AnnotationTargetIP: beside.String()})},
		"by what is reserved":  {Service: made(nil), Reserved: map[netip.Addr]Reservation{beside: {Form: v1alpha1.OverlapLoadBalancer}}},
		"its owner's, by none": {Service: made(nil)},
	} {
		position, reason := Strategies{etcd: true}.Evaluate(e.AsOwned(e.Service))
		if want := map[bool]Position{true: Pinned, false: Waiting}[name == "its owner's, by none"]; position != want {
			t.Errorf("%s: it is %s (%s), want %s", name, position, reason, want)
		}
	}
}
