package servicecidr

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// TestListPastThePointOfNoReturn: what moved is seen in the target range alone by then, and is no
// Service that was left alone.
func TestListPastThePointOfNoReturn(t *testing.T) {
	for past, want := range map[bool]services.Position{true: inTarget, false: services.Stays} {
		inventory := &services.Inventory{Stays: []*services.Entry{{
			Service: &corev1.Service{}, Position: services.Stays, Reason: services.Reason{Kind: services.InTarget},
		}}}
		body := &StatusBody{}
		arrived := body.list(inventory, past)
		if len(body.Services) != 1 || body.Services[0].State != want || (arrived == 1) != past {
			t.Errorf("past %v: %+v, %d arrived", past, body.Services, arrived)
		}
	}
}

// TestHoldersAreNamedOnce: what the table shows as not moved is counted below it.
func TestHoldersAreNamedOnce(t *testing.T) {
	body := &StatusBody{Holds: []string{"service shop/a", "service shop/b", "servicecidr kubernetes"}, unmoved: 2}
	want := []string{"2 Services above that have not moved", "servicecidr kubernetes"}
	if got := body.holding(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
