package migration

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

func (j *Job[P]) desire(ctx context.Context, d v1alpha1.DesiredState) error {
	have, err := Get(ctx, j.Client, j.Name)
	if err != nil {
		return err
	}
	if err := j.turn(ctx, have, d); err != nil {
		return err
	}
	if !j.Directed {
		return j.keeper().Desire(ctx, d)
	}
	if d == v1alpha1.DesiredFinished {
		return j.setOut(ctx, v1alpha1.PhaseFinishing)
	}
	return j.setOut(ctx, v1alpha1.PhaseRollingBack)
}

// setOut records the direction of a directed run before it changes anything.
func (j *Job[P]) setOut(ctx context.Context, phase v1alpha1.Phase) error {
	if !j.Directed {
		return nil
	}
	return client.IgnoreNotFound(j.keeper().Status(ctx, func(st *v1alpha1.MigrationStatus) { st.Phase = phase }))
}
