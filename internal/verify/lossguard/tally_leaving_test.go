package lossguard

import (
	"strings"
	"testing"
	"time"
)

// TestCordonedNode: what a cordoned node loses waits until it is known whether the node leaves the
// cluster, and counts if it does not.
func TestCordonedNode(t *testing.T) {
	tests := []struct {
		name  string
		nodes map[string]bool
		after time.Duration
		// failed counts, and said is in the status.
		failed int64
		said   string
	}{
		{name: "may be leaving", nodes: map[string]bool{"n": true}, after: time.Second, said: "n: it is cordoned and lost 4 requests"},
		{name: "has left", nodes: map[string]bool{"m": false}, after: time.Second, said: "n: it was cordoned and has left the cluster, and 4 requests"},
		{name: "serves again", nodes: map[string]bool{"n": false}, after: time.Second, failed: 4},
		{name: "stays", nodes: map[string]bool{"n": true}, after: leaveWithin + time.Second, failed: 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t)
			for range 3 {
				s.tick(0, true)
			}
			s.tally.Cordon(map[string]bool{"n": true})
			if fresh := s.tick(2, true); len(fresh) > 0 || s.tally.Failed != 0 {
				t.Errorf("counts at once: %v", fresh)
			}
			s.tally.Cordon(tt.nodes)
			counted := s.tally.Settle(s.now.Add(tt.after))
			if s.tally.Failed != tt.failed || (len(counted) > 0) != (tt.failed > 0) || len(s.tally.Losses) != len(counted) {
				t.Errorf("counts %d: %v, in all %v", s.tally.Failed, counted, s.tally.Losses)
			}
			if said := strings.Join(s.tally.leavers(), "\n"); !strings.HasPrefix(said, tt.said) || (said == "") != (tt.said == "") {
				t.Errorf("says %q", said)
			}
			if again := s.tally.Settle(s.now.Add(tt.after)); len(again) > 0 {
				t.Errorf("counts again: %v", again)
			}
		})
	}
}
