//go:build apiserver && long

package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/testing/pki"
)

// TestGuards breaks an ensemble in one way after another, and repairs it.
func TestGuards(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t, 3, fmt.Sprintf("--quota-backend-bytes=%d", 8<<20))
	c := e.open("m1", "m2", "m3")
	drive(t, c.HealthyStep("before"))
	for _, test := range []struct {
		name string
		run  func(*testing.T, *ensemble, *Client)
	}{
		{"open", testOpen},
		{"snapshot", testSnapshot},
		{"digest", testDigest},
		{"learner that never starts", testNeverStarts},
		{"dead member", testDead},
		{"no majority", testNoMajority},
		{"no space", testNoSpace}, // last: it stays full
	} {
		ok := t.Run(test.name, func(t *testing.T) { test.run(t, e, c) })
		if !ok {
			return
		}
	}
}

// refused wants a change to be refused in these words, and nothing to have changed.
// said is what a user reads of an error.
func said(err error) string { return err.Error() + "\nhint: " + fault.Advice(err) }

func refused(t *testing.T, c *Client, what string, change func(context.Context) error, words ...string) {
	t.Helper()
	before := shape(look(t, c))
	err := change(t.Context())
	var refused *RefusedError
	if !errors.As(err, &refused) {
		t.Errorf("%s: %v", what, err)
		return
	}
	for _, w := range words {
		if !strings.Contains(said(err), w) {
			t.Errorf("%s: %q does not say %q", what, said(err), w)
		}
	}
	if after := shape(look(t, c)); after != before {
		t.Errorf("%s was refused, and yet made\n%s\nof\n%s", what, after, before)
	}
}

func testNeverStarts(t *testing.T, e *ensemble, c *Client) {
	p := e.place("m4")
	learner := c.LearnerStep("m4", p.Peer)
	drive(t, learner)
	for range 2 {
		if err := c.AddLearner(t.Context(), "m4", p.Peer); err != nil {
			t.Error(err)
		}
	}
	promoted := c.PromotedStep("m4", p.Peer).(*step)
	promoted.limit = 3 * time.Second
	var late *engine.DeadlineError
	if err := engine.Drive(t.Context(), promoted); !errors.As(err, &late) || !strings.Contains(err.Error(), "it has not started") {
		t.Errorf("a learner that never starts: %v", err)
	}
	refused(t, c, "another learner", func(ctx context.Context) error { return c.AddLearner(ctx, "m5", "https://127.0.0.1:1") },
		"it has not started (of 3 voters 3 would be left to agree, of 3, and it takes 2)")
	refused(t, c, "its address for another", func(ctx context.Context) error { return c.AddLearner(ctx, "m5", e.all["m1"].Peer) },
		"its peer URL is that of member m1")
	refused(t, c, "removal of a voter", func(ctx context.Context) error { return c.Remove(ctx, "m1") }, "it has not started")
	refused(t, c, "stopping a voter", func(ctx context.Context) error { return c.MayStop(ctx, "m1") }, "it has not started")
	if healthy, err := c.HealthyStep("x").State(t.Context()); healthy != engine.Pending || err != nil {
		t.Errorf("with a learner that never starts it is %s: %v", healthy, err)
	}
	drive(t, c.HealthyStep("but-that-one", p.Peer))
	drive(t, learner.(engine.Undoer).Undo(), c.HealthyStep("after"))
}

func testDead(t *testing.T, e *ensemble, c *Client) {
	dead := follower(t, c)
	others := without([]string{"m1", "m2", "m3"}, dead)
	e.kill(dead)
	start := time.Now()
	cluster := look(t, c)
	if took := time.Since(start); took > c.config.Timeout {
		t.Errorf("a dead member costs %s", took)
	}
	if m := cluster.Find(dead); m.Healthy || m.Problem == "" {
		t.Errorf("dead member: %+v", m)
	}
	why := []string{"member " + dead + " is not healthy: ", "of 3 voters 2 would be left to agree, of 3, and it takes 2"}
	less := []string{why[0], "of 3 voters 1 would be left to agree, of 3, and it takes 2"}
	refused(t, c, "add", func(ctx context.Context) error { return c.AddLearner(ctx, "m5", "https://127.0.0.1:1") }, why...)
	refused(t, c, "stop", func(ctx context.Context) error { return c.MayStop(ctx, others[0]) }, less...)
	refused(t, c, "new address", func(ctx context.Context) error { return c.SetPeerURLs(ctx, others[0], "https://127.0.0.1:1") }, less...)
	for _, who := range others {
		refused(t, c, "remove", func(ctx context.Context) error { return c.Remove(ctx, who) }, why[0],
			"of 3 voters 1 would be left to agree, of 2, and it takes 2")
	}
	refused(t, c, "remove, and leave three", func(ctx context.Context) error { return c.remove(ctx, dead, 3) },
		"2 voters would be left, and it should be 3")
	removed := c.RemovedStep(others[0], 3).(*step)
	removed.limit = 3 * time.Second
	if err := engine.Drive(t.Context(), removed); err == nil || !strings.Contains(err.Error(), "it takes 2") {
		t.Errorf("what people are told: %v", err)
	}
	drive(t, c.HealthyStep("but-that-one", dead))
	if state, err := c.HealthyStep("x", others[0]).State(t.Context()); state != engine.Pending || err != nil {
		t.Errorf("with a dead member it is %s: %v", state, err)
	}
	if _, err := c.HashKV(t.Context(), 0); !engine.Retryable(err) {
		t.Errorf("hash of a dead member: %v", err)
	}
	e.start(dead)
	drive(t, c.HealthyStep("after"))
}

func testNoMajority(t *testing.T, e *ensemble, patient *Client) {
	impatient := *patient
	c := &impatient
	c.config.Timeout = time.Second
	dead := []string{follower(t, c), look(t, c).Leading().Name}
	for _, name := range dead {
		e.kill(name)
	}
	cluster := look(t, c)
	all, healthy := cluster.Voters()
	if cluster.Unsure == "" || all != 3 || healthy != 0 || len(cluster.Members) != 3 {
		t.Errorf("without a majority: %d of %d, %q", healthy, all, cluster.Unsure)
	}
	err := c.Remove(t.Context(), dead[0])
	if !engine.Retryable(err) || !strings.Contains(err.Error(), "of 3 voters 0 are healthy, and it takes 2") {
		t.Errorf("removal without a majority: %v", err)
	}
	for _, s := range []engine.Step{c.RemovedStep("gone", 3), c.HandedOverStep(dead[1])} {
		if state, err := s.State(t.Context()); state != engine.Unknown || err == nil {
			t.Errorf("without a majority %s is %s: %v", s.ID(), state, err)
		}
	}
	for _, name := range dead {
		e.start(name)
	}
	drive(t, patient.HealthyStep("after"))
}

func testNoSpace(t *testing.T, e *ensemble, c *Client) {
	plain := e.plain("m1")
	value := strings.Repeat("x", 1<<20)
	var err error
	for n := 0; n < 40 && err == nil; n++ {
		_, err = plain.Put(t.Context(), fmt.Sprintf("big/%d", n), value)
	}
	if err == nil {
		t.Fatal("there is room for more than the quota")
	}
	eventually(t, time.Minute, func() error {
		if complaint := look(t, c).Problem(); !strings.Contains(complaint, "has raised NOSPACE") {
			return fmt.Errorf("complaint: %q", complaint)
		}
		return nil
	})
	for what, change := range map[string]func(context.Context) error{
		"add":  func(ctx context.Context) error { return c.AddLearner(ctx, "m5", "https://127.0.0.1:1") },
		"stop": func(ctx context.Context) error { return c.MayStop(ctx, "m1") },
	} {
		refused(t, c, what, change, "has raised NOSPACE", "hint: ", "etcdctl alarm disarm")
		if err := change(t.Context()); engine.Retryable(err) {
			t.Errorf("%s is tried again, and NOSPACE does not pass by itself", what)
		}
	}
}

// testOpen tries what people get wrong.
func testOpen(t *testing.T, e *ensemble, _ *Client) {
	authority, err := pki.NewCA("another")
	if err != nil {
		t.Fatal(err)
	}
	wrong := e.files
	wrong.CA = filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(wrong.CA, authority.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	distrusting, err := wrong.Load()
	if err != nil {
		t.Fatal(err)
	}
	here := []string{e.all["m1"].Client}
	for _, tt := range []struct {
		config Config
		words  string
	}{
		{Config{}, "no endpoint of etcd is given\nhint: "},
		{Config{Endpoints: here, TLS: distrusting}, "certificate signed by unknown authority"},
		{Config{Endpoints: here, TLS: &tls.Config{RootCAs: e.tls().RootCAs}}, "etcd at "}, // without a client certificate
		{Config{Endpoints: []string{"https://127.0.0.1:1"}, TLS: e.tls()}, "connection refused\nhint: are these client URLs"},
	} {
		c, err := Open(t.Context(), tt.config)
		if err == nil || !strings.Contains(said(err), tt.words) || fault.Advice(err) == "" || c != nil {
			t.Errorf("%v: %v, not %q", tt.config.Endpoints, err, tt.words)
		}
	}
	c, err := Open(t.Context(), Config{Endpoints: append([]string{"https://127.0.0.1:1"}, here...), TLS: e.tls()})
	if err != nil {
		t.Fatalf("with one of two that answers: %v", err)
	}
	if complaint := look(t, c).Problem(); complaint != "" {
		t.Error(complaint)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func testSnapshot(t *testing.T, e *ensemble, c *Client) {
	plain := e.plain("m1")
	for n := range 50 {
		if _, err := plain.Put(t.Context(), fmt.Sprintf("keys/%d", n%40), strings.Repeat("v", n)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "etcd.db")
	if err := os.WriteFile(path+".part", []byte("what a kill has left"), 0o644); err != nil {
		t.Fatal(err)
	}
	first, err := c.Snapshot(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.Digest(t.Context(), first.Revision)
	if err != nil || d.Keys != first.Keys || first.Revision != 51 || first.Keys != 40 {
		t.Errorf("the snapshot has %+v, and etcd %+v: %v", first, d, err)
	}
	if stat, err := os.Stat(path); err != nil || stat.Mode().Perm() != 0o600 || stat.Size() != first.Size+32 {
		t.Errorf("%v: %v", stat, err)
	}
	drive(t, c.SnapshotStep(path))
	if second, err := c.Snapshot(t.Context(), path); err != nil || second.Revision < first.Revision {
		t.Errorf("once more in the same run: %+v: %v", second, err)
	}
	entries, _ := os.ReadDir(filepath.Dir(path))
	if len(entries) != 2 {
		t.Errorf("there are %v", entries)
	}
	testSnapshotRefused(t, c, path)
}

func testSnapshotRefused(t *testing.T, c *Client, path string) {
	another := *c
	another.config.Run = "another"
	before, _ := os.ReadFile(path)
	if _, err := another.Snapshot(t.Context(), path); !errors.Is(err, ErrTaken) {
		t.Errorf("the file of another run: %v", err)
	}
	if _, err := c.Snapshot(t.Context(), filepath.Join(path+"-no", "etcd.db")); !errors.Is(err, ErrNoFolder) {
		t.Errorf("no folder: %v", err)
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("what was refused has changed the file")
	}
	for what, body := range map[string][]byte{
		"a bit":      flipped(before, len(before)/2),
		"the hash":   flipped(before, len(before)-1),
		"the end":    before[:len(before)-512],
		"everything": nil,
	} {
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := verifySnapshot(path); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
		if err := engine.Drive(t.Context(), c.SnapshotStep(path)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("step, %s: %v", what, err)
		}
	}
}

func flipped(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}

// testDigest changes one thing at a time: every one shows.
func testDigest(t *testing.T, e *ensemble, c *Client) {
	plain := e.plain("m2")
	digest := func(revision int64) Digest {
		t.Helper()
		d, err := c.Digest(t.Context(), revision)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for n := range pageSize + 20 { // more than a page
		if _, err := plain.Put(t.Context(), fmt.Sprintf("pages/%d", n), ""); err != nil {
			t.Fatal(err)
		}
	}
	first := digest(0)
	lease, err := plain.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{first.SHA256: true}
	for what, change := range map[string]func() error{
		"the same again": func() error { _, err := plain.Put(t.Context(), "pages/1", ""); return err },
		"another value":  func() error { _, err := plain.Put(t.Context(), "pages/1", "x"); return err },
		"a lease": func() error {
			_, err := plain.Put(t.Context(), "pages/1", "x", clientv3.WithLease(lease.ID))
			return err
		},
		"one key missing": func() error { _, err := plain.Delete(t.Context(), "pages/2"); return err },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if d := digest(0); seen[d.SHA256] {
			t.Errorf("%s does not show", what)
		} else {
			seen[d.SHA256] = true
		}
	}
	if again := digest(first.Revision); again != first {
		t.Errorf("at the same revision: %+v and %+v", first, again)
	}
	hashes, err := c.HashKV(t.Context(), first.Revision)
	if err != nil || len(hashes) != 3 || Compare(hashes) != nil {
		t.Errorf("%+v: %v, %v", hashes, err, Compare(hashes))
	}
}

// follower is the name of one that does not lead.
func follower(t *testing.T, c *Client) string {
	t.Helper()
	cluster := look(t, c)
	return cluster.nextLeader(nil).Name
}

func without(names []string, name string) []string {
	var rest []string
	for _, n := range names {
		if n != name {
			rest = append(rest, n)
		}
	}
	return rest
}
