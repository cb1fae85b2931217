package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/runsinks"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

func (o *action) run(ctx context.Context, c *command.Connection, j migrations.Job, name string, do func(context.Context, *engine.Runner) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	of := j.About()
	identity := c.KnownIdentity(ctx)
	measured, stopServing, err := o.measure(ctx, identity, migrationOf(c, of.Name))
	if err != nil {
		return err
	}
	defer stopServing()
	heard := runsinks.Gather(ctx, runsinks.Of{
		Cluster: c.Cluster, Migration: of.Migration, Report: o.Kinds.Of(of.Migration).Report(of.Migration), Common: of.Common, Identity: identity,
		Command: "replumb " + name, Version: o.Build.Version, Overrides: o.overrides(), Metrics: measured.Of(of.Name),
		Warn: func(err error) { fmt.Fprintf(o.Err, "warning: %v\n", err) },
		Lost: func(text string) { fmt.Fprintf(o.Err, "lost: %s\n", printable.Line(text)) },
	}, stop)
	r := o.Runner(o.format)
	shown := r.Sink
	r.Sink = func(e engine.Event) {
		shown(command.SpokenEvent(o.Name, e))
		if e.Private != "" && o.format.Name == "json" {
			fmt.Fprintf(o.Err, "%s: %s\n", e.Message, e.Private)
		}
		heard.Event(e)
	}
	heard.Observe(j)
	err = do(ctx, r)
	heard.Close(ctx, err)
	var loss *lossguard.LossError
	var silent *agentset.SilentError
	var unmeasured *lossguard.NotMeasuredError
	switch { // that the run was interrupted is their doing
	case errors.As(err, &loss):
		if ctx.Err() == nil {
			return j.Blame(ctx, loss)
		}
		return loss
	case errors.As(err, &silent) && silent.For > 0:
		return silent
	case errors.As(err, &unmeasured) && unmeasured.For > 0:
		return unmeasured
	}
	if errors.Is(err, engine.ErrPaused) {
		return &fault.Hinted{
			Err: fmt.Errorf("migration %s is %w", of.Name, err), Hint: o.Name + " resume " + of.Name + " carries on",
		}
	}
	return ofJob(j, o.explain(err))
}

func (o *action) overrides() (all []string) {
	if o.acceptDowntime {
		all = append(all, "--accept-downtime")
	}
	if o.withoutAgent {
		all = append(all, "--without-agent")
	}
	return all
}

func watchChanges(r *engine.Runner) (*engine.Runner, *bool) {
	changed := new(bool)
	sink := r.Sink
	r.Sink = func(e engine.Event) {
		*changed = *changed || e.Kind == engine.StepDone
		sink(e)
	}
	return r, changed
}

func (o *action) explain(err error) error {
	if blocked := asBlocked(err); blocked != nil && o.format.Name != "json" {
		terminal.Checklist{}.Write(o.Err, command.SpokenFindings(o.Name, blocked.Findings))
		return &shownError{err: err, of: blocked}
	}
	var changed *migration.ChangedPlanError
	if errors.As(err, &changed) {
		for _, s := range changed.Added {
			fmt.Fprintf(o.Err, "+ %s\n", s)
		}
		for _, s := range changed.Different {
			fmt.Fprintf(o.Err, "~ %s\n", s)
		}
	}
	return err
}

// shownError stands for findings that the command has shown.
type shownError struct {
	err error
	of  *findings.BlockedError
}

func (e *shownError) Error() string { return e.of.Findings.Score().Verdict() }

func (e *shownError) Unwrap() error { return e.err }

func (*shownError) Advice() string {
	return "resolve what blocks, then run the same command again: nothing was changed since it was found"
}

func (o *action) goBackOnLoss(ctx context.Context, c *command.Connection, j migrations.Job, err error) error {
	var loss *lossguard.LossError
	of := j.About()
	if !errors.As(err, &loss) || of.Common.Proof.OnLoss != v1alpha1.OnLossRollback {
		return err
	}
	fmt.Fprintf(o.Err, "%v\nrolling back, as spec.proof.onLoss says\n", loss)
	if back := o.run(ctx, c, j, "rollback", j.Rollback); back != nil {
		return errors.Join(err, fmt.Errorf("then rolling back: %w", back))
	}
	return &fault.Hinted{
		Err:  fmt.Errorf("%s, since %w", of.WentBack, loss),
		Hint: "repair what the probes met with, then " + o.again(of.Name),
	}
}

// again is how to begin with a migration that is back where it was; without a file of the command
// it names where one is.
func (o *action) again(name string) string {
	text := o.Name + " apply " + o.files.Typed() + " begins again"
	if !o.files.Given() {
		text += "; kubectl get migration " + name + " -o yaml prints the file"
	}
	return text
}

func proofLines(w io.Writer, p *v1alpha1.ProofStatus, rows int) {
	if p == nil {
		return
	}
	fmt.Fprintf(w, "probes on %s in the latest run: %s requests, %s failed, %s late, %s not measured; report has all runs\n",
		english.Plural(p.Nodes, "node", ""), humanize.Comma(p.Sent), humanize.Comma(p.Failed),
		humanize.Comma(p.Late), humanize.Comma(p.NotMeasured))
	bounded(w, rows, p.Silent, func(s string) { fmt.Fprintf(w, "not probed: %s\n", s) })
	bounded(w, rows, p.Losses, func(l v1alpha1.Loss) { fmt.Fprintf(w, "lost: %s\n", printable.Line(lossguard.Describe(&l))) })
}
