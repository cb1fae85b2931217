package traffic

import (
	"testing"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
)

// TestPromptness: a hop that drops packets for three seconds is worse than the baseline, though every request is answered in the end.
func TestPromptness(t *testing.T) {
	quiet := probe.Stats{Sent: 1000, OK: 1000, LongestGap: 200 * time.Millisecond}
	busy := probe.Stats{Sent: 1000, OK: 1000, Late: 20, LongestGap: 1200 * time.Millisecond}
	for _, tt := range []struct {
		name          string
		base, answers probe.Stats
		may           Promptness
		worse         bool
	}{
		{"as before", quiet, quiet, OfServices(), false},
		{"a machine that is busy for a second", quiet, probe.Stats{Sent: 1000, LongestGap: 1600 * time.Millisecond}, OfServices(), false},
		{"three seconds of drops", quiet, probe.Stats{Sent: 1000, Late: 1, LongestGap: 3 * time.Second}, OfServices(), true},
		{"a client that slept for three seconds", quiet, probe.Stats{Sent: 1000, LongestGap: 3 * time.Second, Behind: 3 * time.Second}, OfServices(), false},
		{"one late answer of a few", quiet, probe.Stats{Sent: 50, Late: 1}, OfServices(), false},
		{"one SYN of a hundred", quiet, probe.Stats{Sent: 1000, Late: 10}, OfServices(), true},
		{"as many as before on a busy machine", busy, busy, OfServices(), false},
		{"more than before on a busy machine", busy, probe.Stats{Sent: 1000, Late: 40}, OfServices(), true},
		{"a datagram that a resolver waits for", quiet, probe.Stats{Sent: 1000, Late: 5, LongestGap: 5200 * time.Millisecond}, OfPods(), false},
		{"and one in twenty of them", quiet, probe.Stats{Sent: 1000, Late: 50}, OfPods(), true},
		{"nothing to compare with", probe.Stats{}, probe.Stats{Sent: 1000, Late: 500}, OfServices(), false},
	} {
		if err := tt.may.Check(tt.base, tt.answers); (err != nil) != tt.worse {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
