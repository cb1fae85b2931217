package progress

import (
	"slices"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// PhaseLine is a phase of the latest run.
type PhaseLine struct {
	Name  string     `json:"name"`
	Title string     `json:"title"`
	State PhaseState `json:"state"`
	// Took is empty for one that is not done.
	Took string `json:"took,omitempty"`
}

// PhaseState is how far a phase is.
type PhaseState string

// The states of phases.
const (
	PhaseDone     PhaseState = "done"
	PhaseUnderWay PhaseState = "under way"
	PhaseStopped  PhaseState = "stopped"
)

// phases of the latest run in their order, without those that have nothing to do. One that is begun
// again, since the run looked again in between, stands where it stood.
func phases(h *journal.History, goesOn bool) (all []PhaseLine) {
	run := h.Runs[len(h.Runs)-1].ID
	open := -1
	for _, e := range h.Events {
		if e.Run != run {
			continue
		}
		switch e.Kind {
		case engine.PhaseStarted:
			if open = slices.IndexFunc(all, func(p PhaseLine) bool { return p.Name == e.Phase }); open < 0 && e.Total > 0 {
				open, all = len(all), append(all, PhaseLine{Name: e.Phase, Title: e.Message})
			}
			if open >= 0 {
				all[open].State, all[open].Took = PhaseUnderWay, ""
			}
		case engine.PhaseDone:
			if open >= 0 {
				all[open].State, all[open].Took = PhaseDone, journal.Took(e.Seconds)
			}
			open = -1
		case engine.RunFailed, engine.RunInterrupted:
			goesOn = false
		}
	}
	if open >= 0 && !goesOn {
		all[open].State = PhaseStopped
	}
	return all
}
