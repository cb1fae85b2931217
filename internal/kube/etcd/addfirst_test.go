//go:build apiserver && long

package etcd

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// writer puts one key after another, each once.
type writer struct {
	client *clientv3.Client
	stop   context.CancelFunc
	done   sync.WaitGroup
	// acknowledged are the revisions of the keys whose write was, failed the errors of those whose
	// was not.
	acknowledged map[string]int64
	failed       map[string]error
	longest      time.Duration
}

func startWriter(ctx context.Context, client *clientv3.Client) *writer {
	ctx, stop := context.WithCancel(ctx)
	w := &writer{client: client, stop: stop, acknowledged: map[string]int64{}, failed: map[string]error{}}
	w.done.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			w.put(fmt.Sprintf("writes/%06d", n))
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	return w
}

func (w *writer) put(key string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	start := time.Now()
	answer, err := w.client.Put(ctx, key, key)
	w.longest = max(w.longest, time.Since(start))
	if err != nil {
		w.failed[key] = err
		return
	}
	w.acknowledged[key] = answer.Header.Revision
}

// end stops writing.
func (w *writer) end() { w.stop(); w.done.Wait() }

// history is every change there was from a revision on, as one member tells it.
func history(ctx context.Context, client *clientv3.Client, from, to int64) ([]*clientv3.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var events []*clientv3.Event
	for answer := range client.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(from)) {
		if err := answer.Err(); err != nil {
			return nil, err
		}
		events = append(events, answer.Events...)
		if len(events) > 0 && events[len(events)-1].Kv.ModRevision >= to {
			return events, nil
		}
	}
	return nil, fmt.Errorf("%d events from revision %d to %d: %w", len(events), from, to, ctx.Err())
}

// lost counts the writes that were acknowledged and are not at their revision, and fails if a
// revision is missing or is of a key that no writer wrote.
func (w *writer) lost(events []*clientv3.Event, from int64) (int, error) {
	at := map[string]int64{}
	for i, e := range events {
		key := string(e.Kv.Key)
		_, failed := w.failed[key]
		_, acknowledged := w.acknowledged[key]
		switch {
		case e.Kv.ModRevision != from+int64(i):
			return 0, fmt.Errorf("revision %d where %d should be", e.Kv.ModRevision, from+int64(i))
		case e.Type != mvccpb.PUT || (!failed && !acknowledged):
			return 0, fmt.Errorf("revision %d: %s of %s, which no writer made", e.Kv.ModRevision, e.Type, key)
		}
		at[key] = e.Kv.ModRevision
	}
	lost := 0
	for key, revision := range w.acknowledged {
		if at[key] != revision {
			lost++
		}
	}
	return lost, nil
}

// TestAddFirst replaces all three members, one after another, while keys are written.
func TestAddFirst(t *testing.T) {
	t.Parallel() // most of the time the members wait for each other
	e := newEnsemble(t, 3)
	c := e.open("m1")
	drive(t, c.HealthyStep("before"))
	old, arriving := []string{"m1", "m2", "m3"}, []string{"m4", "m5", "m6"}
	for _, name := range arriving {
		e.place(name)
	}
	base, err := c.Digest(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	w := startWriter(t.Context(), e.plain(append(old, arriving...)...))
	defer w.end()
	path := filepath.Join(t.TempDir(), "etcd.db")
	drive(t, c.SnapshotStep(path))

	for i, leaves := range old {
		e.replaceFirst(c, leaves, arriving[i], old)
	}
	w.end()

	cluster := look(t, c)
	if voters, healthy := cluster.Voters(); voters != 3 || healthy != 3 || cluster.Find("m4") == nil || cluster.Find("m1") != nil {
		t.Fatalf("members are now:\n%s", shape(cluster))
	}
	hashes, err := c.HashKV(t.Context(), 0)
	if err != nil || len(hashes) != 3 || Compare(hashes) != nil {
		t.Fatalf("hashes %+v: %v %v", hashes, err, Compare(hashes))
	}
	d, err := c.Digest(t.Context(), 0)
	if err != nil || d.Keys < len(w.acknowledged) {
		t.Fatalf("digest %+v: %v", d, err)
	}
	for _, name := range arriving {
		events, err := history(t.Context(), e.plain(name), base.Revision+1, d.Revision)
		if err != nil {
			t.Fatal(err)
		}
		if lost, err := w.lost(events, base.Revision+1); lost > 0 || err != nil {
			t.Errorf("%s lost %d writes that were acknowledged: %v", name, lost, err)
		}
	}
	t.Logf("%d writes acknowledged, %d failed, the longest took %s; revisions %d to %d; keys %d",
		len(w.acknowledged), len(w.failed), w.longest, base.Revision+1, d.Revision, d.Keys)
	for key, err := range w.failed {
		t.Logf("%s failed: %v", key, err)
	}
	if len(w.acknowledged) < 100 {
		t.Errorf("only %d writes were acknowledged", len(w.acknowledged))
	}
	e.naively(c, w, base.Revision+1, d.Revision)
}

// replaceFirst is AddFirst of one member.
func (e *ensemble) replaceFirst(c *Client, leaves, arrives string, leaving []string) {
	t := e.t
	t.Helper()
	p := e.all[arrives]
	drive(t, c.HealthyStep("before-"+leaves), c.LearnerStep(arrives, p.Peer))
	p.InitialCluster = look(t, c).InitialCluster(arrives, p.Peer)
	e.start(arrives, "--initial-cluster-state=existing")
	drive(t, c.PromotedStep(arrives, p.Peer), c.HealthyStep("between-"+leaves), c.HandedOverStep(leaves, leaving...))
	if leads := look(t, c).Leading(); leads == nil || leads.Name == leaves {
		t.Fatalf("%+v leads", leads)
	}
	drive(t, c.RemovedStep(leaves, 3))
	e.awaitEnd(leaves) // etcd ends by itself when it is removed
	drive(t, c.HealthyStep("after-"+leaves))
	for _, again := range []func() error{
		func() error { return c.AddLearner(t.Context(), arrives, p.Peer) },
		func() error { return c.Promote(t.Context(), arrives) },
		func() error { return c.MoveLeaderFrom(t.Context(), leaves) },
		func() error { return c.Remove(t.Context(), leaves) },
	} {
		if err := again(); err != nil {
			t.Errorf("once more: %v", err)
		}
	}
}

// naively is the control: a cluster that is started again from what one member has that was away
// for a while. It has to lose what the others acknowledged meanwhile, and lost has to see it.
func (e *ensemble) naively(c *Client, w *writer, from, to int64) {
	t := e.t
	t.Helper()
	if err := c.MoveLeaderFrom(t.Context(), "m6"); err != nil {
		t.Fatal(err)
	}
	e.kill("m6")
	w.client = e.plain("m4", "m5")
	before := len(w.acknowledged)
	for n := range 20 {
		w.put(fmt.Sprintf("later/%d", n))
	}
	e.kill("m4")
	e.kill("m5")
	e.start("m6", "--force-new-cluster")
	eventually(t, time.Minute, func() error {
		events, err := history(t.Context(), e.plain("m6"), from, to)
		if err != nil {
			return err
		}
		if lost, err := w.lost(events, from); err != nil || lost != len(w.acknowledged)-before || lost == 0 {
			t.Errorf("starting again from one member lost %d writes, not %d: %v", lost, len(w.acknowledged)-before, err)
		}
		return nil
	})
}
