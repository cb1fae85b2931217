package servicecidr

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// TestStatusLooksForOldAddresses: a Service that has moved is said to be well only if something
// answers at its old address, wherever that stood. Past the point of no return nothing has to.
func TestStatusLooksForOldAddresses(t *testing.T) {
	old, next := netip.MustParseAddr("10.96.7.7"), netip.MustParseAddr("172.24.7.7")
	service := func(name string, answers bool) *corev1.Service {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP}}
		if answers {
			ownaddress.Add(svc, old, v1alpha1.OverlapLoadBalancer)
		}
		return svc
	}
	entry := func(itself bool, bridge *corev1.Service) *services.Entry {
		return &services.Entry{Service: service("web", itself), Bridge: bridge, Old: old, New: next, Position: services.Moved}
	}
	for name, tt := range map[string]struct {
		entry   *services.Entry
		past    bool
		state   services.Position
		bridged int
	}{
		"itself":                    {entry(true, nil), false, services.Moved, 0},
		"by a bridge":               {entry(false, service("b", true)), false, services.Moved, 1},
		"by itself, bridge to stay": {entry(true, service("b", false)), false, services.Moved, 1},
		"the bridge lost it":        {entry(false, service("b", false)), false, oldGone, 0},
		"the Service lost it":       {entry(false, nil), false, oldGone, 0},
		"after the end":             {entry(false, nil), true, services.Moved, 0},
	} {
		inventory := &services.Inventory{Moves: []*services.Entry{tt.entry}}
		body := &StatusBody{}
		body.list(inventory, tt.past)
		if body.Services[0].State != tt.state || inventory.Counts().Bridged != tt.bridged {
			t.Errorf("%s: it is %s, and %d are bridged", name, body.Services[0].State, inventory.Counts().Bridged)
		}
		warned := strings.Contains(strings.Join(body.goneLines(), ""), "old addresses of 1 Service do not answer")
		if warned != (tt.state == oldGone) {
			t.Errorf("%s: it says %q", name, body.goneLines())
		}
	}
}
