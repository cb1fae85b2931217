package leftaddress_test

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/verify/leftaddress"
)

func at(text string) netip.Addr { return netip.MustParseAddr(text) }

func ranges() leftaddress.Ranges {
	from, to := netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("172.24.0.0/16")
	return leftaddress.Ranges{From: []netip.Prefix{from}, All: []netip.Prefix{from, to}}
}

// cart is a Service that has moved, with its bridge, as replumb leaves them.
func cart() (svc, b *corev1.Service) {
	svc = &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "u1", Annotations: map[string]string{
			v1alpha1.LabelMigration: "m", v1alpha1.AnnotationOldIP: "10.96.3.7", v1alpha1.AnnotationTargetIP: "172.24.3.7",
			v1alpha1.AnnotationMovedAt: time.Now().Format(time.RFC3339Nano),
		}},
		Spec: corev1.ServiceSpec{ClusterIP: "172.24.3.7", ClusterIPs: []string{"172.24.3.7"}},
	}
	b = &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: bridge.Name("cart", "u1"), UID: "u2",
			Labels:      map[string]string{v1alpha1.LabelMigration: "m", v1alpha1.LabelRole: v1alpha1.RoleBridge},
			Annotations: map[string]string{v1alpha1.AnnotationServiceUID: "u1", v1alpha1.AnnotationService: "cart"},
		},
		Spec: corev1.ServiceSpec{ClusterIP: "172.24.255.9"},
	}
	return svc, b
}

func reservation(a string, itself bool) *networkingv1.IPAddress {
	h := &bridge.Hold{Migration: "m", Address: at(a), Bridge: types.NamespacedName{Namespace: "shop", Name: bridge.Name("cart", "u1")}}
	if itself {
		h.Service = &bridge.HeldService{Name: "cart", UID: "u1", Form: v1alpha1.OverlapExternalIP}
	}
	return h.Build()
}

// TestOwnersCannotHideOldAddresses: whatever an owner takes off his Service or its bridge, what the
// Service has left is known.
func TestOwnersCannotHideOldAddresses(t *testing.T) {
	for name, spoil := range map[string]func(svc, b *corev1.Service){
		"as replumb left it":         func(_, _ *corev1.Service) {},
		"moved-at is gone":           func(svc, _ *corev1.Service) { delete(svc.Annotations, v1alpha1.AnnotationMovedAt) },
		"all annotations are gone":   func(svc, _ *corev1.Service) { svc.Annotations = nil },
		"the bridge's label is gone": func(_, b *corev1.Service) { delete(b.Labels, v1alpha1.LabelRole) },
		"the bridge's notes are gone": func(_, b *corev1.Service) {
			b.Annotations, b.Labels = nil, nil
		},
		"the Service is made anew": func(svc, _ *corev1.Service) { svc.UID = "u9" },
		"it is on its way": func(svc, _ *corev1.Service) {
			svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "x"}
		},
	} {
		for _, itself := range []bool{false, true} {
			svc, b := cart()
			spoil(svc, b)
			left := leftaddress.Of("m", []*networkingv1.IPAddress{reservation("10.96.3.7", itself)}, []*corev1.Service{svc, b}, ranges())
			_, old := left[at("10.96.3.7")]
			_, own := left[at("172.24.255.9")]
			if !old || !own || len(left) != 2 {
				t.Errorf("%s, kept by itself %t: old address %t, the bridge's own %t", name, itself, old, own)
			}
		}
	}
}

// TestWhatIsNotLeft: a target, the address of a Service that is back, a memo, and what another
// migration reserves.
func TestWhatIsNotLeft(t *testing.T) {
	svc, b := cart()
	other := reservation("10.96.3.8", false)
	other.Labels[v1alpha1.LabelMigration] = "another"
	back := reservation("10.96.3.7", false)
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "10.96.3.7", nil
	memo := bridge.Memo("m", svc, at("10.96.3.7"), at("172.24.3.7")).Build()
	reserved := []*networkingv1.IPAddress{reservation("172.24.3.7", true), back, memo, other}
	if left := leftaddress.Of("m", reserved, []*corev1.Service{svc, b}, ranges()); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

func TestLacks(t *testing.T) {
	all := leftaddress.Addresses{}
	for _, a := range []string{"10.96.0.1", "10.96.0.2", "10.96.0.3", "fd00::1"} {
		all[at(a)] = leftaddress.FormerOwner{Service: types.NamespacedName{Namespace: "shop", Name: "s" + a}}
	}
	without := func(some ...string) *v1alpha1.WatchedAddresses {
		rest := leftaddress.Addresses{}
		for a, d := range all {
			rest[a] = d
		}
		for _, a := range some {
			delete(rest, at(a))
		}
		return rest.Watched()
	}
	more := leftaddress.Addresses{at("10.96.0.9"): {}}
	for name, tt := range map[string]struct {
		set     leftaddress.Addresses
		watched *v1alpha1.WatchedAddresses
		want    string
	}{
		"all":              {all, without(), ""},
		"one less":         {all, without("10.96.0.2"), "does not watch old address 10.96.0.2 (service shop/s10.96.0.2)"},
		"two less":         {all, without("10.96.0.2", "fd00::1"), "watches 2 of 4 old addresses"},
		"nothing said":     {all, nil, "watches 0 of 4 old addresses"},
		"nothing is left":  {nil, nil, ""},
		"others":           {leftaddress.Addresses{at("10.96.0.1"): {}}, more.Watched(), "watches 1 old addresses, which are not the 1 that Services have left"},
		"more than is due": {nil, more.Watched(), "watches 1 old addresses, which are not the 0 that Services have left"},
	} {
		if got := tt.set.Lacks(tt.watched); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
