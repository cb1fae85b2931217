package cli

import (
	"testing"

	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	corev1 "k8s.io/api/core/v1"
)

// TestListPastThePointOfNoReturn: what moved is seen in the target range alone by then, and is no Service that was left alone.
func TestListPastThePointOfNoReturn(t *testing.T) {
	for past, want := range map[bool]services.Position{true: inTarget, false: services.Stays} {
		survey := &services.Inventory{Stays: []*services.Entry{{
			Service: &corev1.Service{}, Position: services.Stays, Reason: services.Reason{Kind: services.InTarget},
		}}}
		page := &servicePage{}
		page.Counts.Stays = 1
		page.list(survey, past)
		if len(page.Services) != 1 || page.Services[0].State != want || (page.Counts.Stays == 0) != past {
			t.Errorf("past %v: %+v, %d stay", past, page.Services, page.Counts.Stays)
		}
	}
}
