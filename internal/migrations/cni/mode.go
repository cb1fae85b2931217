package cni

import (
	"context"

	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/drained"
	"github.com/replumb/replumb/internal/migrations/cni/inplace"
	"github.com/replumb/replumb/internal/migrations/cni/proxy"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
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
	load func(context.Context, Deps, *switchover.Inventory) (Strategy, error)
}

// load makes a loader of what a room has.
func load[S Strategy](
	of func(context.Context, Deps, *switchover.Inventory) (S, error),
) func(context.Context, Deps, *switchover.Inventory) (Strategy, error) {
	return func(ctx context.Context, d Deps, i *switchover.Inventory) (Strategy, error) {
		return of(ctx, d, i)
	}
}

// modeOf is the one that a Migration names.
func modeOf(s Spec) mode {
	switch {
	case s.ReplaceProxy:
		return mode{inplace.Commands().Apply.Names(), true, []string{roleInPlace, roleProxy}, load(proxy.Load)}
	case s.Serving:
		return mode{inplace.Commands().Apply.Names(), true, []string{roleInPlace}, load(inplace.Load)}
	}
	return mode{drained.Commands().Apply.Names(), false, nil, load(drained.Load)}
}

// ApplyPhases are the names of the phases of apply with the mode, in order.
func (j *Job) ApplyPhases() []string { return modeOf(j.Spec).apply }

// phaseNames are the names of the phases of all commands of both modes, each once. Hooks can name
// them.
func phaseNames() []string {
	return switchover.Once(drained.Commands().Names(), inplace.Commands().Names())
}

// allApplyPhases are the names of the phases of apply of both modes, each once.
func allApplyPhases() []string {
	return switchover.Once(drained.Commands().Apply.Names(), inplace.Commands().Apply.Names())
}

// Outlines are the phases of all commands, for people.
func Outlines() []migration.Outline {
	return []migration.Outline{drained.Commands().Outline("mode Drained"), inplace.Commands().Outline("mode InPlace")}
}
