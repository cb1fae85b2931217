package migration

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// finalStep records the point of no return, on a Migration that still is to be finished and with a
// lock confirmed since. A directed run wants the approval by annotation as well.
func finalStep(c client.Client, name string, directed bool) engine.Step {
	passed := func(ctx context.Context) error {
		m, err := Get(ctx, c, name)
		switch {
		case err != nil:
			return err
		case m == nil:
			return fmt.Errorf("migration %s does not exist", name)
		case !m.Status.PointOfNoReturnPassed:
			return engine.NotYet("status.pointOfNoReturnPassed of migration %s is not set yet", name)
		}
		return nil
	}
	return &engine.Write{
		Name: "final", About: "Pass the point of no return", As: engine.RoleFinal, Holds: passed,
		Write:   func(ctx context.Context) error { return passFinal(ctx, c, name, directed) },
		Changes: StatusChange(name, map[string]any{"pointOfNoReturnPassed": true}),
	}
}

// passFinal fails with a conflict, after which the step looks again, if the Migration was written
// since.
func passFinal(ctx context.Context, c client.Client, name string, directed bool) error {
	m := &v1alpha1.Migration{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, m); err != nil {
		return fmt.Errorf("migration %s: %w", name, err)
	}
	if err := finishable(m); err != nil {
		return err
	}
	if d := m.Spec.Desired; d != v1alpha1.DesiredFinished {
		return &StateError{
			Name:    name,
			Problem: fmt.Sprintf("is not to be finished any more: spec.desired is %s by now", d),
			Hint:    "replumb status " + name,
		}
	}
	if a, err := Approved(m); directed && (err != nil || !a.Finish) {
		return &StateError{
			Name: name, Problem: "is not approved to be finished",
			Hint: fmt.Sprintf("kubectl annotate migrations.replumb.dev %s --overwrite %s=%s", name, v1alpha1.AnnotationApprove, FinishWord(m)),
		}
	}
	if err := engine.MayWrite(ctx, true); err != nil {
		return err
	}
	m.Status.PointOfNoReturnPassed = true
	observed(m)
	if err := c.Status().Update(ctx, m, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("migration %s: %w", name, err)
	}
	return nil
}
