//go:build apiserver && long

package etcd

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestAddFirstOfTwo replaces three machines that have a member of each of two etcds, as kOps has
// one for events beside the first one: in both of them one member after another, while keys are
// written to both. Neither loses a write, and the steps are told apart.
func TestAddFirstOfTwo(t *testing.T) {
	t.Parallel()
	old, arriving := []string{"m1", "m2", "m3"}, []string{"m4", "m5", "m6"}
	type side struct {
		*ensemble
		c    *Client
		w    *writer
		base Digest
	}
	var sides []*side
	for _, label := range []string{"", "events"} {
		s := &side{ensemble: newEnsemble(t, 3)}
		s.label = label
		s.c = s.open("m1")
		drive(t, s.c.HealthyStep("before"))
		for _, name := range arriving {
			s.place(name)
		}
		base, err := s.c.Digest(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		s.base = base
		s.w = startWriter(t.Context(), s.plain(append(old[:3:3], arriving...)...))
		defer s.w.end()
		drive(t, s.c.SnapshotStep(filepath.Join(t.TempDir(), "etcd.db")))
		sides = append(sides, s)
	}
	if first, second := look(t, sides[0].c).ID, look(t, sides[1].c).ID; first == second {
		t.Fatal("there is but one etcd")
	}
	a, b := sides[0].c.HealthyStep("x"), sides[1].c.HealthyStep("x")
	if a.ID() == b.ID() || !strings.Contains(b.Title(), "events etcd") || strings.Contains(a.Title(), "events") {
		t.Errorf("steps are called %s (%s) and %s (%s)", a.ID(), a.Title(), b.ID(), b.Title())
	}

	for i, leaves := range old {
		for _, s := range sides {
			s.replaceFirst(s.c, leaves, arriving[i], old)
		}
	}
	for _, s := range sides {
		s.w.end()
		cluster := look(t, s.c)
		if voters, healthy := cluster.Voters(); voters != 3 || healthy != 3 || cluster.Find("m4") == nil || cluster.Find("m1") != nil {
			t.Errorf("%q: members are now:\n%s", s.label, shape(cluster))
		}
		d, err := s.c.Digest(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range arriving {
			events, err := history(t.Context(), s.plain(name), s.base.Revision+1, d.Revision)
			if err != nil {
				t.Fatal(err)
			}
			if lost, err := s.w.lost(events, s.base.Revision+1); lost > 0 || err != nil {
				t.Errorf("%q: %s lost %d writes that were acknowledged: %v", s.label, name, lost, err)
			}
		}
		t.Logf("%q: %d writes acknowledged, %d failed, the longest took %s", s.label, len(s.w.acknowledged), len(s.w.failed), s.w.longest)
		if len(s.w.acknowledged) < 100 {
			t.Errorf("%q: only %d writes were acknowledged", s.label, len(s.w.acknowledged))
		}
	}
}
