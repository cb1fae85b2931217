package servicecidr

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// TestKubeletsOfOneFamily asks kubelets for the address that moves alone, where cluster DNS has one
// of each family.
func TestKubeletsOfOneFamily(t *testing.T) {
	for want, move := range map[string][2]string{
		"10.97.0.10": {"10.96.0.0/16", "10.97.0.0/16"}, "fd00:10:97::a": {"fd00:10:96::/112", "fd00:10:97::/112"},
	} {
		dns := corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10", "fd00:10:96::a"},
				Selector: map[string]string{"app": "dns"}, Ports: []corev1.ServicePort{{Port: 80}},
			},
		}
		spec := services.Spec{
			Name: "m", From: []netip.Prefix{netip.MustParsePrefix(move[0])}, To: []netip.Prefix{netip.MustParsePrefix(move[1])},
		}
		p := &Planner{Inventory: services.Load(&inventory.Snapshot{Services: []corev1.Service{dns}}, spec)}
		k, got := p.kubeletsOf(engine.Forward)
		if k == nil || got != want || len(k.Left) != 1 || !spec.From[0].Contains(k.Left[0]) {
			t.Errorf("to %s: waits for %q, away from %+v", move[1], got, k)
		}
		if kept := p.Inventory.DNSKept(); len(kept) != 1 || kept[0].Is4() == spec.To[0].Addr().Is4() {
			t.Errorf("to %s: keeps %v", move[1], kept)
		}
	}
}
