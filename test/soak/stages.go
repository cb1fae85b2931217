package main

import (
	"sync"
	"time"

	"github.com/replumb/replumb/test/soak/model"
)

// freezeLag is for how long API servers may still hold to a freeze as it was: they compile policies after they were written
// (docs/design/safety.md).
const freezeLag = 5 * time.Second

// stages are those that a migration has gone through.
type stages struct {
	mu  sync.Mutex
	all []entered
}

type entered struct {
	stage model.Stage
	at    time.Time
}

// enter says that a stage begins.
func (s *stages) enter(stage model.Stage, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, entered{stage, at})
}

// between are the stages whose freeze a request may have met that was under way from one moment to another.
func (s *stages) between(from, to time.Time) []model.Stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	var met []model.Stage
	for i, e := range s.all {
		over := i+1 < len(s.all) && s.all[i+1].at.Add(freezeLag).Before(from)
		if !over && !e.at.After(to) {
			met = append(met, e.stage)
		}
	}
	return met
}

// now is the stage that was entered last.
func (s *stages) now() model.Stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return model.Quiet
	}
	return s.all[len(s.all)-1].stage
}
