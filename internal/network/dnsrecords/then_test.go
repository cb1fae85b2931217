package dnsrecords

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// ends are a record on its way to one thing, and from there to another.
type ends struct {
	name              string
	former, typ, last v1alpha1.RecordType
	from, to, then    []string
}

// journeys are what a record may be in turns.
func journeys() []ends {
	name, a := v1alpha1.RecordCNAME, v1alpha1.RecordA
	oldName, newName := []string{"old.example.net."}, []string{"new.example.net."}
	return []ends{
		{"a CNAME, addresses, a CNAME", name, a, name, oldName, newOnes, newName},
		{"addresses, a CNAME, addresses", a, name, a, oldOnes, newName, newOnes},
		{"addresses that change, and then a CNAME", a, a, name, oldOnes, newOnes, newName},
		{"addresses all along", a, a, a, oldOnes, newOnes, []string{"203.0.113.1"}},
		{"a CNAME all along", name, name, name, oldName, []string{"between.example.net."}, newName},
		{"an alias, addresses, an alias", a, a, a, []string{oldAlias}, newOnes, []string{newAlias}},
		{"a CNAME, addresses, an alias", name, a, a, oldName, newOnes, []string{newAlias}},
	}
}

func (e ends) world(t *testing.T, seed uint64, client *Client, ttl time.Duration) *world {
	t.Helper()
	if aliased(e.from) {
		ttl = AliasTTL
	}
	w := newWorld(t, seed, e.from, ttl)
	w.primary.Type, w.former, w.typ, w.to, w.client = e.former, e.former, e.typ, e.to, client
	w.then = &v1alpha1.RecordEnd{Type: e.last, To: e.then}
	w.secondary = w.primary
	w.tick(ttl)
	return w
}

// TestThenSurvivesKills: a record goes to one thing and from there to another, and back from
// wherever it is, killed at whichever write. It never has anything but one of its ends, or two
// where they may stand side by side; what a wait was for no resolver remembers; and back again it
// is what it was.
func TestThenSurvivesKills(t *testing.T) {
	client := balancers(t)
	for i, e := range journeys() {
		for seed := range uint64(20) {
			ttl := []time.Duration{10 * time.Second, 5 * time.Minute, time.Hour}[seed%3]
			w := e.world(t, seed+uint64(i)*100, client, ttl)
			e.survive(t, w, fmt.Sprintf("%s, seed %d", e.name, seed))
			if t.Failed() {
				return
			}
		}
	}
}

func (e ends) survive(t *testing.T, w *world, name string) {
	t.Helper()
	before := w.primary
	from := [][]string{nil, before.Values}[w.random.IntN(2)]
	there := func(m *RecordMove) []engine.Step { return slices.Concat(m.Lower(), m.Switch(), m.End()) }
	for range 6 {
		w.kill = 1 + w.random.IntN(30)
		m := w.move(from)
		way := [][]engine.Step{m.Back(), slices.Concat(m.Lower(), m.Switch()), there(m), there(m)}[w.random.IntN(4)]
		if err := w.drive(way); err != nil && !errors.Is(err, errKilled) {
			t.Fatalf("%s: %v", name, err)
		}
		if got := w.primary.Values; !e.at(got) {
			t.Fatalf("%s: between it is %v", name, got)
		}
		w.tick(time.Duration(w.random.IntN(100)) * time.Second)
	}
	w.kill = -1
	m := w.move(from)
	if w.random.IntN(2) == 0 {
		if err := w.drive(m.Back()); err != nil {
			t.Fatalf("%s: back: %v", name, err)
		}
		if !w.primary.Same(before) || w.primary.TTL != before.TTL || w.primary.Type != before.Type || w.knows(e.to, e.then) {
			t.Fatalf("%s: back it is %s, remembered are %v", name, describe(w.primary), w.remembered())
		}
		return
	}
	if err := w.drive(there(m)); err != nil {
		t.Fatalf("%s: there: %v", name, err)
	}
	if !slices.Equal(w.primary.Values, e.then) || w.primary.Type != e.last || w.knows(e.from, e.to) {
		t.Fatalf("%s: there it is %s, remembered are %v", name, describe(w.primary), w.remembered())
	}
	if place, err := m.Position(t.Context()); err != nil || place != AtNew {
		t.Fatalf("%s: it is said to be at %s, %v", name, place, err)
	}
	if err := w.drive(m.Restore()); err != nil || w.primary.TTL != before.TTL && !aliased(e.then) {
		t.Fatalf("%s: at the end it is %s (%v)", name, describe(w.primary), err)
	}
	writes := w.writes
	if err := w.drive(there(m), m.Restore()); err != nil || w.writes != writes {
		t.Fatalf("%s: after the end another run wrote something (%v)", name, err)
	}
}

// at reports whether a record has what it may have.
func (e ends) at(values []string) bool {
	all := [][]string{e.from, e.to, e.then}
	if e.former == e.typ && e.typ == v1alpha1.RecordA && !aliased(e.from) {
		all = append(all, both(e.from, e.to))
	}
	return slices.ContainsFunc(all, func(known []string) bool { return slices.Equal(known, values) })
}

// knows reports whether some client may still use what nothing leads to any more.
func (w *world) knows(gone ...[]string) bool {
	got := w.remembered()
	return slices.ContainsFunc(slices.Concat(gone...), func(v string) bool { return slices.Contains(got, v) })
}

// TestThenWithoutWait is the control: without the wait resolvers remember what the record had
// between.
func TestThenWithoutWait(t *testing.T) {
	client, lost := balancers(t), 0
	for seed := range uint64(20) {
		e := journeys()[0]
		w := e.world(t, seed, client, time.Minute)
		m := w.move(nil)
		if err := w.drive(m.Lower(), m.Switch(), m.End()[:1]); err != nil {
			t.Fatal(err)
		}
		if w.knows(e.to) {
			lost++
		}
	}
	if lost == 0 {
		t.Error("nothing is lost without the wait")
	}
}

// TestThenNeedsBothEnds: nothing is written as long as one of both does not answer, there and back,
// and people are told what is missing.
func TestThenNeedsBothEnds(t *testing.T) {
	e := journeys()[0]
	w := e.world(t, 1, &Client{}, 10*time.Second)
	m := w.move(nil)
	if err := w.drive(m.Lower(), m.Switch()); err != nil {
		t.Fatal(err)
	}
	var asked []string
	var answer error
	m.Answer = func(_ context.Context, values []string) error {
		asked = values
		return answer
	}
	for _, tt := range []struct {
		name  string
		steps []engine.Step
		asked []string
		guide bool
	}{
		{"there", m.End(), both(e.to, e.then), true},
		{"back", m.SwitchBack(), both(e.from, e.then), false},
	} {
		before, writes := w.primary, w.writes
		answer = engine.NotYet("it does not answer")
		if err := tt.steps[0].Do(t.Context()); !engine.Retryable(err) || w.writes != writes || w.primary.Type != before.Type {
			t.Errorf("%s: %v, it is %s", tt.name, err, describe(w.primary))
		}
		if guide := tt.steps[0].(engine.Guide).Guide(); tt.guide != strings.Contains(guide, "Have new.example.net. answer") {
			t.Errorf("%s: people are told %q", tt.name, guide)
		}
		answer = errors.New("its certificate is for others")
		if err := w.drive(tt.steps); !errors.Is(err, answer) || w.writes != writes {
			t.Errorf("%s: %v, it is %s", tt.name, err, describe(w.primary))
		}
		if !slices.Equal(asked, tt.asked) {
			t.Errorf("%s: asked are %v", tt.name, asked)
		}
		answer = nil
		if err := w.drive(tt.steps); err != nil {
			t.Fatal(err)
		}
		if guide := tt.steps[0].(engine.Guide).Guide(); guide != "" {
			t.Errorf("%s: afterwards people are told %q", tt.name, guide)
		}
	}
}

// TestThenRefusals: a record that is not where the step takes it from is left alone, and what
// cannot be told apart is said before anything changes.
func TestThenRefusals(t *testing.T) {
	e := journeys()[0]
	for _, tt := range []struct {
		name    string
		change  func(w *world)
		from    []string
		steps   func(m *RecordMove) []engine.Step
		problem string
	}{
		{"it has not been at to", func(*world) {}, nil, (*RecordMove).End, "should have come further before"},
		{"it is at the end, and nothing is remembered", func(w *world) { w.primary.Values = e.then }, nil, (*RecordMove).Lower, "nothing is remembered"},
		{"it is at the end, by from", func(w *world) { w.primary.Values = e.then }, e.from, (*RecordMove).Lower, ""},
		{"the end is what it had", func(w *world) { w.then.To = e.from }, e.from, (*RecordMove).Lower, "is what it had before"},
		{"the end is what it has", func(w *world) { w.then.To = e.from }, nil, (*RecordMove).Lower, "nothing is remembered"},
		{"someone else's", func(w *world) { w.primary.Values = []string{"theirs.example.net."} }, e.from, (*RecordMove).End, "in neither from nor to"},
		{"it has another type, and no fromType", func(w *world) { w.former = "" }, nil, (*RecordMove).Lower, "fromType"},
		{"the time to live before the end", func(*world) {}, nil, func(m *RecordMove) []engine.Step {
			return slices.Concat(m.Lower(), m.Switch(), m.Restore())
		}, "should have come further before"},
	} {
		w := e.world(t, 1, &Client{}, time.Minute)
		tt.change(w)
		w.secondary = w.primary
		before := w.primary.Values
		err := w.drive(tt.steps(w.move(tt.from)))
		var whole *Error
		if tt.problem == "" && err != nil || tt.problem != "" && (!errors.As(err, &whole) || whole.Hint == "" ||
			!strings.Contains(err.Error(), tt.problem) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if w.writes > 0 && !slices.Equal(w.primary.Values, e.to) || w.writes == 0 && !slices.Equal(w.primary.Values, before) {
			t.Errorf("%s: it is %s", tt.name, describe(w.primary))
		}
	}
}

// TestLeave: a move that goes neither on nor back gives the record its time to live, wherever it
// is. One that never began, or that has gone back, does nothing.
func TestLeave(t *testing.T) {
	e := journeys()[0]
	for _, tt := range []struct {
		name   string
		way    func(m *RecordMove) []engine.Step
		values []string
		idle   bool
	}{
		{"never begun", func(*RecordMove) []engine.Step { return nil }, e.from, true},
		{"only lowered", (*RecordMove).Lower, e.from, false},
		{"at to", func(m *RecordMove) []engine.Step { return append(m.Lower(), m.Switch()...) }, e.to, false},
		{"at last", func(m *RecordMove) []engine.Step { return slices.Concat(m.Lower(), m.Switch(), m.End()) }, e.then, false},
		{"back", func(m *RecordMove) []engine.Step { return slices.Concat(m.Lower(), m.Switch(), m.End(), m.Back()) }, e.from, true},
	} {
		w := e.world(t, 1, &Client{}, time.Hour)
		m := w.move(nil)
		if err := w.drive(tt.way(m)); err != nil {
			t.Fatal(err)
		}
		writes := w.writes
		if err := w.drive(m.Leave()); err != nil || w.primary.TTL != time.Hour || !slices.Equal(w.primary.Values, tt.values) {
			t.Errorf("%s: it is %s, %v", tt.name, describe(w.primary), err)
		}
		if tt.idle != (w.writes == writes) {
			t.Errorf("%s: %d writes", tt.name, w.writes-writes)
		}
		if err := w.drive(m.Back()); err != nil || w.primary.TTL != time.Hour || !slices.Equal(w.primary.Values, e.from) {
			t.Errorf("%s: afterwards back it is %s, %v", tt.name, describe(w.primary), err)
		}
	}
}

// TestEndsAreSeen: what a look tells of how far a record is.
func TestEndsAreSeen(t *testing.T) {
	e := journeys()[0]
	w := e.world(t, 1, &Client{}, 10*time.Second)
	for i, way := range []func(m *RecordMove) []engine.Step{(*RecordMove).Lower, (*RecordMove).Switch, (*RecordMove).End} {
		m := w.move(nil)
		if err := w.drive(way(m)); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Load(t.Context()); err != nil || m.Ended() != (i == 2) || !m.Ends() || !slices.Equal(m.Last(), e.then) {
			t.Errorf("%d: %v, ended %t", i, err, m.Ended())
		}
	}
	w.then = nil
	if m := w.move(nil); m.Ends() || !m.Ended() || len(m.End()) > 0 {
		t.Error("a record without then goes on")
	}
}

// listed are the values in the body of a change.
func listed(body map[string]any) any {
	if values, ok := body["values"]; ok {
		return values
	}
	return body["to"]
}

// TestThenIsShown: the plan has what goes and what comes.
func TestThenIsShown(t *testing.T) {
	shown := func(s engine.Step) (got []string) {
		changes, err := engine.Preview(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes[1:] {
			body, ok := c.Body.(map[string]any)
			if !ok {
				t.Fatalf("%v", c)
			}
			got = append(got, fmt.Sprintf("%s %s %v", c.Verb, c.Object, listed(body)))
		}
		return got
	}
	w := journeys()[0].world(t, 1, &Client{}, time.Hour)
	m := w.move(nil)
	title := "Replace A record api.example.com by CNAME: new.example.net., in one change"
	want := []string{"update CNAME record api.example.com [new.example.net.]"}
	if got := shown(m.End()[0]); !slices.Equal(got, want) || m.End()[0].Title() != title {
		t.Errorf("before a look: %s: %q", m.End()[0].Title(), got)
	}
	if _, err := m.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	want = []string{
		"delete A record api.example.com [198.51.100.1 198.51.100.2]",
		"create CNAME record api.example.com [new.example.net.]",
	}
	if got := shown(m.End()[0]); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if err := w.drive(m.Lower(), m.Switch(), m.End()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	want = []string{"update CNAME record api.example.com [old.example.net.]"}
	if got := shown(m.SwitchBack()[0]); !slices.Equal(got, want) {
		t.Errorf("back from the end: %q", got)
	}
	seen := map[string]bool{}
	for _, s := range slices.Concat(m.Lower(), m.Switch(), m.End(), m.Restore(), m.Leave(), m.Back()) {
		if seen[s.ID()] {
			t.Errorf("%s is not the only one", s.ID())
		}
		seen[s.ID()] = true
	}
	if undo := m.End()[0].(engine.Undoer).Undo().ID(); undo != m.SwitchBack()[0].ID() {
		t.Errorf("undone by %s", undo)
	}
	same := journeys()[4].world(t, 1, &Client{}, time.Hour).move(nil)
	if got := same.End()[0].Title(); got != "Lead CNAME record api.example.com to new.example.net., in one change" {
		t.Errorf("of one type: %s", got)
	}
}
