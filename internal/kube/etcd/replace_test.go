//go:build apiserver && long

package etcd

import (
	"context"
	"os"
	"testing"

	"github.com/replumb/replumb/internal/engine"
)

// TestReplace moves all three members with their data to other addresses, one after another, while
// keys are written.
func TestReplace(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t, 3)
	c := e.open("m1")
	drive(t, c.HealthyStep("before"))
	base, err := c.Digest(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	plain := e.plain("m1", "m2", "m3")
	w := startWriter(t.Context(), plain)
	defer w.end()
	ids := map[uint64]string{}
	for _, m := range look(t, c).Members {
		ids[m.ID] = m.Name
	}
	for _, name := range look(t, c).LeaderLast([]string{"m1", "m2", "m3"}) {
		e.moveWithData(c, name)
		plain.SetEndpoints(e.all["m1"].Client, e.all["m2"].Client, e.all["m3"].Client)
	}
	w.end()

	cluster := look(t, c)
	for _, m := range cluster.Members {
		if ids[m.ID] != m.Name || len(m.PeerURLs) != 1 || m.PeerURLs[0] != e.all[m.Name].Peer {
			t.Errorf("member %+v", m)
		}
	}
	d, err := c.Digest(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for name := range e.all {
		events, err := history(t.Context(), e.plain(name), base.Revision+1, d.Revision)
		if err != nil {
			t.Fatal(err)
		}
		if lost, err := w.lost(events, base.Revision+1); lost > 0 || err != nil {
			t.Errorf("%s lost %d writes that were acknowledged: %v", name, lost, err)
		}
	}
	t.Logf("%d writes acknowledged, %d failed, the longest took %s", len(w.acknowledged), len(w.failed), w.longest)
	if len(w.acknowledged) < 100 {
		t.Errorf("only %d writes were acknowledged", len(w.acknowledged))
	}
}

// moveWithData is Replace of one member.
func (e *ensemble) moveWithData(c *Client, name string) {
	t := e.t
	t.Helper()
	old := e.all[name]
	moved := e.place(name)
	e.all[name] = old // until it is stopped
	drive(t, c.HealthyStep("before-"+name), c.HandedOverStep(name), c.MayStopStep(name, moved.Peer))
	e.stop(name)
	if state, err := c.MayStopStep(name, moved.Peer).State(t.Context()); state != engine.Done || err != nil {
		t.Errorf("whether %s may stop, once it has: %s, %v", name, state, err)
	}
	for _, other := range without([]string{"m1", "m2", "m3"}, name) {
		refused(t, c, "stopping another", func(ctx context.Context) error { return c.MayStop(ctx, other) },
			"of 3 voters 1 would be left to agree, of 3, and it takes 2")
	}
	refused(t, c, "the address of another", func(ctx context.Context) error {
		return c.SetPeerURLs(ctx, name, e.all[without([]string{"m1", "m2", "m3"}, name)[0]].Peer)
	}, "its peer URL is that of member")
	again := []engine.Step{c.HealthyStep("before-"+name, name), c.HandedOverStep(name), c.MayStopStep(name, moved.Peer)}
	drive(t, again...) // killed now, a run goes through all of it again
	drive(t, c.ReaddressedStep(name, moved.Peer))
	drive(t, again...)
	if err := os.Rename(old.Dir, old.Dir+"-moved"); err != nil {
		t.Fatal(err)
	}
	moved.Dir = old.Dir + "-moved"
	e.all[name] = moved
	e.start(name)
	drive(t, c.HealthyStep("after-"+name), c.MayStopStep(name, moved.Peer), c.ReaddressedStep(name, moved.Peer))
}
