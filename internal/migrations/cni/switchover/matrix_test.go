package switchover

import (
	"strings"
	"testing"
)

func TestWorse(t *testing.T) {
	for _, tt := range []struct {
		name, before, now string
		enforced          bool
		want              string
	}{
		{"as before", "cross-node=2/2 service-cross-node=2/2 denied=0/2", "cross-node=2/2 service-cross-node=2/2 denied=0/2", false, ""},
		{"policies have to hold", "denied=0/2", "denied=0/2", true, "denied"},
		{"masked", "service-cross-node=2/2", "service-cross-node=0/2", true, "service-cross-node"},
		{"masked for some", "service-cross-node=2/2", "service-cross-node=1/2", false, "service-cross-node"},
		{"masked before, and no policies", "service-cross-node=1/2", "service-cross-node=1/2", false, ""},
		{"masked before, and policies", "service-cross-node=1/2", "service-cross-node=1/2", true, "service-cross-node"},
		{"not asked before", "", "service-cross-node=1/2", true, "service-cross-node"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before, err := parseScores(tt.before)
			if err != nil {
				t.Fatal(err)
			}
			now, err := parseScores(tt.now)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(worse(before, now, tt.enforced), "; ")
			if (got == "") != (tt.want == "") || !strings.HasPrefix(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
