package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/lab/lab"
)

// TestMigrationsAreValid reads what is written for replumb as replumb does, and has each lead on where the one before ended.
func TestMigrationsAreValid(t *testing.T) {
	old := netip.MustParsePrefix(firstRange)
	for n := range 8 {
		m := migration{number: n + 1, name: "soak-1", old: old, new: rangeOf(n + 1)}
		if _, err := spec.Parse([]byte(m.text([]string{"127.0.0.1:6443", "127.0.0.1:6444"}))); err != nil {
			t.Fatal(err)
		}
		if m.new.Overlaps(m.old) {
			t.Errorf("migration %d leads from %s to %s", n+1, m.old, m.new)
		}
		old = m.new
	}
	topology := lab.Default()
	if topology.ServiceCIDR.String() != firstRange {
		t.Errorf("the lab begins with %s", topology.ServiceCIDR)
	}
	for _, network := range topology.Networks {
		for n := range 8 {
			if r := rangeOf(n + 1); r.Overlaps(network.CIDR) || r.Overlaps(topology.PodCIDR) {
				t.Errorf("%s is in use", r)
			}
		}
	}
}

func TestPauses(t *testing.T) {
	draw, again := pauses(1, 4, time.Second, 6*time.Second), pauses(1, 4, time.Second, 6*time.Second)
	for range 1000 {
		d := draw()
		if d != again() || d < time.Second || d > 6*time.Second {
			t.Fatalf("a pause of %s", d)
		}
	}
}
