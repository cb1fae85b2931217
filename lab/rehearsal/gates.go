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
	command *Command
	acting  sync.WaitGroup

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
	g.command.hear(e)
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
	if !slices.ContainsFunc(g.command.Gates, func(have Gate) bool { return have.Step == e.Step }) {
		g.command.Gates = append(g.command.Gates, at)
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
		"gate/kubelets":    "all kubelets, which are played, name the address that cluster DNS has now",
		"gate/api-servers": "the API server was restarted with the range that was asked for",
	}
}

func (g *gates) kubelets(ctx context.Context) error { return g.cluster.front.repoint(ctx, g.dns) }

func (g *gates) apiServers(context.Context) error {
	if g.command.Command == rollback {
		return g.cluster.restart(g.ranges)
	}
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
