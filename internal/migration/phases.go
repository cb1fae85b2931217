package migration

import (
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/spec/hook"
)

// Phase is one phase of a command, as data. P is the planner of the kind of migrations.
type Phase[P any] struct {
	// Name is what --until, hooks and the status call it, Title what people read while it runs.
	Name, Title string
	// Groups are its steps. A phase without steps is named and not run.
	Groups func(P) []engine.Group
	// Replan, if set, says whether what follows can be planned only once this phase has run.
	Replan func(P) bool
	// Recheck says that the results of its steps may be there already, and the plan can leave them
	// out.
	Recheck bool
	// Own says that its steps concern replumb itself.
	Own bool
}

// Phases are those of one command, in order.
type Phases[P any] []Phase[P]

// Names are those of the phases, in order.
func (all Phases[P]) Names() []string {
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	return names
}

// Commands are the phases of everything a kind of migrations does.
type Commands[P any] struct {
	Apply, Rollback, Finish Phases[P]
}

// Names are those of the phases of all commands, each once, in the order in which they first come.
func (c Commands[P]) Names() []string {
	var all []string
	for _, name := range slices.Concat(c.Apply.Names(), c.Rollback.Names(), c.Finish.Names()) {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// PhaseTitle is a phase as people read of it.
type PhaseTitle struct {
	Name, Title string
}

func (all Phases[P]) titles() []PhaseTitle {
	titles := make([]PhaseTitle, len(all))
	for i := range all {
		titles[i] = PhaseTitle{Name: all[i].Name, Title: all[i].Title}
	}
	return titles
}

// Outline is what people read of the phases of everything that a kind of migrations does.
type Outline struct {
	Where string

	Apply, Rollback, Finish []PhaseTitle
}

// Outline is that of the commands, for the clusters that where names.
func (c Commands[P]) Outline(where string) Outline {
	return Outline{Where: where, Apply: c.Apply.titles(), Rollback: c.Rollback.titles(), Finish: c.Finish.titles()}
}

// Plan makes the plan of a command, with the hooks around its phases.
func (all Phases[P]) Plan(p P, m *v1alpha1.Migration, run hook.RunPurpose) *engine.Plan {
	plan := &engine.Plan{Name: m.Name}
	for _, phase := range all {
		plan.Phases = append(plan.Phases, engine.Phase{
			Name: phase.Name, Title: phase.Title, Groups: phase.Groups(p),
			Replan: phase.Replan != nil && phase.Replan(p), Recheck: phase.Recheck, Own: phase.Own,
		})
	}
	var of engine.Identity
	if planner, ok := any(p).(Planner); ok {
		of = planner.AsBase().Identity
	}
	return hook.Around(plan, m.Spec.Hooks, run, of)
}

// Planner is what every planner has by embedding Base.
type Planner interface {
	AsBase() *Base
}

// CheckPhase stops on blocking findings.
func CheckPhase[P Planner](title string) Phase[P] {
	return Phase[P]{Name: "check", Title: title, Own: true, Groups: func(p P) []engine.Group {
		return engine.InOrder(&CheckStep{Findings: p.AsBase().Findings})
	}}
}

// FinalPhase passes the point of no return.
func FinalPhase[P Planner]() Phase[P] {
	return Phase[P]{Name: "final", Title: "Pass the point of no return", Groups: func(p P) []engine.Group {
		return engine.InOrder(p.AsBase().Final())
	}}
}
