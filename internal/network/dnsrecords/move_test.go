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
	"github.com/replumb/replumb/internal/safety/lease"
)

// TestMoveSurvivesKills: whatever run is killed at whichever write, the next one, forward or back,
// ends as it should, and when the wait for what was taken out is over no resolver remembers that.
func TestMoveSurvivesKills(t *testing.T) {
	for seed := range uint64(300) {
		ttl := []time.Duration{10 * time.Second, 5 * time.Minute, time.Hour}[seed%3]
		w := newWorld(t, seed, oldOnes, ttl)
		if seed%2 == 0 {
			w.primary.Type, w.primary.Values, w.to = v1alpha1.RecordCNAME, []string{"old.example.net."}, []string{"new.example.net."}
			w.secondary = w.primary
			w.tick(ttl)
		}
		w.straight = seed%4 == 1
		survive(t, w, fmt.Sprintf("seed %d", seed))
	}
}

func survive(t *testing.T, w *world, name string) {
	before := w.primary
	from := [][]string{nil, before.Values}[w.random.IntN(2)]
	for range 5 {
		w.kill = 1 + w.random.IntN(25)
		var err error
		m := w.move(from)
		if w.random.IntN(2) == 0 {
			err = w.drive(m.Back())
		} else {
			err = w.drive(m.Lower(), m.Widen(), m.Narrow())
		}
		if err != nil && !errors.Is(err, errKilled) {
			t.Fatalf("%s: %v", name, err)
		}
		w.tick(time.Duration(w.random.IntN(100)) * time.Second)
	}
	w.kill = -1
	m := w.move(from)
	if w.random.IntN(2) == 0 {
		if err := w.drive(m.Back()); err != nil {
			t.Fatalf("%s: back: %v", name, err)
		}
		if got := w.remembered(); !w.primary.Same(before) || w.primary.TTL != before.TTL || slices.Contains(got, w.to[0]) {
			t.Fatalf("%s: back it is %s, remembered are %v", name, describe(w.primary), got)
		}
		return
	}
	if err := w.drive(m.Lower(), m.Widen(), m.Narrow()); err != nil {
		t.Fatalf("%s: forward: %v", name, err)
	}
	if got := w.remembered(); !slices.Equal(w.primary.Values, w.to) || slices.Contains(got, before.Values[0]) {
		t.Fatalf("%s: forward it is %s, remembered are %v", name, describe(w.primary), got)
	}
	writes := w.writes
	if err := w.drive(m.Lower(), m.Widen(), m.Narrow()); err != nil || w.writes != writes {
		t.Fatalf("%s: another run wrote something (%v)", name, err)
	}
	if err := w.drive(m.Restore()); err != nil || w.primary.TTL != before.TTL && !aliased(w.to) {
		t.Fatalf("%s: at the end it is %s (%v)", name, describe(w.primary), err)
	}
	writes = w.writes
	if err := w.drive(m.Lower(), m.Widen(), m.Narrow(), m.Restore()); err != nil || w.writes != writes {
		t.Fatalf("%s: after the end another run wrote something (%v)", name, err)
	}
}

// TestMoveWithoutWaits is the control: without the waits resolvers remember what was taken out.
func TestMoveWithoutWaits(t *testing.T) {
	lost := 0
	for seed := range uint64(20) {
		w := newWorld(t, seed, oldOnes, 5*time.Minute)
		m := w.move(nil)
		if err := w.drive(m.Lower()[:1], m.Widen()[:1], m.Narrow()[:1]); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(w.remembered(), oldOnes[0]) {
			lost++
		}
	}
	if lost == 0 {
		t.Error("nothing is lost without waits: the world of these tests remembers nothing")
	}
}

// TestMoveLeavesOthersAlone: what others write in the middle of a move stays, and is named.
func TestMoveLeavesOthersAlone(t *testing.T) {
	theirs := []string{"203.0.113.9"}
	for _, tt := range []struct {
		name    string
		values  []string
		problem string
	}{
		{"something else", theirs, "203.0.113.9"},
		{"something more", append(slices.Clone(theirs), oldOnes...), "203.0.113.9"},
		{"something less", oldOnes[:1], "192.0.2.1"},
	} {
		w := newWorld(t, 1, oldOnes, time.Minute)
		m := w.move(nil)
		if err := w.drive(m.Lower()); err != nil {
			t.Fatal(err)
		}
		w.strange = func() { w.primary.Values = slices.Sorted(slices.Values(tt.values)) }
		err := w.drive(m.Widen())
		var whole *Error
		if !errors.As(err, &whole) || whole.Hint == "" || !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if state, err := m.Widen()[0].State(t.Context()); state != engine.Blocked || err == nil {
			t.Errorf("%s: the step is %s (%v)", tt.name, state, err)
		}
		if err := w.drive(m.Back()); !errors.As(err, &whole) {
			t.Errorf("%s, on the way back: %v", tt.name, err)
		}
		if !w.primary.Same(record(slices.Sorted(slices.Values(tt.values)), 0)) {
			t.Errorf("%s: it was overwritten by %v", tt.name, w.primary.Values)
		}
	}
}

// TestMoveStopsWhenOthersPutItBack: nothing is skipped, and what others wrote stays.
func TestMoveStopsWhenOthersPutItBack(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Minute)
	m := w.move(nil)
	if err := w.drive(m.Lower(), m.Widen()); err != nil {
		t.Fatal(err)
	}
	w.primary.Values = oldOnes
	w.tick(time.Hour)
	var whole *Error
	if err := w.drive(m.Narrow()); !errors.As(err, &whole) || !strings.Contains(err.Error(), "put it back") {
		t.Errorf("got %v", err)
	}
	if !slices.Equal(w.primary.Values, oldOnes) {
		t.Errorf("it became %v", w.primary.Values)
	}
	widen := m.Widen()[0]
	if err := widen.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.primary.Values = oldOnes
	if err := widen.Verify(t.Context()); !errors.As(err, &whole) || !strings.Contains(err.Error(), "changed it back") {
		t.Errorf("got %v", err)
	}
}

// TestMoveCountsFromARaisedTimeToLive: who raises it in the middle has caches remember for as long
// again.
func TestMoveCountsFromARaisedTimeToLive(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Hour)
	m := w.move(nil)
	if err := w.drive(m.Lower()); err != nil {
		t.Fatal(err)
	}
	w.primary.TTL, w.arrives = time.Hour, w.now
	w.tick(time.Minute)
	if err := w.drive(m.Widen(), m.Narrow()); err != nil {
		t.Fatal(err)
	}
	if got := w.remembered(); slices.Contains(got, oldOnes[0]) {
		t.Errorf("remembered are %v", got)
	}
}

// TestMoveCountsFromWhatItHasSeen: where people were faster than the steps, what they did has to be
// waited for all the same.
func TestMoveCountsFromWhatItHasSeen(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Hour)
	m := w.move(nil)
	if err := w.drive(m.Lower()); err != nil {
		t.Fatal(err)
	}
	w.primary.Values = both(oldOnes, newOnes)
	w.tick(time.Minute)
	if err := w.drive(m.Back()); err != nil {
		t.Fatal(err)
	}
	if got := w.remembered(); slices.Contains(got, newOnes[0]) {
		t.Errorf("back again, remembered are %v", got)
	}
	w.primary.TTL, w.arrives = 30*time.Second, w.now
	w.tick(time.Minute)
	start := w.now
	if err := w.drive(m.Lower()); err != nil || w.now.Sub(start) < 50*time.Minute {
		t.Errorf("lowered by hand after an hour was restored, and waited for %s (%v)", w.now.Sub(start), err)
	}
}

// TestWaitsBeginWithProof: as long as one server says something else, no time counts.
func TestWaitsBeginWithProof(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Hour)
	m := w.move(nil)
	if err := w.drive(m.Lower(), m.Widen()); err != nil {
		t.Fatal(err)
	}
	if err := m.Narrow()[0].Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.secondary.Values = oldOnes
	wait := m.Narrow()[1]
	if err := wait.Do(t.Context()); !engine.Retryable(err) || !strings.Contains(err.Error(), "ns2.example.com") {
		t.Errorf("got %v", err)
	}
	if s, err := w.memory.Recall(t.Context(), m.name, m.typ); err != nil || s.Seen != nil {
		t.Errorf("it was seen: %+v, %v", s, err)
	}
}

func TestMoveRemembersBeforeItWrites(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Hour)
	w.memory.fails = func() error { return errKilled }
	m := w.move(nil)
	if err := w.drive(m.Lower()); !errors.Is(err, errKilled) || w.writes > 0 {
		t.Errorf("%d writes, %v", w.writes, err)
	}
}

// TestMoveCreatesAndDeletes a record, for which from has to be empty, and not just left out.
func TestMoveCreatesAndDeletes(t *testing.T) {
	w := newWorld(t, 1, nil, 0)
	if _, err := w.move(nil).Load(t.Context()); err == nil || !strings.Contains(err.Error(), "no such record") {
		t.Errorf("from left out: %v", err)
	}
	m := w.move([]string{})
	if err := w.drive(m.Lower(), m.Widen(), m.Narrow(), m.Restore()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w.primary.Values, newOnes) || w.primary.TTL != 30*time.Second {
		t.Errorf("it is created as %s", describe(w.primary))
	}
	if err := w.drive(m.Back()); err != nil || len(w.primary.Values) > 0 || len(w.remembered()) > 0 {
		t.Errorf("back it is %s, remembered are %v (%v)", describe(w.primary), w.remembered(), err)
	}
}

// TestBackOfNothing: where nothing was written there is nothing to take back, and nothing to wait
// for.
func TestBackOfNothing(t *testing.T) {
	for _, from := range [][]string{nil, oldOnes} {
		w := newWorld(t, 1, oldOnes, time.Hour)
		start := w.now
		if err := w.drive(w.move(from).Back()); err != nil || w.writes > 0 || !w.now.Equal(start) {
			t.Errorf("%d writes, %s, %v", w.writes, w.now.Sub(start), err)
		}
	}
	w := newWorld(t, 1, oldOnes, time.Hour)
	m := w.move(nil)
	if err := w.drive(m.Lower()[:1]); err != nil {
		t.Fatal(err)
	}
	w.tick(time.Minute)
	start := w.now
	if err := w.drive(m.Back()); err != nil || w.primary.TTL != time.Hour || w.now.Sub(start) > 10*time.Second {
		t.Errorf("with the time to live lowered: %s after %s (%v)", describe(w.primary), w.now.Sub(start), err)
	}
}

// people change a record by hand, value by value, when they are told to.
type people struct{ *world }

func (people) Guide(was, want RecordSet) string { return (&Manual{}).Guide(was, want) }

func (p people) Replace(ctx context.Context, was, want RecordSet) error {
	missing := without(want.Values, p.primary.Values...)
	extra := without(p.primary.Values, want.Values...)
	switch {
	case p.random.IntN(5) > 0: // later
	case len(missing) > 0:
		p.primary.Values = both(p.primary.Values, missing[:1])
	case len(extra) > 0:
		p.primary.Values = without(p.primary.Values, extra[0])
	default:
		p.primary.TTL = want.TTL
	}
	p.arrives = p.now.Add(3 * time.Second)
	return (&Manual{}).Replace(ctx, was, want)
}

func TestPeopleMayTakeTheirTime(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Hour)
	m := w.move(nil)
	m.provider = people{w}
	steps := slices.Concat(m.Lower(), m.Widen(), m.Narrow(), m.Restore())
	if err := w.drive(steps); err != nil {
		t.Fatal(err)
	}
	if got := w.remembered(); !slices.Equal(w.primary.Values, newOnes) || w.primary.TTL != time.Hour || slices.Contains(got, oldOnes[0]) {
		t.Errorf("it is %s, remembered are %v", describe(w.primary), got)
	}
	for i, want := range map[int]string{
		0: "with a time to live of 30 seconds:\n    192.0.2.1\n    192.0.2.2\n",
		2: "    192.0.2.1\n    192.0.2.2\n    198.51.100.1\n    198.51.100.2\n",
		4: "with a time to live of 30 seconds:\n    198.51.100.1\n    198.51.100.2\n",
		6: "with a time to live of 3600 seconds:",
	} {
		if got := steps[i].(engine.Guide).Guide(); !strings.Contains(got, want) {
			t.Errorf("%s: %q", steps[i].Title(), got)
		}
	}
	w.primary.Values = []string{"203.0.113.9"}
	w.tick(time.Minute)
	var whole *Error
	if err := w.drive(m.Widen()); !errors.As(err, &whole) {
		t.Errorf("something else is there, and the run waits: %v", err)
	}
}

func TestPreview(t *testing.T) {
	show := func(steps []engine.Step) string {
		var lines []string
		for _, s := range steps {
			changes, err := engine.Preview(s)
			if err != nil {
				t.Fatal(err)
			}
			if len(changes) == 0 || changes[0].Verb != "note" {
				t.Errorf("%s does not show that it keeps what the record was", s.ID())
			}
			for _, c := range changes[min(1, len(changes)):] {
				lines = append(lines, fmt.Sprint(c.Verb, " ", c.Object, " ", c.Body))
			}
		}
		return strings.Join(lines, "\n")
	}
	for _, tt := range []struct {
		name  string
		now   []string
		from  []string
		plan  func(m *RecordMove) []engine.Step
		lines []string
	}{
		{
			"forward", oldOnes, nil, func(m *RecordMove) []engine.Step { return slices.Concat(m.Lower(), m.Widen(), m.Narrow(), m.Restore()) },
			[]string{
				"update A record api.example.com map[ttl:30 values:[192.0.2.1 192.0.2.2]]",
				"update A record api.example.com map[ttl:30 values:[192.0.2.1 192.0.2.2 198.51.100.1 198.51.100.2]]",
				"update A record api.example.com map[ttl:30 values:[198.51.100.1 198.51.100.2]]",
				"update A record api.example.com map[ttl:3600 values:[198.51.100.1 198.51.100.2]]",
			},
		},
		{
			"created", nil,
			[]string{},
			func(m *RecordMove) []engine.Step { return slices.Concat(m.Lower(), m.Widen()) },
			[]string{"create A record api.example.com map[ttl:30 values:[198.51.100.1 198.51.100.2]]"},
		},
		{
			"created, back", nil,
			[]string{},
			(*RecordMove).Back,
			[]string{"update A record api.example.com map[ttl:30 values:[198.51.100.1 198.51.100.2]]", "delete A record api.example.com <nil>"},
		},
	} {
		w := newWorld(t, 1, tt.now, time.Hour)
		m := w.move(tt.from)
		if _, err := m.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := show(tt.plan(m)); got != strings.Join(tt.lines, "\n") {
			t.Errorf("%s:\n%s\nnot:\n%s", tt.name, got, strings.Join(tt.lines, "\n"))
		}
	}
}

func TestStepsAreToldApart(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Hour)
	m := w.move(nil)
	seen := map[string]bool{}
	for _, s := range slices.Concat(m.Lower(), m.Widen(), m.Narrow(), m.Restore(), m.Back()) {
		if seen[s.ID()] {
			t.Errorf("%s is not the only one", s.ID())
		}
		seen[s.ID()] = true
	}
	back := map[string]engine.Step{}
	for _, s := range m.Back() {
		back[s.ID()] = s
	}
	for _, s := range []engine.Step{m.Lower()[0], m.Widen()[0], m.Narrow()[0]} {
		undo := s.(engine.Undoer).Undo()
		if back[undo.ID()] == nil {
			t.Errorf("%s is undone by %s, which is not on the way back", s.ID(), undo.ID())
		}
	}
}

// lost is the fence of a run whose lock is another's.
type lost struct{}

func (lost) MayWrite(context.Context, bool) error {
	return &lease.LostError{Why: errors.New("it is another's")}
}

// TestRecordBehindAFence: a name server knows nothing of the lock.
func TestRecordBehindAFence(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Hour)
	if err := w.move(nil).Lower()[0].Do(engine.Fenced(t.Context(), lost{})); !engine.Revoked(err) || w.writes > 0 {
		t.Errorf("%d writes, %v", w.writes, err)
	}
}
