package cni

import (
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations/cni/drained"
	"github.com/replumb/replumb/internal/migrations/cni/inplace"
	"github.com/replumb/replumb/internal/migrations/cni/proxy"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
)

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []findings.Check[switchover.Input] {
	all := slices.Concat(switchover.Checks(), drained.Checks(), inplace.Checks(), proxy.Checks())
	slices.SortStableFunc(all, func(a, b findings.Check[switchover.Input]) int { return strings.Compare(a.Code, b.Code) })
	return all
}
