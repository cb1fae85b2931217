package journal

import (
	"testing"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// TestEffort is in the words of a change board: when, how long, and who.
func TestEffort(t *testing.T) {
	begin := time.Date(2026, 3, 4, 20, 0, 0, 0, time.UTC)
	heard := func(run string, at time.Time) Event {
		return Event{Run: run, Event: engine.Event{Time: at, Kind: engine.StepDone}}
	}
	one := History{
		Runs:   []Run{{ID: "a", User: "mara", Host: "ops-1", Start: begin}},
		Events: []Event{heard("a", begin.Add(68*time.Second))},
	}
	more := History{
		Runs:   append(one.Runs, Run{ID: "b", Host: "operator", Start: begin.Add(6 * time.Hour)}, Run{ID: "c", Start: begin}),
		Events: append(one.Events, heard("b", begin.Add(8*time.Hour))),
	}
	short := History{Runs: one.Runs, Events: []Event{heard("a", begin.Add(10*time.Second))}}
	for want, h := range map[string]History{
		"4 Mar 2026, 20:00 UTC, 1 run that took 10 s, by mara@ops-1":                                      short,
		"4 Mar 2026, 20:00 to 20:01 UTC, 1 run that took 68 s, by mara@ops-1":                             one,
		"4 Mar 2026, 20:00 to 5 Mar 2026, 04:00 UTC, 3 runs that took 2 h 1 min, by mara@ops-1, operator": more,
	} {
		if got := h.Effort().Line(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if (&History{}).Effort() != nil {
		t.Error("without a run there is an effort")
	}
}

// TestTook reads lengths of time as people do.
func TestTook(t *testing.T) {
	for seconds, want := range map[float64]string{0.34: "340 ms", 4.21: "4.2 s", 61: "61 s", 700: "12 min", 11100: "3 h 5 min", 7200: "2 h", 360000: "100 h"} {
		if got := Took(seconds); got != want {
			t.Errorf("%v s: %q, want %q", seconds, got, want)
		}
	}
}
