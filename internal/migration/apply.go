package migration

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/safety/lease"
)

// maxRounds bounds how often a run looks again for what appeared while it ran.
const maxRounds = 8

// Apply runs the plan of apply until nothing is left of it, and returns the last look.
func (j *Job[P]) Apply(ctx context.Context, r *engine.Runner) (last P, err error) {
	if err := j.complete(ctx, r, "apply", v1alpha1.DesiredApplied); err != nil {
		return last, err
	}
	p, err := j.applicable(ctx)
	if err != nil {
		return last, err
	}
	if len(p.Found().Blocking()) > 0 { // before anything is written, the lock included
		if holder, err := lease.Current(ctx, j.Client); err == nil && holder != nil {
			return last, &lease.HeldError{Holder: *holder}
		}
		return last, j.run(ctx, r, p, p.Apply(), v1alpha1.PhaseApplying)
	}
	if j.Expected != nil {
		if err := j.Expected.Check(p.Apply().Outstanding(ctx)); err != nil {
			return last, err
		}
	}
	if j.Guard != nil {
		j.Guard.Found(p.Found())
	}
	err = j.locked(ctx, "apply", false, func(ctx context.Context) error {
		if err := j.still(ctx, Applicable); err != nil {
			return err
		}
		if err := j.setOut(ctx, v1alpha1.PhaseApplying); err != nil {
			return err
		}
		last, err = j.rounds(ctx, r, p)
		return err
	})
	return last, err
}

func (j *Job[P]) rounds(ctx context.Context, r *engine.Runner, p P) (last P, err error) {
	for left := maxRounds; left > 0; left-- {
		certain, partial := p.Apply().Certain()
		plan, stops := j.bounded(certain)
		if partial && p.Follows() && len(plan.Phases) == len(certain.Phases) {
			left, stops = maxRounds, false
		}
		err := j.run(ctx, r, p, plan, v1alpha1.PhaseApplying)
		if err != nil && !j.Kind.AnotherRound(ctx, err) {
			return last, err
		}
		resolved := err != nil
		if p, err = replan(ctx, j.applicable); err != nil {
			return last, err
		}
		switch {
		case resolved:
		case stops:
			return p, client.IgnoreNotFound(j.keeper().Status(ctx, func(st *v1alpha1.MigrationStatus) {
				SetReady(st, metav1.ConditionFalse, v1alpha1.ReasonInProgress, "stopped after phase "+j.Until+", as asked")
			}))
		case !partial && p.Left() == "":
			return p, j.arrive(ctx, p)
		}
	}
	return last, fmt.Errorf("apply did not converge after %d rounds: %s", maxRounds, p.Left())
}

// replan looks at the cluster in the middle of a command, as patiently as a step.
func replan[P Plans](ctx context.Context, look func(context.Context) (P, error)) (p P, err error) {
	err = engine.Drive(ctx, &engine.Wait{
		Name: "look", About: "Check the cluster again", Again: true,
		For: func(ctx context.Context) (err error) {
			p, err = look(ctx)
			return err
		},
	})
	return p, err
}

func (j *Job[P]) arrive(ctx context.Context, p P) error {
	if err := p.Arrive(ctx); err != nil {
		return err
	}
	if err := j.record(ctx, p, v1alpha1.PhaseMoved); err != nil {
		return err
	}
	return p.Amiss()
}

// bounded is the plan as far as it was asked for, or the whole one if it ends before.
func (j *Job[P]) bounded(plan *engine.Plan) (bounded *engine.Plan, stops bool) {
	if j.Until == "" {
		return plan, false
	}
	bounded, err := plan.Until(j.Until)
	if err != nil {
		return plan, false
	}
	return bounded, true
}

// Restrict bounds apply to the phases up to one, empty for all, and to a plan, nil for any.
func (j *Job[P]) Restrict(until string, expected *Expectation) {
	j.Until, j.Expected = until, expected
}

// Inspect looks at the cluster and makes the plan of apply. Nothing is written.
func (j *Job[P]) Inspect(ctx context.Context) (Inspection, error) {
	p, err := j.Look(ctx)
	if err != nil {
		return Inspection{}, err
	}
	return Inspection{
		Findings: p.Found(), Whole: p.Apply(), Outstanding: p.Apply().Outstanding(ctx), Details: j.Kind.Describe(p),
	}, nil
}

// RunApply is Apply with a result for people.
func (j *Job[P]) RunApply(ctx context.Context, r *engine.Runner) (ApplyResult, error) {
	p, err := j.Apply(ctx, r)
	if err != nil {
		return ApplyResult{}, err
	}
	return j.Kind.Applied(p), nil
}

// NextHint is what to do after apply.
func NextHint(name string) string {
	return fmt.Sprintf("when all is well, replumb finish %s; to go back, replumb rollback %s", name, name)
}
