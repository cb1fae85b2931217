package servicecidr

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/network/bridge"
)

// NoReturnError says that admission refuses bridges their addresses on the way back.
type NoReturnError struct {
	Err error
}

func (e *NoReturnError) Error() string {
	return "services cannot go back, since a bridge must not answer at both addresses again: " + e.Err.Error()
}

func (e *NoReturnError) Unwrap() error { return e.Err }

// ExitCode: nothing was written.
func (*NoReturnError) ExitCode() int { return fault.ExitBlocked }

func (*NoReturnError) Advice() string {
	return "have admission take changes of Services with the label replumb.dev/role=bridge for the time of the rollback, then run it again"
}

// returnable asks by dry run, in every namespace, whether bridges may take left addresses on again.
func (j *Job) returnable(ctx context.Context) error {
	snap, err := inventory.Load(ctx, j.Deps.Cluster)
	if err != nil {
		return err
	}
	inventory, err := j.positions(ctx, snap)
	if err != nil {
		return err
	}
	asked := map[string]bool{}
	for _, e := range inventory.All() {
		b := &bridge.Bridge{Migration: j.Spec.Name, Service: e.Service, Old: e.Old, New: e.New, Kept: e.Kept(e.Service)}
		if !e.Away() || e.Bridge == nil || asked[e.Service.Namespace] || !b.Grows(e.Bridge) {
			continue
		}
		asked[e.Service.Namespace] = true
		switch err := b.Admitted(ctx, j.Deps.Cluster, e.Bridge); {
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
			return &NoReturnError{Err: err}
		case err != nil:
			return err
		}
	}
	return nil
}
