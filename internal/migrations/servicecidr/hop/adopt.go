package hop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/cidr"
)

// Adoption gives a Service created in the target range an address in the old one.
type Adoption struct {
	Client    client.Client
	Migration string
	Progress  *Progress
	// Pool has the free addresses of the old range, in case the chosen one is taken meanwhile.
	Pool *cidr.Allocator
	// MayMove reports whether a Service, as it was just read, may leave its address.
	MayMove func(*corev1.Service) bool
}

// Step reserves the address, and notes it on the Service.
func (a Adoption) Step() engine.Step {
	p := a.Progress
	return &engine.Observed[*corev1.Service]{
		Name: "late/" + p.Key().String(), About: fmt.Sprintf("Reserve %s for %s, which was made at %s", p.Old, p.Key(), p.New),
		Look: a.look, Write: a.write,
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{
				{Verb: "create", Object: "IPAddress " + p.Old.String(), Body: p.Reservation(a.Migration, p.Old).Build()},
				{Verb: "patch", Object: "Service " + p.Key().String(), Body: a.patch("")},
			}, nil
		},
	}
}

// look leaves a Service alone that is gone or may no longer move; the range stays with it.
func (a Adoption) look(ctx context.Context) (engine.State, *corev1.Service, error) {
	p := a.Progress
	svc, err := p.Read(ctx, a.Client)
	if err != nil {
		return engine.Unknown, nil, err
	}
	if svc == nil || !services.IsAt(svc, p.New) || !a.MayMove(svc) {
		return engine.Done, nil, nil
	}
	if _, reserved := p.Reserved[p.Old]; reserved && svc.Annotations[v1alpha1.LabelMigration] == a.Migration {
		return engine.Done, svc, nil
	}
	return engine.Pending, svc, nil
}

func (a Adoption) write(ctx context.Context, svc *corev1.Service) (err error) {
	p := a.Progress
	if p.Original, err = services.OriginalOf(&svc.Spec); err != nil {
		return fmt.Errorf("service %s: %w", p.Key(), err)
	}
	for {
		h := p.Reservation(a.Migration, p.Old)
		if err = h.Create(ctx, a.Client); err == nil {
			p.recordHold(h)
			break
		}
		if !IsTaken(err) {
			return err
		}
		next, full := a.Pool.Lowest()
		if full != nil {
			return fmt.Errorf("service %s: %w", p.Key(), errors.Join(err, full))
		}
		p.Old = next
	}
	patch, err := json.Marshal(a.patch(svc.ResourceVersion))
	if err != nil {
		return fmt.Errorf("service %s: %w", p.Key(), err)
	}
	return a.Client.Patch(ctx, svc, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1alpha1.FieldManager))
}

// patch has what a moved Service says of itself. Pods may carry its address since it was made.
func (a Adoption) patch(version string) map[string]any {
	meta := map[string]any{"annotations": map[string]any{
		v1alpha1.LabelMigration:     a.Migration,
		v1alpha1.AnnotationOldIP:    a.Progress.Old.String(),
		v1alpha1.AnnotationTargetIP: a.Progress.New.String(),
		v1alpha1.AnnotationMovedAt:  a.Progress.Service.CreationTimestamp.UTC().Format(time.RFC3339Nano),
	}}
	if version != "" {
		meta["resourceVersion"] = version
	}
	return map[string]any{"metadata": meta}
}
