package etcd

import (
	"testing"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// TestSteps has a plan of a control plane by each mode: it is valid, and says what it would write
// without asking any member.
func TestSteps(t *testing.T) {
	c := &Client{}
	plan := &engine.Plan{Name: "nodes", Phases: []engine.Phase{{Groups: []engine.Group{{Steps: []engine.Step{
		c.SnapshotStep("etcd.db"), c.HealthyStep("before"),
		c.LearnerStep("cp4", "https://10.0.0.4:2380"), c.PromotedStep("cp4", "https://10.0.0.4:2380"),
		c.HandedOverStep("cp1", "cp1", "cp2"), c.RemovedStep("cp1", 3), c.HealthyStep("after-cp1"),
		c.HandedOverStep("cp2"), c.MayStopStep("cp2", "https://10.0.0.5:2380"), c.ReaddressedStep("cp2", "https://10.0.0.5:2380"),
		c.HealthyStep("after-cp2"),
	}}}}}}
	if err := plan.Validate(); err != nil {
		t.Fatal(err)
	}
	if _, err := plan.Hash(); err != nil {
		t.Error(err)
	}
	wrote := []string{
		"create file etcd.db", "", "create etcd member cp4", "patch etcd member cp4", "patch etcd leader", "delete etcd member cp1", "",
		"patch etcd leader", "", "patch etcd member cp2", "",
	}
	for i, s := range plan.Steps() {
		changes, err := engine.Preview(s)
		got := ""
		if len(changes) > 0 {
			got = changes[0].Verb + " " + changes[0].Object
		}
		if err != nil || got != wrote[i] {
			t.Errorf("%s writes %q, not %q: %v", s.ID(), got, wrote[i], err)
		}
		if _, waits := s.(engine.Waiter); waits != (wrote[i] == "") {
			t.Errorf("%s only waits: %v", s.ID(), waits)
		}
		if timed, ok := s.(engine.Timed); !ok || timed.Deadline() < time.Minute || s.Title() == "" {
			t.Errorf("%s: %q", s.ID(), s.Title())
		}
	}
	if undo := plan.Steps()[2].(engine.Undoer).Undo(); undo.ID() != "etcd/unlearner/cp4" {
		t.Errorf("undo is %s", undo.ID())
	}
}
