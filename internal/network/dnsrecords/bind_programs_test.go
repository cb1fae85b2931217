//go:build programs && long

package dnsrecords

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// TestBindUpdates is about single updates: what BIND takes, and what it refuses.
func TestBindUpdates(t *testing.T) {
	b := startBind(t)
	get := func(t *testing.T, name string, typ v1alpha1.RecordType) RecordSet {
		t.Helper()
		s, err := b.provider().Get(t.Context(), name, typ)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	set := func(name string, typ v1alpha1.RecordType, ttl time.Duration, values ...string) RecordSet {
		s, err := NewSet(name, typ, ttl, values)
		if err != nil {
			panic(err)
		}
		return s
	}

	t.Run("signed", func(t *testing.T) {
		was := get(t, "api.example.test", v1alpha1.RecordA)
		if !was.Same(set("api.example.test", v1alpha1.RecordA, 0, "192.0.2.1", "192.0.2.2")) || was.TTL != 3*time.Second {
			t.Fatalf("it begins with %s", describe(was))
		}
		want := set("api.example.test", v1alpha1.RecordA, 2*time.Second, "192.0.2.1", "198.51.100.1")
		if err := b.provider().Replace(t.Context(), was, want); err != nil {
			t.Fatal(err)
		}
		if now := get(t, want.Name, want.Type); !now.Same(want) || now.TTL != want.TTL {
			t.Errorf("it became %s", describe(now))
		}
	})

	t.Run("another client was faster", func(t *testing.T) {
		was := get(t, "api.example.test", v1alpha1.RecordA)
		theirs := set(was.Name, was.Type, was.TTL, "203.0.113.9")
		if err := b.provider().Replace(t.Context(), was, theirs); err != nil {
			t.Fatal(err)
		}
		err := b.provider().Replace(t.Context(), was, set(was.Name, was.Type, was.TTL, "198.51.100.1"))
		var conflict *ConflictError
		if !errors.As(err, &conflict) || conflict.Now == nil || !conflict.Now.Same(theirs) ||
			!strings.Contains(err.Error(), "203.0.113.9") {
			t.Fatalf("got %v", err)
		}
		if !engine.Retryable(err) {
			t.Error("a conflict does not ask for another look")
		}
		if now := get(t, was.Name, was.Type); !now.Same(theirs) {
			t.Errorf("their change is gone: %s", describe(now))
		}
	})

	t.Run("keys", func(t *testing.T) {
		was := get(t, "naive.example.test", v1alpha1.RecordA)
		for _, tt := range []struct{ name, secret, problem string }{
			{"replumb", "YW5vdGhlciBzZWNyZXQ=", "refused key replumb: it answered BADSIG"},
			{"stranger", secret, "refused key stranger: it answered BADKEY"},
		} {
			key, err := NewKey(tt.name, "hmac-sha256", tt.secret)
			if err != nil {
				t.Fatal(err)
			}
			d := b.provider()
			d.Key = key
			err = d.Replace(t.Context(), was, set(was.Name, was.Type, was.TTL, "198.51.100.1"))
			var whole *Error
			if !errors.As(err, &whole) || whole.Hint == "" || !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("%s: %v", tt.name, err)
			}
			if strings.Contains(err.Error(), tt.secret) {
				t.Error("the error tells the secret")
			}
		}
		for name, key := range map[string]*TSIGKey{"locked.example.test": b.key, "naive.example.test": nil} {
			d := b.provider()
			d.Key = key
			have := get(t, name, v1alpha1.RecordA)
			err := d.Replace(t.Context(), have, set(name, v1alpha1.RecordA, time.Minute, "198.51.100.1"))
			var whole *Error
			if !errors.As(err, &whole) || whole.Hint == "" || !strings.Contains(err.Error(), "REFUSED") {
				t.Errorf("%s: %v", name, err)
			}
			if now := get(t, name, v1alpha1.RecordA); !now.Same(have) {
				t.Errorf("%s was changed: %s", name, describe(now))
			}
		}
	})

	t.Run("created, and deleted", func(t *testing.T) {
		for _, want := range []RecordSet{
			set("new.sub.example.test", v1alpha1.RecordAAAA, time.Minute, "2001:db8::1", "2001:db8::2"),
			set("new.sub.example.test", v1alpha1.RecordA, time.Minute, "192.0.2.1"),
			set("other.sub.example.test", v1alpha1.RecordCNAME, time.Minute, "lb.example.net"),
		} {
			nothing := get(t, want.Name, want.Type)
			if len(nothing.Values) > 0 {
				t.Fatalf("there is %s", describe(nothing))
			}
			if err := b.provider().Replace(t.Context(), nothing, want); err != nil {
				t.Fatal(err)
			}
			if now := get(t, want.Name, want.Type); !now.Same(want) {
				t.Errorf("%s became %s", want, describe(now))
			}
			var conflict *ConflictError
			if err := b.provider().Replace(t.Context(), nothing, want); !errors.As(err, &conflict) {
				t.Errorf("created twice: %v", err)
			}
			if err := b.provider().Replace(t.Context(), want, nothing); err != nil {
				t.Fatal(err)
			}
			if now := get(t, want.Name, want.Type); len(now.Values) > 0 {
				t.Errorf("it is still there: %s", describe(now))
			}
		}
	})

	t.Run("an alias in the way", func(t *testing.T) {
		var whole *Error
		if _, err := b.provider().Get(t.Context(), "www.example.test", v1alpha1.RecordA); !errors.As(err, &whole) || whole.Hint == "" {
			t.Errorf("looked at: %v", err)
		}
		err := b.provider().Replace(t.Context(), set("www.example.test", v1alpha1.RecordA, 0),
			set("www.example.test", v1alpha1.RecordA, time.Minute, "198.51.100.1"))
		if err == nil {
			t.Error("an address beside a CNAME is taken, which the server has silently left out")
		}
		err = b.provider().Replace(t.Context(), set("a.sub.example.test", v1alpha1.RecordA, 0),
			set("a.sub.example.test", v1alpha1.RecordA, time.Minute, "198.51.100.1"))
		if err != nil {
			t.Fatal(err)
		}
		err = b.provider().Replace(t.Context(), set("a.sub.example.test", v1alpha1.RecordCNAME, 0),
			set("a.sub.example.test", v1alpha1.RecordCNAME, time.Minute, "lb.example.net"))
		var conflict *ConflictError
		if !errors.As(err, &conflict) {
			t.Errorf("a CNAME beside an address: %v", err)
		}
	})
}

// watch asks a recursive server again and again, as clients do that use an answer for as long as it
// lives, and keeps every address that clients may be using now.
type watch struct {
	mu      sync.Mutex
	expires map[string]time.Time
	failed  []string
	stop    func()
}

func startWatch(t *testing.T, b *bind, name string, typ v1alpha1.RecordType) *watch {
	w := &watch{expires: map[string]time.Time{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	c := &Client{}
	go func() {
		defer close(done)
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			a := c.AskResolvers(context.WithoutCancel(ctx), []string{b.Resolver}, name, typ)[0]
			w.note(a, time.Now())
		}
	}()
	w.stop = func() { cancel(); <-done }
	t.Cleanup(w.stop)
	return w
}

func (w *watch) note(a Answer, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.Err != nil || len(a.Set.Values) == 0 {
		w.failed = append(w.failed, fmt.Sprintf("%v, %v", a.Set.Values, a.Err))
		return
	}
	for _, v := range a.Set.Values {
		w.expires[v] = now.Add(a.Set.TTL)
	}
}

// end fails if a question was not answered.
func (w *watch) end(t *testing.T) {
	t.Helper()
	w.stop()
	if len(w.failed) > 0 {
		t.Errorf("%d questions had no answer, the first: %s", len(w.failed), w.failed[0])
	}
}

// used are the addresses from which clients may still expect an answer.
func (w *watch) used() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for v, until := range w.expires {
		if time.Now().Before(until) {
			all = append(all, v)
		}
	}
	slices.Sort(all)
	return all
}

// TestBindMoves moves records of a real zone, with a real secondary and a real resolver, while
// clients use what they are told for as long as they may. When the wait for the old values is over
// no client uses them any more. The control replaces a record at once, and then clients do.
func TestBindMoves(t *testing.T) {
	b := startBind(t)
	t.Run("there and back", func(t *testing.T) {
		t.Parallel()
		b.thereAndBack(t)
	})
	t.Run("alias, there for good", func(t *testing.T) {
		t.Parallel()
		b.alias(t)
	})
	t.Run("created", func(t *testing.T) {
		t.Parallel()
		b.created(t)
	})
	t.Run("the naive way", func(t *testing.T) {
		t.Parallel()
		b.naive(t)
	})
}

// move is one through BIND, with the resolver asked as well.
func (b *bind) move(t *testing.T, spec v1alpha1.RecordSpec) *RecordMove {
	t.Helper()
	spec.TTL, spec.Resolvers, spec.Drain = ptr.To(int32(1)), []string{b.Resolver}, &metav1.Duration{}
	spec.Provider.RFC2136 = &v1alpha1.RFC2136Provider{Server: b.Primary, Zone: "example.test"}
	Default(&spec)
	if err := Validate("spec", &spec); err != nil {
		t.Fatal(err)
	}
	m, err := NewMove(spec, b.provider(), b.client(), &notebook{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// check compares the record with what it has to be.
func (b *bind) check(t *testing.T, name string, typ v1alpha1.RecordType, ttl time.Duration, values ...string) {
	t.Helper()
	now, err := b.provider().Get(t.Context(), name, typ)
	if err != nil || !slices.Equal(now.Values, values) || now.TTL != ttl {
		t.Errorf("it is %s (%v), not %v for %s", describe(now), err, values, ttl)
	}
}

func (b *bind) thereAndBack(t *testing.T) {
	const name = "api.example.test"
	m := b.move(t, v1alpha1.RecordSpec{Name: name, To: []string{"198.51.100.1"}})
	w := startWatch(t, b, name, v1alpha1.RecordA)

	run(t, m.Lower(), m.Widen())
	if got := w.used(); !slices.Equal(got, []string{"192.0.2.1", "192.0.2.2", "198.51.100.1"}) {
		t.Errorf("in the middle clients use %v", got)
	}
	run(t, m.Narrow())
	if got := w.used(); !slices.Equal(got, []string{"198.51.100.1"}) {
		t.Errorf("at the end clients use %v", got)
	}
	b.check(t, name, v1alpha1.RecordA, time.Second, "198.51.100.1")
	if kinds := run(t, m.Lower(), m.Widen(), m.Narrow()); slices.Contains(kinds, engine.StepDone) {
		t.Errorf("a second run did something: %v", kinds)
	}
	run(t, m.Back())
	if got := w.used(); !slices.Equal(got, []string{"192.0.2.1", "192.0.2.2"}) {
		t.Errorf("back again clients use %v", got)
	}
	b.check(t, name, v1alpha1.RecordA, 3*time.Second, "192.0.2.1", "192.0.2.2")
	w.end(t)
}

func (b *bind) alias(t *testing.T) {
	const name = "alias.sub.example.test"
	m := b.move(t, v1alpha1.RecordSpec{Name: name, Type: v1alpha1.RecordCNAME, To: []string{"new.example.net"}})
	w := startWatch(t, b, name, v1alpha1.RecordCNAME)
	run(t, m.Lower(), m.Widen(), m.Narrow())
	if got := w.used(); !slices.Equal(got, []string{"new.example.net."}) {
		t.Errorf("at the end clients use %v", got)
	}
	run(t, m.Restore())
	b.check(t, name, v1alpha1.RecordCNAME, 3*time.Second, "new.example.net.")
	if kinds := run(t, m.Lower(), m.Widen(), m.Narrow(), m.Restore()); slices.Contains(kinds, engine.StepDone) {
		t.Errorf("a second run did something: %v", kinds)
	}
	w.end(t)
}

func (b *bind) created(t *testing.T) {
	const name = "made.sub.example.test"
	if _, err := b.move(t, v1alpha1.RecordSpec{Name: name, To: []string{"198.51.100.1"}}).Load(t.Context()); err == nil {
		t.Error("what is not there may be moved")
	}
	m := b.move(t, v1alpha1.RecordSpec{Name: name, From: []string{}, To: []string{"198.51.100.1"}})
	run(t, m.Lower(), m.Widen(), m.Narrow())
	b.check(t, name, v1alpha1.RecordA, time.Second, "198.51.100.1")
	run(t, m.Back())
	b.check(t, name, v1alpha1.RecordA, 0)
}

// naive is the control: the record is replaced, every server of the zone says so, and old values
// are in use.
func (b *bind) naive(t *testing.T) {
	w := startWatch(t, b, "naive.example.test", v1alpha1.RecordA)
	for len(w.used()) == 0 {
		<-time.After(20 * time.Millisecond)
	}
	was, err := b.provider().Get(t.Context(), "naive.example.test", v1alpha1.RecordA)
	if err != nil {
		t.Fatal(err)
	}
	want := was
	want.Values = []string{"198.51.100.1"}
	if err := b.provider().Replace(t.Context(), was, want); err != nil {
		t.Fatal(err)
	}
	for {
		answers, err := b.provider().Authoritative(t.Context(), was.Name, was.Type)
		if err != nil {
			t.Fatal(err)
		}
		if agreed(want, narrow, answers, nil) == nil {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	if got := w.used(); !slices.Contains(got, "192.0.2.1") {
		t.Errorf("the naive way lost nothing (%v), so this test proves nothing", got)
	}
}

// run brings steps to their proof, and returns how each ended.
func run(t *testing.T, steps ...[]engine.Step) []engine.EventKind {
	t.Helper()
	var kinds []engine.EventKind
	r := &engine.Runner{Sink: func(e engine.Event) {
		if e.Kind == engine.StepDone || e.Kind == engine.StepUnchanged {
			kinds = append(kinds, e.Kind)
		}
	}}
	plan := &engine.Plan{Name: "test", Phases: []engine.Phase{{Name: "dns", Groups: []engine.Group{{Steps: slices.Concat(steps...)}}}}}
	if err := r.Run(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	return kinds
}
