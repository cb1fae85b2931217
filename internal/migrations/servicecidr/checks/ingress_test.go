package checks

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// TestServicesThatAreRoutedTo are named with who does, and others are not.
func TestServicesThatAreRoutedTo(t *testing.T) {
	spec, snap := oneService()
	for service, outcome := range map[string]findings.Outcome{"cart": findings.Fail, "other": findings.Pass} {
		found := &inventory.Scan{
			IngressClasses: map[string]string{"web": "traefik.io/ingress-controller"},
			Routes: []inventory.Route{
				{Service: types.NamespacedName{Namespace: "shop", Name: service}, By: "Ingress shop/in", Class: "web"},
			},
		}
		for _, f := range findings.Run(ingressChecks(), Input{
			Snapshot: snap, Inventory: services.Load(snap, spec), Live: inventory.Live{Inspection: found},
		}) {
			named := strings.Contains(f.Message, "Ingress shop/in (traefik.io/ingress-controller)")
			if f.Outcome != outcome || named != (service == "cart") {
				t.Errorf("%s: %s %s", service, f.Outcome, f.Message)
			}
		}
	}
}
