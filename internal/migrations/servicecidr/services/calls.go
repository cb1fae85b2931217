package services

import (
	"slices"

	"github.com/replumb/replumb/internal/kube/inventory"
)

// MarkCalled has Services that API servers call move alone, each as the last of its tier.
func (s *Inventory) MarkCalled(all []inventory.Called) {
	for _, e := range s.Moves {
		for _, c := range all {
			e.Called = e.Called || c.Service == e.Key() && e.Hops()
		}
	}
	rank := func(e *Entry) int {
		switch {
		case e.IsKubernetes():
			return 2
		case e.Called:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(s.Moves, func(a, b *Entry) int { return rank(a) - rank(b) })
}

// SplitInBatches parts entries of a tier, in their order; some are alone in theirs.
func SplitInBatches(entries []*Entry, size int) (all [][]*Entry) {
	apart := true
	for _, e := range entries {
		if n := len(all); apart || e.Called || len(all[n-1]) == size {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], e)
		apart = e.Called
	}
	return all
}
