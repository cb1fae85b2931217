package progress

import (
	"slices"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// TestStanding: how it goes is one thing and how far it got another, and a bar is full only over a
// migration that is over.
func TestStanding(t *testing.T) {
	failed := func(in *Input) { in.Holder, in.Migration.Status.LastError = "", "the API server is away" }
	for name, tt := range map[string]struct {
		change func(*Input)
		text   string
		tone   Tone
		full   int
	}{
		"under way":              {func(*Input) {}, "under way", Plain, 9},
		"unseen":                 {func(in *Input) { in.Holder, in.Unseen = "", true }, "under way", Plain, 9},
		"left alone":             {func(in *Input) { in.Holder = "" }, "no one works on it", Attention, 9},
		"paused":                 {func(in *Input) { in.Migration.Spec.Paused = true }, "paused", Attention, 9},
		"stopped":                {failed, "stopped", Bad, 9},
		"stopped early":          {func(in *Input) { failed(in); in.Counts.Moved = 40 }, "stopped", Bad, 4},
		"stopped at the end":     {func(in *Input) { failed(in); in.Migration.Status.Phase = v1alpha1.PhaseFinished }, "stopped", Bad, 9},
		"over":                   {func(in *Input) { in.Holder, in.Migration.Status.Phase = "", v1alpha1.PhaseMoved }, "over", Good, 10},
		"goes on after an error": {func(in *Input) { in.Migration.Status.LastError = "earlier" }, "under way", Plain, 9},
		"at a gate": {func(in *Input) {
			in.History.Events = append(in.History.Events, journal.Event{Run: "r1", Event: engine.Event{
				Kind: engine.StepWaiting, Step: "gate/a", Role: engine.RoleGate, Guide: "do it",
			}})
		}, "waits for you", Attention, 9},
	} {
		in := moving(100, 10)
		tt.change(&in)
		v := Look(in)
		if text, tone := v.Standing(); text != tt.text || tone != tt.tone || v.Filled(10) != tt.full {
			t.Errorf("%s: %q, %q, %d of 10 cells", name, text, tone, v.Filled(10))
		}
	}
}

// TestPhases are those of the latest run in their order, each once.
func TestPhases(t *testing.T) {
	h := &journal.History{Runs: []journal.Run{{ID: "r0"}, {ID: "r1"}}}
	add := func(run string, kind engine.EventKind, phase string, total int) {
		h.Events = append(h.Events, journal.Event{Run: run, Event: engine.Event{
			Time: noon(), Kind: kind, Phase: phase, Message: "Do " + phase, Total: total, Seconds: 3,
		}})
	}
	add("r0", engine.PhaseStarted, "earlier", 1)
	plan := func(names ...string) {
		e := engine.Event{Time: noon(), Kind: engine.RunStarted}
		for _, n := range names {
			e.Ahead = append(e.Ahead, engine.Ahead{Name: n, Title: "Do " + n})
		}
		h.Events = append(h.Events, journal.Event{Run: "r1", Event: e})
	}
	plan("secure", "move", "prove")
	for _, phase := range []string{"check", "secure", "move"} {
		add("r1", engine.PhaseStarted, phase, map[string]int{"secure": 2, "move": 9}[phase]) // check has nothing to do
		if phase != "move" {
			add("r1", engine.PhaseDone, phase, 1)
		}
	}
	plan("secure", "move", "verify") // the run looked again
	add("r1", engine.PhaseStarted, "secure", 1)
	add("r1", engine.PhaseDone, "secure", 1)
	add("r1", engine.PhaseStarted, "move", 1)
	want := []PhaseLine{{"secure", "Do secure", PhaseDone, "3.0 s"}, {"move", "Do move", PhaseUnderWay, ""}, {"verify", "Do verify", PhaseAhead, ""}}
	if got := phases(h, true); !slices.Equal(got, want) {
		t.Errorf("goes on: %+v", got)
	}
	want[1].State = PhaseStopped
	if got := phases(h, false); !slices.Equal(got, want) {
		t.Errorf("killed: %+v", got)
	}
	add("r1", engine.RunFailed, "", 0)
	if got := phases(h, true); !slices.Equal(got, want) {
		t.Errorf("failed: %+v", got)
	}
	if in := moving(100, 1); Look(in).Effort.Worked != (7 * time.Second).Seconds() {
		t.Errorf("%+v", Look(in).Effort)
	}
}
