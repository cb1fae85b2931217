package dnsrecords

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// TestStraightMovesSurviveKills: forward, back with the time to live still short, forward again,
// and so on, killed at whichever write. The record never has both ends, no resolver remembers what
// a wait was for, and at the end its time to live is as it was.
func TestStraightMovesSurviveKills(t *testing.T) {
	for seed := range uint64(300) {
		ttl := []time.Duration{10 * time.Second, 5 * time.Minute, time.Hour}[seed%3]
		w := newWorld(t, seed, oldOnes, ttl)
		w.straight = true
		for round := range 6 {
			there := w.random.IntN(2) == 0
			trip := func() error {
				m := w.move(oldOnes)
				if there {
					return w.drive(m.Lower(), m.Switch())
				}
				return w.drive(m.SwitchBack())
			}
			w.kill = w.random.IntN(12)
			err := trip()
			for ; errors.Is(err, errKilled); err = trip() {
				if !slices.Equal(w.primary.Values, oldOnes) && !slices.Equal(w.primary.Values, newOnes) {
					t.Fatalf("seed %d: in round %d it is %s", seed, round, describe(w.primary))
				}
				w.tick(time.Duration(w.random.IntN(100)) * time.Second)
				w.kill = w.random.IntN(12)
			}
			if err != nil {
				t.Fatalf("seed %d: round %d: %v", seed, round, err)
			}
			w.kill = -1
			here, gone, place := oldOnes, newOnes, AtOld
			if there {
				here, gone, place = newOnes, oldOnes, AtNew
			}
			if got := w.remembered(); !slices.Equal(w.primary.Values, here) || slices.Contains(got, gone[0]) {
				t.Fatalf("seed %d: after round %d it is %s, remembered are %v", seed, round, describe(w.primary), got)
			}
			if got, err := w.move(oldOnes).Position(t.Context()); err != nil || got != place {
				t.Fatalf("seed %d: after round %d it is said to be at %s (%v)", seed, round, got, err)
			}
		}
		m := w.move(oldOnes)
		if err := w.drive(m.SwitchBack(), m.RestoreBack()); err != nil {
			t.Fatal(err)
		}
		if w.primary.TTL != ttl || !slices.Equal(w.primary.Values, oldOnes) {
			t.Fatalf("seed %d: at the end it is %s", seed, describe(w.primary))
		}
		writes := w.writes
		if err := w.drive(m.SwitchBack(), m.RestoreBack()); err != nil || w.writes != writes {
			t.Fatalf("seed %d: another run wrote something (%v)", seed, err)
		}
	}
}

// TestThereAgainAfterRestore: a second round waits for the long time to live as the first one did,
// and for a longer one that was set in between.
func TestThereAgainAfterRestore(t *testing.T) {
	for _, between := range []time.Duration{time.Hour, 5 * time.Hour} {
		w := newWorld(t, 1, oldOnes, time.Hour)
		w.straight = true
		m := w.move(oldOnes)
		if err := w.drive(m.Lower(), m.Switch(), m.SwitchBack(), m.RestoreBack()); err != nil {
			t.Fatal(err)
		}
		w.primary.TTL, w.arrives = between, w.now
		w.tick(6 * time.Hour)
		start := w.now
		m = w.move(oldOnes)
		if err := w.drive(m.Lower(), m.Switch()); err != nil {
			t.Fatal(err)
		}
		if got := w.remembered(); slices.Contains(got, oldOnes[0]) || w.now.Sub(start) < between {
			t.Errorf("%s: after %s remembered are %v", between, w.now.Sub(start), got)
		}
		if err := w.drive(m.SwitchBack(), m.RestoreBack()); err != nil || w.primary.TTL != between {
			t.Errorf("%s: at the end it is %s (%v)", between, describe(w.primary), err)
		}
	}
}

func TestStraightMovesHaveNothingBetween(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Minute)
	w.straight = true
	m := w.move(oldOnes)
	if n := len(m.Widen()); n > 0 {
		t.Errorf("%d steps have both ends together", n)
	}
	if err := w.drive(m.Lower()); err != nil {
		t.Fatal(err)
	}
	w.primary.Values = both(oldOnes, newOnes)
	var whole *Error
	if err := w.drive(m.Switch()); !errors.As(err, &whole) || whole.Hint == "" {
		t.Errorf("both ends are there, and: %v", err)
	}
	if undo := m.Switch()[0].(engine.Undoer).Undo().ID(); undo != m.SwitchBack()[0].ID() {
		t.Errorf("undone by %s", undo)
	}
}

// TestWhatPutsItBackIsNamed: external-dns, for instance, in the middle of the wait.
func TestWhatPutsItBackIsNamed(t *testing.T) {
	for _, begun := range []bool{false, true} {
		w := newWorld(t, 1, oldOnes, time.Minute)
		w.straight = true
		m := w.move(oldOnes)
		steps := m.Switch()
		if err := w.drive(m.Lower(), steps[:1]); err != nil {
			t.Fatal(err)
		}
		if begun {
			if err := steps[1].Do(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.primary.Values = oldOnes
		w.tick(time.Second)
		var whole *Error
		if err := w.drive(steps[1:]); !errors.As(err, &whole) || !strings.Contains(err.Error(), "changed it back") || whole.Hint == "" {
			t.Errorf("begun %t: %v", begun, err)
		}
		if !slices.Equal(w.primary.Values, oldOnes) {
			t.Errorf("begun %t: it became %s", begun, describe(w.primary))
		}
	}
}

// TestPeopleGoStraightValueByValue: who changes a record by hand is waited for, whatever it has on
// the way.
func TestPeopleGoStraightValueByValue(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Minute)
	w.straight = true
	m := w.move(oldOnes)
	m.provider = people{w}
	if err := w.drive(m.Lower(), m.Switch(), m.SwitchBack(), m.RestoreBack()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w.primary.Values, oldOnes) || w.primary.TTL != time.Minute {
		t.Errorf("it is %s", describe(w.primary))
	}
}

// TestNothingIsWrittenThatIsNotAllowed: neither to the record nor to the memory of it.
func TestNothingIsWrittenThatIsNotAllowed(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Hour)
	m := w.move(oldOnes)
	m.Allowed = func(context.Context) error { return &Error{Record: m.Title(), Problem: "it is not ours"} }
	var whole *Error
	if _, err := m.Load(t.Context()); !errors.As(err, &whole) {
		t.Errorf("looked at: %v", err)
	}
	for _, steps := range [][]engine.Step{m.Lower(), m.Switch(), m.Restore()} {
		if err := w.drive(steps); !errors.As(err, &whole) {
			t.Errorf("%s: %v", steps[0].ID(), err)
		}
	}
	if s, err := w.memory.Recall(t.Context(), m.name, m.typ); w.writes > 0 || s != nil || err != nil {
		t.Errorf("%d writes, remembered is %s, %v", w.writes, fmt.Sprint(s), err)
	}
	if s, err := m.Lower()[0].State(t.Context()); s != engine.Pending || err != nil {
		t.Errorf("the step is %s (%v)", s, err)
	}
}
