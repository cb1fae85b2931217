package cni

import (
	"context"

	"github.com/replumb/replumb/internal/migration"
)

// mode is what is known of a strategy before anyone has looked at a cluster.
type mode struct {
	// apply are the names of the phases of apply, in order.
	apply []string
	// serves says that the cluster serves meanwhile, so that agents have something to see.
	serves bool
	// roles end the names of those that not every migration takes.
	roles []string
	// load looks at what this strategy goes by beside the inventory.
	load func(context.Context, Deps, *Inventory) (Strategy, error)
}

// modeOf is the one that a Migration names.
func modeOf(s Spec) mode {
	switch {
	case s.ReplaceProxy:
		return mode{
			apply: inPlaceCommands().Apply.Names(), serves: true, roles: []string{roleInPlace, roleProxy},
			load: func(ctx context.Context, d Deps, i *Inventory) (Strategy, error) { return loadProxy(ctx, d, i) },
		}
	case s.Serving:
		return mode{
			apply: inPlaceCommands().Apply.Names(), serves: true, roles: []string{roleInPlace},
			load: func(ctx context.Context, d Deps, i *Inventory) (Strategy, error) { return loadInPlace(ctx, d, i) },
		}
	}
	return mode{
		apply: drainedCommands().Apply.Names(),
		load:  func(_ context.Context, _ Deps, i *Inventory) (Strategy, error) { return newDrained(i), nil },
	}
}

// ApplyPhases are the names of the phases of apply with the mode, in order.
func (j *Job) ApplyPhases() []string { return modeOf(j.Spec).apply }

// PhaseNames are the names of the phases of all commands of both modes, each once. Hooks can name them.
func PhaseNames() []string { return once(drainedCommands().Names(), inPlaceCommands().Names()) }

// AllApplyPhases are the names of the phases of apply of both modes, each once.
func AllApplyPhases() []string {
	return once(drainedCommands().Apply.Names(), inPlaceCommands().Apply.Names())
}

// Outlines are the phases of all commands, for people.
func Outlines() []migration.Outline {
	return []migration.Outline{drainedCommands().Outline("mode Drained"), inPlaceCommands().Outline("mode InPlace")}
}
