package e2e

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
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
	s = startedSince(t, l, s)
	over := s.during(t, "finish", func() { attend(t, l, newRange, 0, "finish", "again", "--yes", "--leave-clients") })
	over.requireNothingLost(t, traffic.All)
	requireWhole(t, l, newRange)
	requireNaiveLoses(t, l)
}

// startedSince ends the clients that were there before the move, and has others do the same: what calls old addresses loses them in finish, and so
// does who was given an old name server.
func startedSince(t *testing.T, l *lab.Lab, before *shop) *shop {
	t.Helper()
	before.watch.Stop()
	removeClients(t, l, shopNamespace, callersNamespace)
	var callees []traffic.Callee
	for name, svc := range shopServices(t, l) {
		if len(svc.Spec.Selector) > 0 && svc.Labels[v1alpha1.LabelRole] == "" {
			callees = append(callees, traffic.Callee{Name: name, Address: svc.Spec.ClusterIP})
		}
	}
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(),
		traffic.Call(shopNamespace, callees, wholeRates()).AndKeep(callees, wholeRates()),
		traffic.CallNewAPI(callersNamespace, newAPI, clusterRates()).AndAskNew(newDNS, clusterRates()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watch.Stop)
	s := &shop{watch: watch}
	s.steady(t)
	return s
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
