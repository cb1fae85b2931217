package dnsrecords

import (
	"context"
	"fmt"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// waitStep waits until caches have forgotten the former record, counted from a recorded time, so
// that a new run does not start over.
type waitStep struct {
	move  *RecordMove
	stage stage
	to    engine.Direction
}

var (
	_ engine.Waiter    = (*waitStep)(nil)
	_ engine.Timed     = (*waitStep)(nil)
	_ engine.Previewer = (*waitStep)(nil)
)

func (m *RecordMove) wait(st stage, d engine.Direction) *waitStep {
	return &waitStep{move: m, stage: st, to: d}
}

func (s *waitStep) ID() string { return s.move.id(s.stage, s.to) }

func (s *waitStep) Title() string {
	record := Title(s.move.name, s.move.typ)
	switch s.stage {
	case expire:
		return fmt.Sprintf("Wait until no one remembers the old time to live of %s", record)
	case settle:
		return fmt.Sprintf("Wait until everybody has heard of all that %s has", record)
	}
	return fmt.Sprintf("Wait until no one remembers what was taken out of %s", record)
}

func (*waitStep) Waits()                    {}
func (s *waitStep) Deadline() time.Duration { return longest + s.move.drain + s.move.patience() }

func (s *waitStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.verify(ctx)) }

// Do writes down since when all say what the record is, if no one has yet.
func (s *waitStep) Do(ctx context.Context) error {
	seen, err := s.move.load(ctx, s.to)
	if err != nil || seen.past(s.stage, s.to) {
		return err
	}
	if _, begun := seen.until(s.stage, s.to, 0); begun {
		return nil
	}
	want := seen.want(s.stage, s.to)
	if !seen.now.Same(want) {
		return turned(&otherError{now: seen.now, want: want}) // the step before has seen it as it has to be
	}
	answers, err := s.move.proof(ctx, want, s.stage)
	if err != nil {
		return err
	}
	status := seen.status()
	if s.stage == expire {
		status.LoweredAt = s.move.stamp()
	} else {
		remembered := longestTTL(answers)
		if len(want.Values) == 0 { // nothing says any more for how long it may be remembered
			remembered = seen.low
		}
		status.Seen = &v1alpha1.RecordSeen{
			Values: want.Values, At: *s.move.stamp(), Longest: wholeSeconds(min(remembered, longest)),
		}
	}
	if err := s.move.memory.Remember(ctx, *status); err != nil {
		return fmt.Errorf("remembering %s: %w", want, err)
	}
	return nil
}

// Preview implements engine.Previewer: what every server said, and when, is written down.
func (s *waitStep) Preview() ([]engine.Change, error) {
	return []engine.Change{s.move.memory.Change(s.move.name, s.move.typ)}, nil
}

// Someone may have put the record back while its time ran.
func (s *waitStep) Verify(ctx context.Context) error { return turned(s.verify(ctx)) }

func (s *waitStep) verify(ctx context.Context) error {
	seen, err := s.move.load(ctx, s.to)
	if err != nil || seen.past(s.stage, s.to) {
		return err
	}
	want := seen.want(s.stage, s.to)
	end, begun := seen.until(s.stage, s.to, s.move.drain)
	switch {
	case begun && !seen.now.Same(want):
		return engine.NotYet("%w", &otherError{now: seen.now, want: want})
	case !begun:
		return engine.NotYet("%s: not every server was seen to say %s", want, describe(want))
	case s.move.clock().Before(end):
		return engine.NotYet("%s: what it was may be remembered until %s", want, end.UTC().Format(time.RFC3339))
	}
	_, err = s.move.proof(ctx, want, s.stage)
	return err
}
