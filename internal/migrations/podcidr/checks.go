package podcidr

import (
	"slices"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/noderanges"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/migrations/podcidr/pools"
)

// Input is what the checks of all clusters look at: one with pools, or with ranges on its Nodes.
type Input struct {
	Pools      pools.Input
	NodeRanges noderanges.Input
}

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []findings.Check[Input] {
	return podmove.Ordered(
		findings.Of(func(in Input) pools.Input { return in.Pools }, pools.Checks()),
		findings.Of(func(in Input) noderanges.Input { return in.NodeRanges }, noderanges.Checks()),
	)
}

// ApplyPhases are the phases of apply, in order: those of clusters with pools come first.
func ApplyPhases() []string {
	return once(pools.Commands().Apply.Names(), noderanges.Commands().Apply.Names(), noderanges.PoolCommands().Apply.Names())
}

// phaseNames are the phases of all plans, which hooks can name.
func phaseNames() []string {
	return once(pools.Commands().Names(), noderanges.Commands().Names(), noderanges.PoolCommands().Names())
}

// Outlines are the phases of all commands, for people.
func Outlines() []migration.Outline {
	return []migration.Outline{
		pools.Commands().Outline("with Calico's pools"),
		noderanges.Commands().Outline("where Nodes carry the ranges"),
		noderanges.PoolCommands().Outline("where Cilium's operator gives nodes their ranges"),
	}
}

func once(lists ...[]string) []string {
	var all []string
	for _, name := range slices.Concat(lists...) {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}
