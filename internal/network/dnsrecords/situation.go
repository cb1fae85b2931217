package dnsrecords

import (
	"fmt"
	"slices"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// stage is a step on a record's way.
type stage string

// The stages in order. Each but the last two is written and waited for.
const (
	lower   stage = "lower"   // the time to live is short,
	expire  stage = "expire"  // and no one remembers the long one
	widen   stage = "widen"   // the new values are there beside the old ones,
	settle  stage = "settle"  // and no one remembers a time without them
	narrow  stage = "narrow"  // the old values are gone,
	drain   stage = "drain"   // and no one remembers them
	turn    stage = "then"    // what it has at last is there instead
	forget  stage = "forget"  // and no one remembers what it had between
	restore stage = "restore" // the time to live is what it was
	leave   stage = "leave"   // the same, wherever a move has ended that goes no further
)

// situation is all that a decision depends on.
type situation struct {
	now RecordSet
	// from and to are the ends. An unknown from means that nothing was ever written.
	from, to []string
	known    bool
	// then is what the record has at last; nil, if that is to.
	then []string
	// memory is what is remembered; nil, if nothing is.
	memory *v1alpha1.RecordStatus
	// low is the time to live while it moves.
	low time.Duration
	// straight is true if both ends must not be there together.
	straight bool
	// own is the type of to, former that of from, last that of then; mostly the same.
	own, former, last v1alpha1.RecordType
}

// origin is the remembered record, else what people wrote, else the present one.
func (s *situation) origin(written []string, d engine.Direction) error {
	s.known = true
	switch {
	case s.memory != nil:
		s.from = s.memory.Values
	case written != nil:
		s.from = written
	case d == engine.Backward:
		s.known = false
	case len(s.now.Values) == 0:
		return &Error{
			Record: s.now.String(), Problem: "there is no such record",
			Hint: "correct name and type, or write from: [] to have it created",
		}
	case s.beyond():
		return &Error{
			Record: s.now.String(), Problem: fmt.Sprintf("it has %s already, and nothing is remembered of a move", list(s.now.Values)),
			Hint: "write into from what it had before, or leave it alone: it is where then leads it",
		}
	case s.swaps() && s.now.Type != s.former && !s.now.Same(s.set(s.to)):
		return &Error{
			Record: s.now.String(), Problem: fmt.Sprintf("it has %s, and should be a %s by fromType", list(s.now.Values), s.former),
			Hint: "write into fromType which type it has before, or leave it out if that is not to change",
		}
	case s.now.Same(s.set(s.to)) || len(without(s.now.Values, s.to...)) == len(s.now.Values):
		s.from = s.now.Values
	default:
		return &Error{
			Record: s.now.String(), Problem: fmt.Sprintf("it has %s already, and nothing is remembered of a move", list(s.now.Values)),
			Hint: "write into from what it had before",
		}
	}
	return s.roundTrip()
}

// roundTrip refuses a record whose last values equal the first: its position would be ambiguous.
func (s *situation) roundTrip() error {
	if !s.known || s.then == nil || !slices.Equal(s.from, s.then) {
		return nil
	}
	return &Error{
		Record: s.now.String(), Problem: fmt.Sprintf("%s is what it had before, and what it is to have by then", list(s.then)),
		Hint: "lead then to something else: at its end the record has to look different than at its beginning",
	}
}

func (s *situation) swaps() bool  { return s.own != s.former || s.own != s.last }
func (s *situation) beyond() bool { return s.then != nil && s.now.Same(s.set(s.then)) }

// familiar fails for a record that no move leaves: foreign values are not overwritten, nor removed
// ones restored.
func (s *situation) familiar() error {
	if !s.known {
		return nil
	}
	if s.beyond() {
		return nil
	}
	if foreign := without(s.now.Values, slices.Concat(s.from, s.to, s.then)...); len(foreign) > 0 {
		return &Error{
			Record: s.now.String(), Problem: fmt.Sprintf("it has %s, which is in neither from nor to", list(foreign)),
			Hint: "someone else changes it: make sure that they have stopped, and take out or write down what they added",
		}
	}
	for _, known := range [][]string{s.from, s.to, s.together()} {
		if s.now.Same(s.set(known)) {
			return nil
		}
	}
	return &halfError{is: &Error{
		Record: s.now.String(),
		Problem: fmt.Sprintf("it has %s, which is neither from (%s) nor to (%s) nor both",
			list(s.now.Values), list(s.from), list(s.to)),
		Hint: "someone has taken out the rest: put it back, or take the rest of that end out too",
	}}
}

// halfError is a record with some of the expected values, as when people change them one by one.
type halfError struct{ is *Error }

func (e *halfError) Error() string { return e.is.Error() }

func (s *situation) set(values []string) RecordSet {
	return RecordSet{Name: s.now.Name, Type: s.kind(values), Values: values}
}

func (s *situation) kind(values []string) v1alpha1.RecordType {
	return kind(values, s.own, s.former, s.last)
}

// joined reports whether both ends may stand side by side, unlike a CNAME or an alias.
func (s *situation) joined() bool {
	return !s.straight && s.own == s.former && s.own != v1alpha1.RecordCNAME && !aliased(s.from) && !aliased(s.to)
}

func (s *situation) together() []string {
	if !s.joined() {
		return s.from
	}
	return both(s.from, s.to)
}

func (s *situation) goal(st stage, d engine.Direction) []string {
	switch {
	case d == engine.Backward:
		return s.from
	case s.then != nil && slices.Contains([]stage{turn, forget, restore}, st):
		return s.then
	}
	return s.to
}

// past reports whether a stage is behind. A record that never left has no way back.
func (s *situation) past(st stage, d engine.Direction) bool {
	if st == leave {
		return s.memory == nil
	}
	if d == engine.Backward && s.neverLeft(st) {
		return true
	}
	if s.beyond() { // from there it goes back in one change, and forward there is only what comes after
		return slices.Contains([]stage{lower, expire, widen, settle}, st) ||
			d == engine.Forward && slices.Contains([]stage{narrow, drain}, st)
	}
	if st == expire && aliased(s.now.Values) { // nothing was lowered: what remembers it is waited for when it has gone
		return true
	}
	return slices.Contains([]stage{lower, expire, widen, settle}, st) && s.now.Same(s.set(s.goal(st, d)))
}

func (s *situation) neverLeft(st stage) bool {
	return !s.known || s.memory == nil && s.now.Same(s.set(s.from)) || st == drain && s.memory != nil && s.memory.PublishedAt == nil
}

func (s *situation) want(st stage, d engine.Direction) RecordSet {
	w := s.now
	w.TTL = min(s.now.TTL, s.low)
	if len(s.now.Values) == 0 || aliased(s.now.Values) {
		w.TTL = s.low
	}
	switch st {
	case lower, expire:
	case widen, settle:
		w.Values = s.together()
	case narrow, drain, turn, forget:
		w.Values = s.goal(st, d)
		if s.now.Same(w) { // the time to live may be what it was again
			w.TTL = s.now.TTL
		}
	case restore, leave:
		w.TTL = s.now.TTL
		if st == restore {
			w.Values = s.goal(st, d)
		}
		if s.memory != nil && s.memory.TTL > 0 {
			w.TTL = time.Duration(s.memory.TTL) * time.Second
		}
	}
	w.Type = s.kind(w.Values)
	switch {
	case len(w.Values) == 0:
		w.TTL = 0
	case aliased(w.Values):
		w.TTL = AliasTTL
	}
	return w
}

// until is the end of a waiting stage; false if it has not begun.
func (s *situation) until(st stage, d engine.Direction, extra time.Duration) (time.Time, bool) {
	m := s.memory
	switch {
	case m == nil:
		return time.Time{}, false
	case st == expire && m.LoweredAt != nil:
		return m.LoweredAt.Add(min(time.Duration(m.TTL)*time.Second, longest)), true
	case st == expire:
		// A time to live that was short before has never been lowered.
		return time.Time{}, time.Duration(m.TTL)*time.Second <= s.low
	case m.Seen == nil || !slices.Equal(m.Seen.Values, s.want(st, d).Values):
		return time.Time{}, false
	}
	remembered := m.Seen.Longest
	if m.LoweredAt == nil { // it was not lowered, or someone has raised it since
		remembered = max(remembered, m.TTL)
	}
	if aliased(s.from) || aliased(s.to) || aliased(s.then) { // what was left may have been one, and its time to live cannot be lowered
		remembered = max(remembered, wholeSeconds(AliasTTL))
	}
	end := m.Seen.At.Add(min(time.Duration(remembered)*time.Second, longest))
	if st == drain || st == forget {
		end = end.Add(extra)
	}
	return end, true
}

// longest is the limit of resolvers' caches (RFC 8767, section 4).
const longest = 7 * 24 * time.Hour

// agreed fails with the first dissenter. Resolvers report remaining TTLs, which tell nothing.
func agreed(want RecordSet, st stage, authoritative, resolvers []Answer) error {
	whole := st == restore || st == leave
	for _, a := range authoritative {
		if err := says(want, a); err != nil {
			return err
		}
		if len(want.Values) > 0 && (a.Set.TTL > want.TTL || whole && a.Set.TTL != want.TTL && !aliased(want.Values)) {
			return fmt.Errorf("%s still says a time to live of %s, not %s", a.Server, a.Set.TTL, want.TTL)
		}
	}
	for _, a := range resolvers {
		if err := says(want, a); err != nil {
			return err
		}
	}
	return nil
}

func says(want RecordSet, a Answer) error {
	switch {
	case a.Err != nil:
		return fmt.Errorf("%s does not say: %w", a.Server, a.Err)
	case !a.Set.Same(want):
		return fmt.Errorf("%s still says %s, not %s", a.Server, list(a.Set.Values), list(want.Values))
	}
	return nil
}

func longestTTL(answers []Answer) time.Duration {
	ttl := time.Duration(0)
	for _, a := range answers {
		ttl = max(ttl, a.Set.TTL)
	}
	return ttl
}
