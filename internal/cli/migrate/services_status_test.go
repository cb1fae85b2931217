package migrate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/migrations/servicecidr"
)

// TestListPastThePointOfNoReturn: what moved is seen in the target range alone by then, and is no
// Service that was left alone.
func TestListPastThePointOfNoReturn(t *testing.T) {
	for past, want := range map[bool]servicecidr.Place{true: inTarget, false: servicecidr.Stays} {
		survey := &servicecidr.Survey{Stays: []*servicecidr.Entry{{
			Service: &corev1.Service{}, Place: servicecidr.Stays, Reason: servicecidr.Reason{Kind: servicecidr.InTarget},
		}}}
		page := &servicePage{}
		page.Counts.Stays = 1
		page.list(survey, past)
		if len(page.Services) != 1 || page.Services[0].State != want || (page.Counts.Stays == 0) != past {
			t.Errorf("past %v: %+v, %d stay", past, page.Services, page.Counts.Stays)
		}
	}
}
