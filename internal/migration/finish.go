package migration

import (
	"context"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// finishable makes the plans of finish, or says why it is too early.
func (j *Job[P]) finishable(ctx context.Context) (plans P, err error) {
	have, err := j.adopt(ctx)
	if err != nil {
		return plans, err
	}
	if have == nil {
		return plans, &StateError{Name: j.Name, Problem: "does not exist", Hint: "replumb status lists the migrations of the cluster"}
	}
	if err := finishable(have); err != nil {
		return plans, err
	}
	if err := j.keeper().MayRun(ctx); err != nil {
		return plans, err
	}
	p, err := j.Kind.Examine(ctx)
	if err != nil {
		return plans, err
	}
	if early := p.Early(); early != "" && !have.Status.PointOfNoReturnPassed {
		return plans, &StateError{Name: j.Name, Problem: "cannot be finished: " + early, Hint: "replumb resume " + j.Name + " first, which carries apply on"}
	}
	return p, nil
}

// Finish runs the plan from which there is no way back.
func (j *Job[P]) Finish(ctx context.Context, r *engine.Runner) error {
	have, err := Get(ctx, j.Client, j.Name)
	if err != nil || have != nil && have.Status.Phase == v1alpha1.PhaseFinished {
		return err
	}
	if err := j.complete(ctx, r, "finish", v1alpha1.DesiredFinished); err != nil {
		return err
	}
	if _, err := j.finishable(ctx); err != nil {
		return err
	}
	return j.locked(ctx, "finish", false, func(ctx context.Context) error {
		if err := j.still(ctx, finishable); err != nil {
			return err
		}
		if err := j.desire(ctx, v1alpha1.DesiredFinished); err != nil {
			return err
		}
		p, err := j.Look(ctx) // what was found before the lock was taken may have changed
		if err != nil {
			return err
		}
		if err := j.run(ctx, r, p, p.Finish(), v1alpha1.PhaseFinishing); err != nil {
			return err
		}
		return j.record(ctx, p, v1alpha1.PhaseFinished)
	})
}

// FinishPreview says what finish would make final, or why it is too early.
func (j *Job[P]) FinishPreview(ctx context.Context) (FinishPreview, error) {
	p, err := j.finishable(ctx)
	if err != nil {
		return FinishPreview{}, err
	}
	return j.Kind.PreviewFinish(ctx, p)
}
