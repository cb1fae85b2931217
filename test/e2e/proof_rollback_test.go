package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// testProofRollback breaks a kube-proxy in the middle of a move that is to go back when something is lost. It goes back at once, while the
// node is still broken, and waits for it where it must not do without: before Services hop. When that node is repaired, the way back goes
// on to its end. Clients on the other node lose nothing, and the run ends with exit code 4, everything where it was, and nothing left.
//
// The control is testProof: without onLoss the same break leaves Services where they are by then.
func testProofRollback(t *testing.T, l *lab.Lab) {
	backIfFailed(t, l, "returns")
	s, _ := lightTraffic(t, l)
	before := allServices(t, l)
	file := proven{name: "returns", to: "172.22.0.0/16", drain: "5s", onLoss: "onLoss: Rollback"}.write(t)
	proxy := &brokenProxy{T: t, l: l, node: "node1"}
	moved, repaired := 0, false
	lived := s.during(t, "a move that goes back by itself", func() {
		_, exit, stderr := runWatching(t, applying(t, l, file), func(e engine.Event) {
			switch {
			case e.Kind == engine.StepDone && e.Phase == "move" && strings.HasPrefix(e.Step, "hop/"):
				moved++
			case proxy.resume == nil && e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "settle/batch 1 "):
				proxy.shatter()
			case e.Phase == "return" && waitsFor(e, "node1") && !repaired:
				t.Log(e.Error)
				repaired = true
				proxy.repair()
			}
		})
		t.Logf("apply that goes back: exit %d: %s", exit, stderr)
		if exit != 4 || !strings.Contains(stderr, "on node node1") || !strings.Contains(stderr, "rolling back, as spec.proof.onLoss says") {
			t.Fatalf("it ended with %d, not with 4, the name of the node, and that it goes back", exit)
		}
	})
	if moved < 2 || !repaired {
		t.Errorf("%d Services had moved, and the way back waited for the node: %v", moved, repaired)
	}
	lived.requireNothingLost(t, func(s traffic.Source) bool {
		return s.Node == "node2" && (s.Via == traffic.ByOldAddress || s.Via == traffic.ByStream)
	})
	requireSame(t, before, allServices(t, l))
	requireNoTrace(t, l)
	var page struct {
		Phase v1alpha1.Phase `json:"phase"`
	}
	if err := json.Unmarshal(
		[]byte(replumb(t, l, "status", "returns", "-o", "json")),
		&page,
	); err != nil ||
		page.Phase != v1alpha1.PhaseRolledBack {
		t.Errorf("the migration is %s, %v", page.Phase, err)
	}
	proxy.forget()
	s.steady(t)
}
