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
	PhaseAhead    PhaseState = "ahead"
)

// comeTo puts the phases of a plan behind those that were begun. A run that looks again makes
// another plan of what is left.
func comeTo(all []PhaseLine, ahead []engine.Ahead) []PhaseLine {
	all = slices.DeleteFunc(all, func(p PhaseLine) bool { return p.State == PhaseAhead })
	for _, a := range ahead {
		if !slices.ContainsFunc(all, func(p PhaseLine) bool { return p.Name == a.Name }) {
			all = append(all, PhaseLine{Name: a.Name, Title: a.Title, State: PhaseAhead})
		}
	}
	return all
}

// phases of the latest run in their order, without those that have nothing to do, and with those
// that are ahead. One that is begun again, since the run looked again in between, stands where it
// stood.
func phases(h *journal.History, goesOn bool) (all []PhaseLine) {
	run := h.Runs[len(h.Runs)-1].ID
	open := -1
	for _, e := range h.Events {
		if e.Run != run {
			continue
		}
		switch e.Kind {
		case engine.RunStarted:
			all = comeTo(all, e.Ahead)
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
