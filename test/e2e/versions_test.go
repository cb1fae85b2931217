package e2e

import (
	"slices"
	"testing"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// TestVersions moves the whole Service range under traffic, there, back, there again and for good, with each version of Kubernetes that
// labs run. Nothing may be lost.
func TestVersions(t *testing.T) {
	for _, v := range []struct{ kubernetes, gates string }{
		{kubernetes: "1.36.3"},
		{"1.33.13", "DisableAllocatorDualWrite=true,ComponentFlagz=true"},
		{kubernetes: "1.31.0"}, // without ServiceCIDRs: the range is a flag
	} {
		t.Run(v.kubernetes, func(t *testing.T) {
			topology := highlyAvailable("e2e-versions")
			topology.Kubernetes, topology.FeatureGates = v.kubernetes, v.gates
			thereAndBackAndThere(t, bringUp(t, topology))
		})
	}
}

func thereAndBackAndThere(t *testing.T, l *lab.Lab) {
	t.Helper()
	forgetNamesSoon(t, l)
	s := wholeUnderTraffic(t, l)
	before := allServices(t, l)
	moveWhole(t, l, s, writeWhole(t, l, "versions", shortDrain))
	back := s.during(t, "the whole rollback", func() { attend(t, l, oldRange, 0, "rollback", "versions", "--yes") })
	back.requireNothingLost(t, traffic.All)
	requireSame(t, before, allServices(t, l))
	requireWhole(t, l, oldRange)
	requireNoTrace(t, l)
	moveWhole(t, l, s, writeWhole(t, l, "again", shortDrain))
	over := s.during(t, "finish", func() { attend(t, l, newRange, 0, "finish", "again", "--yes", "--leave-clients") })
	over.requireNothingLost(t, func(s traffic.Source) bool { // what is at an old address goes, as it is to
		return !slices.Contains([]traffic.Via{traffic.ByOldAddress, traffic.ByAPIOldAddress, traffic.ByAPIKept, traffic.ByOldServer}, s.Via)
	})
	requireWhole(t, l, newRange)
	requireNaiveLoses(t, l)
}
