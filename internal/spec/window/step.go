package window

import (
	"context"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// limit covers a weekly window that a clock change skips once.
const limit = 15 * 24 * time.Hour

// Step waits until a window is open. It writes nothing.
type Step struct {
	id      string
	windows []v1alpha1.Window
	now     func() time.Time
}

var (
	_ engine.Timed  = (*Step)(nil)
	_ engine.Waiter = (*Step)(nil)
)

// NewStep waits for one of the windows, by the machine's clock unless now is given.
func NewStep(id string, windows []v1alpha1.Window, now func() time.Time) *Step {
	if now == nil {
		now = time.Now
	}
	return &Step{id: id, windows: windows, now: now}
}

func (s *Step) ID() string              { return s.id }
func (s *Step) Title() string           { return "Wait for a maintenance window" }
func (s *Step) Deadline() time.Duration { return limit }
func (s *Step) Waits()                  {}

func (s *Step) State(context.Context) (engine.State, error) {
	open, _, err := Until(s.windows, s.now())
	switch {
	case err != nil:
		return engine.Unknown, err
	case open:
		return engine.Done, nil
	}
	return engine.Pending, nil
}

// Do does nothing: only time helps.
func (s *Step) Do(context.Context) error { return nil }

func (s *Step) Verify(context.Context) error {
	now := s.now()
	open, next, err := Until(s.windows, now)
	if err != nil || open {
		return err
	}
	layout := "Mon 15:04 MST"
	if next.Sub(now) > 6*24*time.Hour { // the day of the week alone could be understood as today
		layout = "Mon 2 Jan 15:04 MST"
	}
	return engine.NotYet("outside the maintenance windows until %s", next.Format(layout))
}
