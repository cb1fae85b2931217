package lossguard

import (
	"context"
	"strings"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// Heard is the step that waits for the next report of every agent on a ready node, before something that must not begin if one of them has lost
// anything: between two reports a loss is not known, and where there are many nodes they report but every few minutes. What a report tells
// of stops the run as ever.
type Heard struct {
	Watch *Watch
	// Before says what it comes before.
	Before string
	Limit  time.Duration

	since time.Time
}

var _ engine.Waiter = (*Heard)(nil)

func (*Heard) ID() string { return "agents/heard" }

func (s *Heard) Title() string { return "Hear from every node before " + s.Before }

func (*Heard) Waits() {}

func (s *Heard) Deadline() time.Duration { return s.Limit }

// State implements engine.Step: what was heard before says nothing of now.
func (*Heard) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (s *Heard) Do(context.Context) error {
	if s.since.IsZero() {
		s.since = s.Watch.now()
	}
	return nil
}

func (s *Heard) Verify(ctx context.Context) error {
	if err := s.Watch.list(ctx); err != nil {
		return err
	}
	missing := s.Watch.until(ctx, moment, s.missing)
	if len(missing) > 0 {
		return engine.NotYet("%s", strings.Join(missing[:min(len(missing), namedLosses)], "; "))
	}
	return nil
}

// missing names who is still to report. What waits is woken as soon as a report is counted, which may be before the run is stopped for it.
func (s *Heard) missing(t *Tally) []string {
	if s.Watch.spent(t.Failed, t.Late) {
		return []string{"more was lost, or late, than may be"}
	}
	return t.Unheard(s.since, s.Watch.nodes.due())
}

// Heard waits until every agent has reported once more, before something that is named.
func (p *Agents) Heard(before string) []engine.Group {
	if p == nil {
		return nil
	}
	return inOrder(&Heard{Watch: p.Watch, Before: before, Limit: p.Wait})
}
