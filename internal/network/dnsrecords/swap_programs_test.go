//go:build programs && long

package dnsrecords

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// pester asks a server for the address of a name, as often as it can, and counts answers without
// one.
type pester struct {
	asked, lost atomic.Int64
	stop        func()
}

func startPester(t *testing.T, at, name string, recursive bool) *pester {
	t.Helper()
	p := &pester{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c := &dns.Client{Net: "udp", Timeout: time.Second}
		for ctx.Err() == nil {
			m := new(dns.Msg).SetQuestion(dns.CanonicalName(name), dns.TypeA)
			m.RecursionDesired = recursive
			r, _, err := c.Exchange(m, at)
			if err != nil {
				continue // a lost packet is not an answer without an address
			}
			p.asked.Add(1)
			if len(addresses(r.Answer)) == 0 {
				p.lost.Add(1)
			}
		}
	}()
	p.stop = func() { cancel(); <-done }
	t.Cleanup(p.stop)
	return p
}

// TestBindChangesType has a name be a CNAME and an address in turns, at a real server with a real
// secondary and a real resolver, while clients ask for its address all the time. Every answer has
// one. The control takes the one record away and then creates the other, and its clients get
// answers without.
func TestBindChangesType(t *testing.T) {
	b := startBind(t)
	t.Run("there and back", b.swapThereAndBack)
	t.Run("and on to another name", b.swapsOn)
	t.Run("each update at once", b.swapsAtOnce)
	t.Run("the naive way", b.swapsNaively)
	t.Run("what stands in the way", b.swapsRefused)
	t.Run("another client was faster", b.swapConflicts)
}

const (
	oldBalancer = "lb-old.sub.example.test."
	swapName    = "swap.sub.example.test"
)

func (b *bind) put(t *testing.T, name string, typ v1alpha1.RecordType, ttl time.Duration, values ...string) RecordSet {
	t.Helper()
	s, err := NewSet(name, typ, ttl, values)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.provider().Replace(t.Context(), RecordSet{Name: s.Name, Type: typ}, s); err != nil {
		t.Fatal(err)
	}
	return s
}

func (b *bind) swapThereAndBack(t *testing.T) {
	m := b.move(
		t,
		v1alpha1.RecordSpec{Name: swapName, Type: v1alpha1.RecordA, FromType: v1alpha1.RecordCNAME, To: []string{"198.51.100.1"}},
	)
	if _, err := m.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := []*pester{
		startPester(
			t,
			b.Primary,
			swapName,
			false,
		),
		startPester(t, b.Secondary, swapName, false),
		startPester(t, b.Resolver, swapName, true),
	}
	run(t, m.Lower(), m.Widen(), m.Narrow())
	b.check(t, swapName, v1alpha1.RecordA, time.Second, "198.51.100.1")
	if place, err := m.Position(t.Context()); err != nil || place != AtNew {
		t.Errorf("it is said to be at %s, %v", place, err)
	}
	run(t, m.Restore())
	b.check(t, swapName, v1alpha1.RecordA, 3*time.Second, "198.51.100.1")
	run(t, m.Back())
	b.check(t, swapName, v1alpha1.RecordCNAME, 3*time.Second, oldBalancer)
	for i, p := range all {
		p.stop()
		if p.lost.Load() > 0 || p.asked.Load() < 100 {
			t.Errorf("server %d: %d of %d answers had no address", i, p.lost.Load(), p.asked.Load())
		}
	}
}

// swapsOn has a name be a CNAME, an address, and a CNAME of another load balancer, in one move; and
// back from there to what it was.
func (b *bind) swapsOn(t *testing.T) {
	const at, newBalancer = "twice.sub.example.test", "lb-new.sub.example.test."
	m := b.move(t, v1alpha1.RecordSpec{
		Name: at, Type: v1alpha1.RecordA, FromType: v1alpha1.RecordCNAME, To: []string{"198.51.100.1"},
		Then: &v1alpha1.RecordEnd{Type: v1alpha1.RecordCNAME, To: []string{newBalancer}},
	})
	if _, err := m.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := []*pester{
		startPester(t, b.Primary, at, false), startPester(t, b.Secondary, at, false), startPester(t, b.Resolver, at, true),
	}
	run(t, m.Lower(), m.Switch())
	b.check(t, at, v1alpha1.RecordA, time.Second, "198.51.100.1")
	run(t, m.End())
	b.check(t, at, v1alpha1.RecordCNAME, time.Second, newBalancer)
	if place, err := m.Position(t.Context()); err != nil || place != AtNew {
		t.Errorf("it is said to be at %s, %v", place, err)
	}
	run(t, m.Restore())
	b.check(t, at, v1alpha1.RecordCNAME, 3*time.Second, newBalancer)
	if kinds := run(t, m.Lower(), m.Switch(), m.End(), m.Restore()); slices.Contains(kinds, engine.StepDone) {
		t.Errorf("another run did something: %v", kinds)
	}
	run(t, m.Back())
	b.check(t, at, v1alpha1.RecordCNAME, 3*time.Second, oldBalancer)
	for i, p := range all {
		p.stop()
		if p.lost.Load() > 0 || p.asked.Load() < 100 {
			t.Errorf("server %d: %d of %d answers had no address", i, p.lost.Load(), p.asked.Load())
		}
	}
}

// rounds of changes of the type, and back.
const rounds = 50

func (b *bind) swapsAtOnce(t *testing.T) {
	name, err := NewSet(swapName, v1alpha1.RecordCNAME, 3*time.Second, []string{oldBalancer})
	if err != nil {
		t.Fatal(err)
	}
	address, err := NewSet(swapName, v1alpha1.RecordA, 3*time.Second, []string{"198.51.100.1"})
	if err != nil {
		t.Fatal(err)
	}
	p := startPester(t, b.Primary, swapName, false)
	for range rounds {
		if err := b.provider().Replace(t.Context(), name, address); err != nil {
			t.Fatal(err)
		}
		if err := b.provider().Replace(t.Context(), address, name); err != nil {
			t.Fatal(err)
		}
	}
	p.stop()
	if p.lost.Load() > 0 || p.asked.Load() < rounds {
		t.Errorf("%d of %d answers had no address", p.lost.Load(), p.asked.Load())
	}
	t.Logf("%d changes, %d answers, each with an address", 2*rounds, p.asked.Load())
}

// swapsNaively is the control.
func (b *bind) swapsNaively(t *testing.T) {
	const at = "two-steps.sub.example.test"
	name := b.put(t, at, v1alpha1.RecordCNAME, 3*time.Second, oldBalancer)
	address, err := NewSet(at, v1alpha1.RecordA, 3*time.Second, []string{"198.51.100.1"})
	if err != nil {
		t.Fatal(err)
	}
	p := startPester(t, b.Primary, at, false)
	done := 0
	for ; done < rounds && p.lost.Load() == 0; done++ {
		for _, ends := range [][2]RecordSet{{name, address}, {address, name}} {
			if err := b.provider().Replace(t.Context(), ends[0], RecordSet{Name: ends[0].Name, Type: ends[0].Type}); err != nil {
				t.Fatal(err)
			}
			if err := b.provider().Replace(t.Context(), RecordSet{Name: ends[1].Name, Type: ends[1].Type}, ends[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.stop()
	if p.lost.Load() == 0 {
		t.Errorf("after %d rounds in two steps no client has missed the name, so this test proves nothing", done)
	}
	t.Logf("in two steps %d of %d answers had no address, by round %d", p.lost.Load(), p.asked.Load(), done)
}

// swapsRefused: a CNAME cannot stand beside anything, and the server would leave it out without a
// word.
func (b *bind) swapsRefused(t *testing.T) {
	const at = "texts.sub.example.test"
	have := b.put(t, at, v1alpha1.RecordA, 3*time.Second, "192.0.2.1")
	want, err := NewSet(at, v1alpha1.RecordCNAME, 3*time.Second, []string{oldBalancer})
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{`TXT "of someone"`, `HINFO "a" "b"`} {
		rr, err := dns.NewRR(dns.Fqdn(at) + " 60 IN " + other)
		if err != nil {
			t.Fatal(err)
		}
		send := func(change func(m *dns.Msg)) {
			m := new(dns.Msg).SetUpdate("example.test.")
			change(m)
			if r, err := b.provider().send(t.Context(), m); err != nil || r.Rcode != dns.RcodeSuccess {
				t.Fatalf("%v, %v", r, err)
			}
		}
		send(func(m *dns.Msg) { m.Insert([]dns.RR{rr}) })
		var whole *Error
		err = b.provider().Replace(t.Context(), have, want)
		if !errors.As(err, &whole) || whole.Hint == "" || !strings.Contains(err.Error(), strings.Fields(other)[0]) {
			t.Errorf("beside %s: %v", other, err)
		}
		b.check(t, at, v1alpha1.RecordA, 3*time.Second, "192.0.2.1")
		if strings.HasPrefix(other, "TXT") { // written by someone between the look and the update
			r, err := b.provider().send(t.Context(), b.provider().update(have, want))
			if err != nil || r.Rcode != dns.RcodeYXRrset {
				t.Errorf("beside %s it was taken: %v, %v", other, r, err)
			}
			b.check(t, at, v1alpha1.RecordA, 3*time.Second, "192.0.2.1")
		}
		send(func(m *dns.Msg) { m.RemoveRRset([]dns.RR{rr}) })
	}
	if err := b.provider().Replace(t.Context(), have, want); err != nil {
		t.Errorf("alone: %v", err)
	}
	b.check(t, at, v1alpha1.RecordCNAME, 3*time.Second, oldBalancer)
}

// swapConflicts: a change of others between the look and the update is not overwritten, in either
// direction.
func (b *bind) swapConflicts(t *testing.T) {
	const at = "faster.sub.example.test"
	have := b.put(t, at, v1alpha1.RecordCNAME, 3*time.Second, oldBalancer)
	theirs := have
	theirs.Values = []string{"lb-theirs.sub.example.test."}
	if err := b.provider().Replace(t.Context(), have, theirs); err != nil {
		t.Fatal(err)
	}
	want, err := NewSet(at, v1alpha1.RecordA, 3*time.Second, []string{"198.51.100.1"})
	if err != nil {
		t.Fatal(err)
	}
	var conflict *ConflictError
	err = b.provider().Replace(t.Context(), have, want)
	if !errors.As(err, &conflict) || conflict.Now == nil || !slices.Equal(conflict.Now.Values, theirs.Values) {
		t.Errorf("got %v", err)
	}
	b.check(t, at, v1alpha1.RecordCNAME, 3*time.Second, theirs.Values[0])
}
