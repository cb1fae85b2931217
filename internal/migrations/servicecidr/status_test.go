package servicecidr

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestListPastThePointOfNoReturn: what moved is seen in the target range alone by then, and is no Service that was left alone.
func TestListPastThePointOfNoReturn(t *testing.T) {
	for past, want := range map[bool]Place{true: inTarget, false: Stays} {
		survey := &Survey{Stays: []*Entry{{
			Service: &corev1.Service{}, Place: Stays, Reason: Reason{Kind: InTarget},
		}}}
		body := &StatusBody{}
		arrived := body.list(survey, past)
		if len(body.Services) != 1 || body.Services[0].State != want || (arrived == 1) != past {
			t.Errorf("past %v: %+v, %d arrived", past, body.Services, arrived)
		}
	}
}
