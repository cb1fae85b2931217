package e2e

import (
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// TestVersions moves the whole Service range under traffic, there, back, there again and for good, with each version of Kubernetes that
// labs run and that has ServiceCIDRs. Nothing may be lost.
func TestVersions(t *testing.T) {
	for _, v := range []struct{ kubernetes, gates string }{
		{kubernetes: "1.36.3"},
		{"1.33.13", "DisableAllocatorDualWrite=true,ComponentFlagz=true"},
	} {
		t.Run(v.kubernetes, func(t *testing.T) {
			topology := highlyAvailable("e2e-versions")
			topology.Kubernetes, topology.FeatureGates = v.kubernetes, v.gates
			thereAndBackAndThere(t, bringUp(t, topology))
		})
	}
	t.Run("1.31.0", testWithoutRanges)
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

// testWithoutRanges has each command say at once that a cluster has no ServiceCIDRs, and leave it as it is.
func testWithoutRanges(t *testing.T) {
	topology := named("e2e-versions")
	topology.Kubernetes = "1.31.0"
	l := bringUp(t, topology)
	before := allServices(t, l)
	file := writeWhole(t, l, "versions", shortDrain)
	for _, args := range [][]string{{"check", "-f", file}, {"plan", "-f", file}, {"apply", "-f", file}} {
		cmd := command(t, "replumb", append(args, "--kubeconfig", l.Kubeconfig())...)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(string(out), "RP1001") {
			t.Errorf("replumb %s: %v\n%s", args[0], err, out)
		}
		t.Logf("replumb %s %s:\n%s", args[0], filepath.Base(file), out)
	}
	requireSame(t, before, allServices(t, l))
}
