package services

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/kube/inventory"
)

// TestWhereOrphansAnswerIsTaken: a Service was deleted in its batch, when its bridge answered at
// its new address as well, which is free then. No other Service goes there before the bridge is
// removed. The controls are a bridge that does not answer there, and none.
func TestWhereOrphansAnswerIsTaken(t *testing.T) {
	const old, next = "10.96.9.9", "172.24.3.7"
	for name, tt := range map[string]struct {
		orphan *corev1.Service
		taken  bool
	}{
		"load balancer": {&corev1.Service{Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
			Ingress: []corev1.LoadBalancerIngress{{IP: old}, {IP: next}},
		}}}, true},
		"external IPs":        {&corev1.Service{Spec: corev1.ServiceSpec{ExternalIPs: []string{old, next}}}, true},
		"control: not there":  {&corev1.Service{Spec: corev1.ServiceSpec{ExternalIPs: []string{old}}}, false},
		"control: no orphans": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			cart := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "1"}}
			e := &Entry{Service: cart, Old: netip.MustParseAddr("10.96.3.7"), Position: Waiting}
			s := &Inventory{Moves: []*Entry{e}}
			s.Spec.From = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
			s.Spec.To = []netip.Prefix{netip.MustParsePrefix("172.24.0.0/16")}
			if tt.orphan != nil {
				s.Orphans = []*corev1.Service{tt.orphan}
			}
			s.assignTargets(&inventory.Snapshot{})
			if !e.New.IsValid() || (e.New.String() != next) != tt.taken {
				t.Errorf("cart is to go to %s", e.New)
			}
		})
	}
}
