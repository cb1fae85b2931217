package dnsrecords

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const writeLimit = 30 * time.Second

// changeStep brings a record to a stage, and waits for every server. That may take as long as
// caches remember, so cancellation ends it, except within a write.
type changeStep struct {
	move  *RecordMove
	stage stage
	to    engine.Direction

	// guide is what people have to do, as far as it is known that they have to.
	guide string
}

var (
	_ engine.Undoer    = (*changeStep)(nil)
	_ engine.Previewer = (*changeStep)(nil)
	_ engine.Guide     = (*changeStep)(nil)
	_ engine.Waiter    = (*changeStep)(nil)
	_ engine.Timed     = (*changeStep)(nil)
)

func (m *RecordMove) change(st stage, d engine.Direction) *changeStep {
	return &changeStep{move: m, stage: st, to: d}
}

func (s *changeStep) ID() string { return s.move.id(s.stage, s.to) }

func (s *changeStep) Title() string {
	m := s.move
	switch {
	case s.stage == turn:
		return m.lead(m.typ, m.last, m.then)
	case m.Changes():
		return s.swapTitle()
	}
	record := Title(m.name, m.typ)
	switch {
	case s.stage == lower:
		return fmt.Sprintf("Lower the time to live of %s to %s", record, m.low)
	case s.stage == restore || s.stage == leave:
		return fmt.Sprintf("Give %s the time to live that it had", record)
	case s.stage == widen && s.to == engine.Backward:
		return fmt.Sprintf("Put what %s had back beside %s", record, list(m.to))
	case s.stage == widen:
		return fmt.Sprintf("Add %s to %s", list(m.to), record)
	case s.to == engine.Backward:
		return fmt.Sprintf("Leave in %s what it had before", record)
	}
	if m.Straight || aliased(m.to) {
		return fmt.Sprintf("Lead %s to %s", record, list(m.to))
	}
	return fmt.Sprintf("Leave only %s in %s", list(m.to), record)
}

func (m *RecordMove) lead(was, typ v1alpha1.RecordType, values []string) string {
	if was == typ {
		return fmt.Sprintf("Lead %s to %s, in one change", Title(m.name, typ), list(values))
	}
	return fmt.Sprintf("Replace %s by %s: %s, in one change", Title(m.name, was), typ, list(values))
}

func (s *changeStep) swapTitle() string {
	m := s.move
	begins, ends := Title(m.name, m.former), Title(m.name, m.last)
	if s.to == engine.Backward {
		begins, ends = ends, begins
	}
	switch {
	case s.stage == lower:
		return fmt.Sprintf("Lower the time to live of %s to %s", begins, m.low)
	case s.stage == restore || s.stage == leave:
		return fmt.Sprintf("Give %s the time to live that it had", ends)
	case s.to == engine.Backward:
		return fmt.Sprintf("Have %s be a %s again, in one change", m.name[:len(m.name)-1], m.former)
	}
	return m.lead(m.former, m.typ, m.to)
}

func (*changeStep) Waits()                    {}
func (s *changeStep) Deadline() time.Duration { return s.move.patience() }
func (s *changeStep) Guide() string           { return s.guide }

func (s *changeStep) Undo() engine.Step {
	opposite := map[stage]stage{lower: restore, widen: narrow, narrow: widen, restore: lower, leave: lower}
	if s.stage == turn || s.stage == narrow && s.move.direct() {
		return s.move.change(narrow, s.to.Opposite())
	}
	return s.move.change(opposite[s.stage], s.to.Opposite())
}

func (s *changeStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.verify(ctx)) }

func stateOf(err error) (engine.State, error) {
	var problem *Error
	switch {
	case err == nil:
		return engine.Done, nil
	case engine.Retryable(err):
		return engine.Pending, nil
	case errors.As(err, &problem):
		return engine.Blocked, err
	}
	return engine.Unknown, err
}

func (s *changeStep) Do(ctx context.Context) error {
	seen, err := s.load(ctx)
	if err != nil || seen.past(s.stage, s.to) {
		return err
	}
	if err := s.move.allowed(ctx); err != nil {
		return err
	}
	want := seen.want(s.stage, s.to)
	if err := s.answers(ctx, seen, want); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeLimit)
	defer cancel()
	if err := s.remember(ctx, seen, want); err != nil {
		return err
	}
	if seen.now.Same(want) && seen.now.TTL == want.TTL {
		return nil
	}
	if g, ok := s.move.provider.(Guider); ok {
		s.guide = g.Guide(seen.now, want)
	}
	if err := engine.MayWrite(ctx, true); err != nil {
		return err
	}
	return s.move.provider.Replace(ctx, seen.now, want)
}

// answers fails until the present and the next target answer: clients need both while caches have
// the former.
func (s *changeStep) answers(ctx context.Context, seen *situation, want RecordSet) error {
	inOne := s.stage == turn || s.stage == narrow && (seen.beyond() || !seen.joined())
	if s.move.Answer == nil || !inOne || seen.now.Same(want) {
		return nil
	}
	err := s.move.Answer(ctx, both(seen.now.Values, want.Values))
	if err == nil { // what it asked for is there
		s.guide = ""
	}
	if s.stage == turn && engine.Retryable(err) {
		s.guide = fmt.Sprintf("Have %s answer, with a certificate that is good for %s. replumb goes on by itself.",
			list(want.Values), s.move.name[:len(s.move.name)-1])
	}
	return err
}

// load fails for a record that is not where this step takes it from: no stage is skipped.
func (s *changeStep) load(ctx context.Context) (*situation, error) {
	seen, err := s.move.load(ctx, s.to)
	if err != nil || seen.past(s.stage, s.to) {
		return seen, err
	}
	goal := seen.set(seen.goal(s.stage, s.to))
	ready := true
	switch {
	case s.stage == restore:
		ready = seen.now.Same(goal)
	case s.stage == turn:
		ready = seen.now.Same(goal) || seen.now.Same(seen.set(seen.to))
	case s.stage == narrow && !s.move.direct():
		start := seen.set(seen.goal(s.stage, s.to.Opposite()))
		ready = seen.now.Same(goal) || !seen.now.Same(start) || start.Same(seen.set(seen.together()))
	}
	if !ready {
		return nil, &Error{
			Record:  goal.String(),
			Problem: fmt.Sprintf("it has %s, and should have come further before: someone has put it back", list(seen.now.Values)),
			Hint:    "make sure that no one else changes it, and run the same command again",
		}
	}
	return seen, nil
}

// remember keeps the original record, and forgets the times of the stage that is about to change.
func (s *changeStep) remember(ctx context.Context, seen *situation, want RecordSet) error {
	status := seen.status()
	before := status.DeepCopy()
	if !seen.now.Same(want) {
		status.Seen = nil
	}
	if seen.now.TTL > seen.low && s.lowers(seen) {
		status.LoweredAt = nil
		if status.TTL > 0 { // it may have been raised since
			status.TTL = max(status.TTL, wholeSeconds(seen.now.TTL))
		}
	}
	from := seen.set(seen.from)
	switch {
	case s.stage == restore && s.to == engine.Backward:
		status.LoweredAt, status.PublishedAt = nil, nil
	case status.PublishedAt == nil && (!from.Same(want) || !from.Same(seen.now)):
		status.PublishedAt = s.move.stamp()
	}
	if seen.memory != nil && equal(status, before) {
		return nil
	}
	if err := s.move.memory.Remember(ctx, *status); err != nil {
		return fmt.Errorf("remembering %s: %w", seen.now, err)
	}
	return nil
}

// lowers reports whether the record has the low TTL from this step on; aliases have none.
func (s *changeStep) lowers(seen *situation) bool {
	return s.stage != restore && s.stage != leave && !aliased(seen.now.Values)
}

func (s *changeStep) Verify(ctx context.Context) error {
	return turned(s.verify(ctx))
}

func turned(err error) error {
	var other *otherError
	if errors.As(err, &other) {
		return &Error{
			Record: other.want.String(), Problem: fmt.Sprintf("someone else has changed it back: it is %s", describe(other.now)),
			Hint: "find out who writes it (external-dns, for instance), have them stop, and run the same command again",
		}
	}
	return err
}

func (s *changeStep) verify(ctx context.Context) error {
	seen, err := s.load(ctx)
	if err != nil || seen.past(s.stage, s.to) {
		return err
	}
	want := seen.want(s.stage, s.to)
	switch {
	case seen.memory == nil:
		return engine.NotYet("%s: what it was has not been written down", want)
	case !seen.now.Same(want) || seen.now.TTL != want.TTL:
		return engine.NotYet("%w", &otherError{now: seen.now, want: want})
	}
	_, err = s.move.proof(ctx, want, s.stage)
	return err
}

type otherError struct{ now, want RecordSet }

func (e *otherError) Error() string {
	return fmt.Sprintf("%s is %s, not %s", e.want, describe(e.now), describe(e.want))
}

func (s *changeStep) Preview() ([]engine.Change, error) {
	return append([]engine.Change{s.move.memory.Change(s.move.name, s.move.typ)}, s.changes()...), nil
}

func (s *changeStep) changes() []engine.Change {
	m := s.move
	switch {
	case (m.looked == nil || !m.looked.known) && s.stage == turn:
		return []engine.Change{{Verb: "update", Object: Title(m.name, m.last), Body: map[string]any{"to": m.then}}}
	case m.looked == nil || !m.looked.known:
		return []engine.Change{{Verb: "update", Object: Title(m.name, m.typ), Body: map[string]any{"to": m.to}}}
	}
	seen := s.found(*m.looked)
	if len(seen.from) == 0 {
		seen.now.TTL = seen.low
	}
	want := seen.want(s.stage, s.to)
	verb := "update"
	switch {
	case len(want.Values) == 0 && s.stage != narrow:
		return nil
	case len(want.Values) == 0:
		return []engine.Change{{Verb: "delete", Object: want.String()}}
	case len(seen.now.Values) == 0 && s.stage == widen && s.to == engine.Forward:
		verb = "create"
	case seen.now.Type != want.Type:
		return []engine.Change{
			{Verb: "delete", Object: seen.now.String(), Body: map[string]any{"ttl": seconds(seen.now.TTL), "values": seen.now.Values}},
			{Verb: "create", Object: want.String(), Body: map[string]any{"ttl": seconds(want.TTL), "values": want.Values}},
		}
	}
	return []engine.Change{{
		Verb: verb, Object: want.String(), Body: map[string]any{"ttl": seconds(want.TTL), "values": want.Values},
	}}
}

func (s *changeStep) found(seen situation) *situation {
	m := s.move
	switch {
	case s.stage == leave, s.to == engine.Backward && seen.beyond():
	case s.stage == turn, m.Changes() && s.to == engine.Backward:
		seen.now.Values = seen.to
	default:
		seen.now.Values = seen.from
	}
	seen.now.Type = seen.kind(seen.now.Values)
	return &seen
}

func (s *situation) status() *v1alpha1.RecordStatus {
	if s.memory != nil {
		return s.memory.DeepCopy()
	}
	return &v1alpha1.RecordStatus{Name: s.now.Name, Type: s.own, TTL: wholeSeconds(s.now.TTL), Values: s.from}
}

func equal(a, b *v1alpha1.RecordStatus) bool {
	return a.TTL == b.TTL && a.LoweredAt.Equal(b.LoweredAt) && a.PublishedAt.Equal(b.PublishedAt) && (a.Seen == nil) == (b.Seen == nil)
}

// stamp rounds up: times kept in seconds must not seem earlier.
func (m *RecordMove) stamp() *metav1.Time {
	t := metav1.NewTime(m.clock().Add(time.Second - 1).Truncate(time.Second).UTC())
	return &t
}
