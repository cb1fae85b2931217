package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/runsinks"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// run is one in hand. Its result may be read once its channel is closed.
type run struct {
	name string
	act  Act
	// of is what was asked for when it began, lost the loss that it rolls back after.
	of   *v1alpha1.Migration
	lost string
	stop context.CancelCauseFunc

	ended chan struct{}
	err   error
	plan  Planned
}

func (o *Operator) begin(ctx context.Context, m *v1alpha1.Migration, act Act, lost string) {
	ctx, stop := context.WithCancelCause(ctx)
	r := &run{name: m.Name, act: act, of: m.DeepCopy(), lost: lost, stop: stop, ended: make(chan struct{})}
	o.current = r
	o.Log("migration %s: %s begins", m.Name, strings.ToLower(string(act)))
	go func() {
		defer close(r.ended)
		defer stop(nil)
		r.err = o.execute(ctx, r)
	}()
}

// supersede ends a run that is outdated by another decision or other settings.
func (r *run) supersede(m *v1alpha1.Migration, d Decision) {
	appliesFirst := r.act == Apply && d.Act == Finish
	if d.Act != r.act && !appliesFirst || changed(r.of, m) {
		r.stop(engine.ErrSuperseded)
	}
}

// changed reports whether a Migration has other settings than when the run began.
func changed(then, now *v1alpha1.Migration) bool {
	given, have := then.DeepCopy(), now.DeepCopy()
	for _, m := range []*v1alpha1.Migration{given, have} {
		m.Spec.Desired, m.Spec.Paused = v1alpha1.DesiredApplied, false
		spec.Default(m)
	}
	_, changes, err := spec.Merge(have, given)
	return err != nil || len(changes) > 0
}

func (o *Operator) collect(ctx context.Context) {
	r := o.current
	if r == nil {
		return
	}
	select {
	case <-r.ended:
	default:
		return
	}
	o.current = nil
	switch {
	case r.err == nil:
		o.Log("migration %s: %s is done", r.name, strings.ToLower(string(r.act)))
		delete(o.failures, r.name)
		o.succeeded(ctx, r)
	case Ended(r.err):
		o.Log("migration %s: %s ended: %v", r.name, strings.ToLower(string(r.act)), r.err)
	default:
		o.Log("migration %s: %s failed: %v", r.name, strings.ToLower(string(r.act)), r.err)
		failures := 1
		if last := o.failures[r.name]; last != nil {
			failures += last.Failures
		}
		o.failures[r.name] = &Outcome{At: time.Now(), Failures: failures, Verdict: judge(r.err, failures)}
	}
}

func (o *Operator) succeeded(ctx context.Context, r *run) {
	var err error
	switch {
	case r.act == Plan:
		o.plans[r.name] = plan{Planned: r.plan, of: fingerprint(r.of), at: time.Now()}
		err = migration.UpdateStatus(ctx, o.cluster(), r.name, func(st *v1alpha1.MigrationStatus) { st.PlanHash = r.plan.Hash })
	case r.act == Rollback && r.lost != "":
		err = migration.UpdateStatus(ctx, o.cluster(), r.name, func(st *v1alpha1.MigrationStatus) {
			st.LastError = r.lost
			migration.Stalled.Say(st, stallReason(r.of), "everything was rolled back after a loss: "+r.lost+
				"\nhint: repair what the probe met with, then: "+annotate(r.of, RepairWord(r.of)))
		})
	}
	if err != nil {
		o.Log("error: %v", err)
	}
}

func (o *Operator) execute(ctx context.Context, r *run) error {
	if err := migration.Bound(ctx, o.cluster(), r.of); err != nil {
		return err
	}
	job, err := o.Kinds.NewJob(o.Tools, r.of)
	if err != nil {
		return err
	}
	if r.act == Plan {
		r.plan, err = look(ctx, job)
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	heard := runsinks.Gather(ctx, runsinks.Of{
		Cluster: o.cluster(), Migration: r.of, Report: o.Kinds.Of(r.of).Report(r.of), Common: job.About().Common, Identity: o.Identity,
		Command: "replumb operator: " + strings.ToLower(string(r.act)), Version: o.Version, Metrics: o.Metrics.Of(r.name),
		Warn: func(err error) { o.Log("warning: %v", err) },
		Lost: func(text string) { o.Log("migration %s: lost: %s", r.name, printable.Line(text)) },
	}, stop)
	heard.Observe(job)
	runner := &engine.Runner{Sink: func(e engine.Event) {
		o.tell(r, e)
		heard.Event(e)
	}}
	err = o.drive(ctx, r, job, runner)
	heard.Close(ctx, err)
	return o.afterLoss(context.WithoutCancel(ctx), r, job, err)
}

func look(ctx context.Context, job migrations.Job) (Planned, error) {
	found, err := inspect(ctx, job)
	if err != nil {
		return Planned{}, err
	}
	if blocking := found.Findings.Blocking(); len(blocking) > 0 {
		return Planned{}, &findings.BlockedError{Findings: blocking}
	}
	hash, err := found.Whole.Hash()
	return Planned{Hash: hash, Steps: len(found.Outstanding.Steps())}, err
}

func inspect(ctx context.Context, job migrations.Job) (migration.Inspection, error) {
	if err := job.Open(ctx); err != nil {
		return migration.Inspection{}, err
	}
	return job.Inspect(ctx)
}

func (o *Operator) drive(ctx context.Context, r *run, job migrations.Job, runner *engine.Runner) error {
	switch r.act {
	case Apply:
		if err := o.holdToPlan(ctx, r, job); err != nil {
			return err
		}
		_, err := job.RunApply(ctx, runner)
		return err
	case Rollback:
		return job.Rollback(ctx, runner)
	case Finish:
		return job.Finish(ctx, runner)
	}
	return fmt.Errorf("%s is no command", r.act)
}

// holdToPlan holds the beginning of a migration to the approved plan, if there is one.
func (o *Operator) holdToPlan(ctx context.Context, r *run, job migrations.Job) error {
	approved, err := migration.Approved(r.of)
	if err != nil || begun(r.of) || len(approved.Plans) == 0 {
		return err
	}
	found, err := inspect(ctx, job)
	if err != nil {
		return err
	}
	hash, err := found.Whole.Hash()
	if err != nil {
		return err
	}
	for _, one := range approved.Plans {
		if one == hash {
			expected, err := migration.Expect(found.Whole)
			job.Restrict("", expected)
			return err
		}
	}
	was := strings.Join(approved.Plans, ", ")
	return &migration.ChangedPlanError{Different: []string{"plan " + hash + ", and " + was + " was approved"}}
}

func (o *Operator) afterLoss(ctx context.Context, r *run, job migrations.Job, err error) error {
	var loss *lossguard.LossError
	if !errors.As(err, &loss) {
		return err
	}
	if job.About().Common.Proof.OnLoss == v1alpha1.OnLossRollback && r.act == Apply {
		keeper := &migration.Keeper{Client: o.cluster(), Name: r.name}
		err = errors.Join(err, keeper.Desire(ctx, v1alpha1.DesiredRolledBack))
	}
	return err
}

func (o *Operator) tell(r *run, e engine.Event) {
	switch e.Kind {
	case engine.PhaseStarted:
		if e.Total > 0 {
			o.Log("migration %s: phase %s: %s", r.name, e.Phase, e.Message)
		}
	case engine.StepFailed:
		o.Log("migration %s: %s: %s", r.name, e.Message, printable.Line(e.Error))
	case engine.StepWaiting:
		if e.Guide != "" {
			o.Log("migration %s waits for a person: %s: %s", r.name, e.Message, printable.Line(e.Error))
		}
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return printable.Line(line)
}
