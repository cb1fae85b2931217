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

	mu     sync.Mutex
	errors []string
	// stuck is true after a gate that cannot be answered, restarted after one for which the API server was restarted.
	stuck, restarted bool
}

// hear takes events into the report. At the first wait of a gate it does what the gate asks for.
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
		g.fail("%s cannot be answered in a rehearsal: %s", e.Step, e.Error)
		g.stuck = true
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
			g.fail("%s: %v", e.Step, err)
			g.mu.Lock()
			g.stuck = true
			g.mu.Unlock()
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

func (g *gates) fail(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.errors = append(g.errors, fmt.Sprintf(format, args...))
}

// done waits until what was begun at gates is.
func (g *gates) done() { g.acting.Wait() }
