package migration

import (
	"context"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// PauseStep lets time pass. It does not remember an earlier run.
type PauseStep struct {
	// Name is the ID, About the title.
	Name, About string
	Length      time.Duration
	Now         func() time.Time

	until time.Time
}

var _ engine.Waiter = (*PauseStep)(nil)

func (s *PauseStep) ID() string { return s.Name }

func (s *PauseStep) Title() string { return s.About }

func (*PauseStep) Waits() {}

func (s *PauseStep) Deadline() time.Duration { return s.Length + time.Minute }

func (*PauseStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (s *PauseStep) Do(context.Context) error {
	s.until = s.now().Add(s.Length)
	return nil
}

func (s *PauseStep) Verify(context.Context) error {
	if s.until.After(s.now()) {
		return engine.NotYet("until %s", s.until.Format(time.TimeOnly))
	}
	return nil
}

func (s *PauseStep) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}
