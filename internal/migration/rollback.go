package migration

import (
	"context"
	"errors"
	"fmt"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// Rollback runs the plan that goes back.
func (j *Job[P]) Rollback(ctx context.Context, r *engine.Runner) error {
	// The way back itself may yet take back an incomplete step.
	if err := j.complete(ctx, r, "rollback", v1alpha1.DesiredRolledBack); err != nil && !errors.As(err, new(*engine.StepError)) {
		return err
	}
	have, err := j.adopt(ctx)
	if err != nil {
		return err
	}
	if have != nil {
		if err := j.reversible(have); err != nil {
			return err
		}
	}
	if err := j.keeper().MayRun(ctx); err != nil {
		return err
	}
	return j.locked(ctx, "rollback", true, func(ctx context.Context) error {
		if err := j.still(ctx, j.reversible); err != nil {
			return err
		}
		if err := j.desire(ctx, v1alpha1.DesiredRolledBack); err != nil {
			return err
		}
		return j.back(ctx, r)
	})
}

func (j *Job[P]) reversible(m *v1alpha1.Migration) error { return Reversible(m, j.Kind.About().Return) }

// still looks again under the lock: another run may have gone on since the command looked first.
func (j *Job[P]) still(ctx context.Context, state func(*v1alpha1.Migration) error) error {
	have, err := Get(ctx, j.Client, j.Name)
	if err != nil || have == nil {
		return err
	}
	return state(have)
}

func (j *Job[P]) back(ctx context.Context, r *engine.Runner) error {
	for range maxRounds {
		p, err := replan(ctx, j.Look)
		if err != nil {
			return err
		}
		plan, partial := p.Rollback().Certain()
		if err := j.run(ctx, r, p, plan, v1alpha1.PhaseRollingBack); err != nil {
			return err
		}
		if !partial {
			return j.record(ctx, p, v1alpha1.PhaseRolledBack)
		}
	}
	return fmt.Errorf("rollback did not converge after %d rounds; run it again", maxRounds)
}
