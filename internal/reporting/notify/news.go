package notify

import (
	"fmt"
	"sync"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// news picks what is worth telling to people who don't watch.
type news struct {
	mu    sync.Mutex
	gates map[string]bool
}

// is reports whether an event is worth telling: phases with something to do, failures, ends, and
// the first wait with instructions for people.
func (n *news) is(e engine.Event) bool {
	switch e.Kind {
	case engine.RunStarted, engine.RunDone, engine.RunFailed, engine.RunInterrupted:
		return true
	case engine.StepFailed:
		return !e.Interrupted // that is no failure, and the run reports it
	case engine.PhaseStarted, engine.PhaseDone:
		return e.Total > 0
	case engine.StepDone:
		return e.Note != ""
	case engine.StepWaiting:
		return e.Guide != "" && n.first(e.Step)
	}
	return false
}

func (n *news) first(step string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gates[step] {
		return false
	}
	if n.gates == nil {
		n.gates = map[string]bool{}
	}
	n.gates[step] = true
	return true
}

func sentence(e engine.Event) string {
	took := time.Duration(e.Seconds * float64(time.Second)).Round(time.Second).String()
	switch e.Kind {
	case engine.RunStarted:
		return "the run has begun"
	case kindLost:
		return "lost: " + e.Message
	case engine.RunDone:
		return fmt.Sprintf("the run is done (%s)", took)
	case engine.RunFailed:
		return fmt.Sprintf("the run failed after %s: %s", took, e.Error)
	case engine.RunInterrupted:
		return fmt.Sprintf("the run was interrupted after %s; the same command takes it up again", took)
	case engine.PhaseStarted:
		return fmt.Sprintf("phase %s has begun: %s", e.Phase, e.Message)
	case engine.PhaseDone:
		return fmt.Sprintf("phase %s is done: %s (%s)", e.Phase, e.Message, took)
	case engine.StepFailed:
		return fmt.Sprintf("failed in phase %s: %s: %s", e.Phase, e.Message, e.Error)
	case engine.StepWaiting:
		return fmt.Sprintf("waits in phase %s: %s: %s", e.Phase, e.Message, e.Error)
	}
	return fmt.Sprintf("in phase %s: %s: %s", e.Phase, e.Message, e.Note)
}
