package migration

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/workload"
)

// Exclusive fails as long as a shared object belongs to another migration that goes on; without is
// how to do without it. A member of the same set that has moved lends its objects.
func Exclusive(c client.Client, name, without string) workload.Exclusive {
	return func(ctx context.Context, owner, object string) error {
		if owner == name || owner == "" {
			return nil
		}
		m, err := Get(ctx, c, owner)
		if err != nil || m == nil || m.Status.Phase == v1alpha1.PhaseFinished ||
			m.Status.Phase == v1alpha1.PhaseRolledBack || Beside(m, name) {
			return err
		}
		return &StateError{
			Name: owner, Problem: fmt.Sprintf("is under way, and %s is its own", object),
			Hint: fmt.Sprintf("replumb finish %s, or rollback, first; or %s", owner, without),
		}
	}
}
