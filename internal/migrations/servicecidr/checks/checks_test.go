package checks

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// oneService is a cluster with the Service cart, which is to move.
func oneService() (services.Spec, *inventory.Snapshot) {
	spec := services.Spec{
		Name: "m", From: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, To: []netip.Prefix{netip.MustParsePrefix("172.24.0.0/16")},
	}
	snap := &inventory.Snapshot{Services: []corev1.Service{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.3.7", ClusterIPs: []string{"10.96.3.7"},
			Selector: map[string]string{"app": "cart"}, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}}}
	return spec, snap
}

// TestNotLookingIsNotPassing leaves the looking through out: no check that is about it may pass.
func TestNotLookingIsNotPassing(t *testing.T) {
	spec, snap := oneService()
	outcome := map[string]findings.Outcome{}
	for _, f := range findings.Run(referenceChecks(), Input{Snapshot: snap, Inventory: services.Load(snap, spec)}) {
		outcome[f.Code] = f.Outcome
	}
	for _, f := range findings.Run(slices.Concat(proxyChecks(), localChecks(), dataPlaneChecks(), dnsChecks(), workloadChecks(),
		ownershipChecks(), neighbourChecks(), outsideChecks(), admissionChecks(), ingressChecks()), Input{Snapshot: snap, Inventory: services.Load(snap, spec)}) {
		outcome[f.Code] = f.Outcome
	}
	for _, code := range []string{
		"RP1015", "RP1111", "RP1112", "RP1113", "RP1201", "RP1204", "RP1205", "RP1210", "RP1211", "RP1212", "RP1213", "RP1302", "RP1303", "RP1401", "RP1402",
		"RP1403", "RP1404", "RP1405", "RP1406", "RP1407", "RP1408", "RP1409", "RP1502", "RP1503", "RP1504", "RP1505", "RP1705", "RP1706", "RP1710",
	} {
		if outcome[code] != findings.Unknown {
			t.Errorf("%s: %s, want unknown", code, outcome[code])
		}
	}
}
