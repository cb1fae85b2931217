package rehearsal

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/replumb/replumb/internal/engine"
)

// gates are answered as the operator of the cluster would, beside the run.
type gates struct {
	*rehearsal
	acting sync.WaitGroup

	// restarted is true after a gate for which the API server was restarted.
	restarted bool

	mu     sync.Mutex
	errors []string
	// stuck is true after a gate that cannot be answered.
	stuck bool
}

// hear takes events into the report. A gate says once in a run what it asks for, and that is done.
func (g *gates) hear(ctx context.Context, e engine.Event, stop func()) {
	g.progressOf(e)
	g.report.hear(e)
	if e.Kind != engine.StepWaiting || e.Guide == "" {
		return
	}
	at := Gate{Step: e.Step, Title: e.Message}
	act, known := map[string]func(context.Context) error{"gate/kubelets": g.kubelets, "gate/api-servers": g.apiServers}[e.Step]
	if at.Answer = answers()[e.Step]; !known {
		at.Answer = "none: " + e.Error
		g.giveUp("%s cannot be answered in a rehearsal: %s", e.Step, e.Error)
		stop()
	}
	if !slices.ContainsFunc(g.report.Gates, func(have Gate) bool { return have.Step == e.Step }) {
		g.report.Gates = append(g.report.Gates, at)
	}
	if !known {
		return
	}
	g.restarted = g.restarted || e.Step == "gate/api-servers"
	g.acting.Go(func() {
		if err := act(ctx); err != nil {
			g.giveUp("%s: %v", e.Step, err)
			stop()
		}
	})
}

// answers are what the rehearsal does at each gate.
func answers() map[string]string {
	return map[string]string{
		"gate/kubelets":    "all kubelets, which are played, name the new address of cluster DNS",
		"gate/api-servers": "the API server was restarted with the new range",
	}
}

func (g *gates) kubelets(ctx context.Context) error { return g.cluster.front.repoint(ctx, g.dns) }

func (g *gates) apiServers(context.Context) error {
	to, err := g.restartsTo()
	if err != nil {
		return err
	}
	return g.cluster.restart(to)
}

// giveUp is the end of a rehearsal at a gate. Gates are answered beside the run, several at once.
func (g *gates) giveUp(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stuck = true
	g.errors = append(g.errors, fmt.Sprintf(format, args...))
}

// done waits until what was begun at gates is.
func (g *gates) done() { g.acting.Wait() }
