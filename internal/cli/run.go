package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/reporting/archive"
	"github.com/replumb/replumb/internal/reporting/notify"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// flushLimit is how long a command waits at its end for the notifications about it.
const flushLimit = 10 * time.Second

// run does something with a runner whose events reach everybody who shall hear of them: the terminal, the notifiers of
// the Migration, and the cluster's own Events.
func (a *app) run(ctx context.Context, c *connection, j job, command string, do func(context.Context, *engine.Runner) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	of := j.about()
	identity := c.identity(ctx)
	measured, stopServing, err := a.measure(ctx, identity, countsOf(c, of.name))
	if err != nil {
		return err
	}
	defer stopServing()
	notifier := notify.New(of.common.Notify, stop)
	notifier.About(identity)
	events := notify.NewEvents(c.Cluster, of.name, func(err error) {
		if !errors.Is(err, notify.ErrNoMigration) { // nothing was begun, and there is nothing to write about
			fmt.Fprintf(a.err, "warning: %v\n", err)
		}
	})
	past, stopRemembering := a.remember(ctx, c, j, command, measured)
	r := a.runner()
	shown := r.Sink
	r.Sink = func(e engine.Event) {
		shown(spokenEvent(a.name, e))
		if e.Private != "" && a.output == "json" {
			fmt.Fprintf(a.err, "%s: %s\n", e.Message, e.Private)
		}
		notifier.Event(e)
		events.Event(e)
		past.Event(e)
	}
	observe(j, past)
	err = do(ctx, r)
	past.end(err)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushLimit)
	defer cancel()
	stopRemembering(last)
	events.Close(last)
	if failed := notifier.Close(last); failed != nil {
		fmt.Fprintf(a.err, "warning: %v\n", failed)
	}
	if failed := archive.Keep(ctx, c.Cluster, of.name); failed != nil && !engine.Revoked(err) {
		fmt.Fprintf(a.err, "warning: %v\n", failed)
	}
	var loss *lossguard.LossError
	var silent *agentset.SilentError
	switch { // that the run was interrupted is their doing
	case errors.As(err, &loss):
		if judge, ok := j.(judge); ok && ctx.Err() == nil {
			return judge.Blame(ctx, loss)
		}
		return loss
	case errors.As(err, &silent) && silent.For > 0:
		return silent
	}
	if errors.Is(err, engine.ErrPaused) {
		return &fault.Hinted{
			Err: fmt.Errorf("migration %s is %w", of.name, err), Hint: a.name + " resume " + of.name + " carries on",
		}
	}
	return ofJob(j, a.explain(err))
}

// runner renders events as the flags and the terminal ask for.
func (a *app) runner() *engine.Runner {
	if a.output == "json" {
		return &engine.Runner{Sink: terminal.JSONLines(verbatim{a.out})}
	}
	if a.settings.quiet {
		return &engine.Runner{Sink: func(engine.Event) {}}
	}
	if f := a.terminal(); f != nil {
		return &engine.Runner{Sink: terminal.NewProgress(f, int(f.Fd())).Event}
	}
	return &engine.Runner{Sink: terminal.Plain(a.err)}
}

// watchChanges notices whether any step did something.
func watchChanges(r *engine.Runner) (*engine.Runner, *bool) {
	changed := new(bool)
	sink := r.Sink
	r.Sink = func(e engine.Event) {
		*changed = *changed || e.Kind == engine.StepDone
		sink(e)
	}
	return r, changed
}

// explain adds the findings themselves to the error that they blocked a run.
func (a *app) explain(err error) error {
	if blocked := asBlocked(err); blocked != nil && a.output != "json" {
		terminal.Findings(a.err, spokenFindings(a.name, blocked.Findings))
	}
	var changed *migration.ChangedPlanError
	if errors.As(err, &changed) {
		for _, s := range changed.Added {
			fmt.Fprintf(a.err, "+ %s\n", s)
		}
		for _, s := range changed.Different {
			fmt.Fprintf(a.err, "~ %s\n", s)
		}
	}
	return err
}
