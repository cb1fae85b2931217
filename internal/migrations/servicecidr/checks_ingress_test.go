package servicecidr

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// TestServicesThatAreRoutedTo are named with who does, and others are not.
func TestServicesThatAreRoutedTo(t *testing.T) {
	spec := Spec{
		Name: "m", From: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, To: []netip.Prefix{netip.MustParsePrefix("172.24.0.0/16")},
	}
	snap := &cluster.Snapshot{Services: []corev1.Service{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.3.7", ClusterIPs: []string{"10.96.3.7"},
			Selector: map[string]string{"app": "cart"}, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}}}
	for service, outcome := range map[string]findings.Outcome{"cart": findings.Fail, "other": findings.Pass} {
		found := &cluster.Inspection{
			IngressClasses: map[string]string{"web": "traefik.io/ingress-controller"},
			Routes:         []cluster.Route{{Service: types.NamespacedName{Namespace: "shop", Name: service}, By: "Ingress shop/in", Class: "web"}},
		}
		for _, f := range findings.Run(ingressChecks(), Input{
			Snapshot: snap, Survey: Look(snap, spec, nil), Live: cluster.Live{Inspection: found},
		}) {
			named := strings.Contains(f.Message, "Ingress shop/in (traefik.io/ingress-controller)")
			if f.Outcome != outcome || named != (service == "cart") {
				t.Errorf("%s: %s %s", service, f.Outcome, f.Message)
			}
		}
	}
}
