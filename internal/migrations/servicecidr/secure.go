package servicecidr

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/safety/freeze"
)

// markStep tells the freeze which Services are in flight, beside those that say so themselves.
type markStep struct {
	tools     Tools
	migration string
	id        string
	keys      []types.NamespacedName
}

func (s *markStep) ID() string { return "freeze/" + s.id }
func (s *markStep) Title() string {
	if len(s.keys) == 0 {
		return "Lift the freeze of Services that have not been bridged"
	}
	return "Freeze " + s.id
}

// State implements engine.Step. Writing the list again is as cheap as comparing it.
func (s *markStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (s *markStep) Do(ctx context.Context) error {
	return freeze.Mark(ctx, s.tools.Cluster, s.migration, s.keys)
}
func (s *markStep) Verify(context.Context) error { return nil }

// cleanStep looks whether anything of the migration is left on the cluster, before it is called over.
type cleanStep struct {
	tools     Tools
	migration string
}

func (*cleanStep) ID() string    { return "clean" }
func (*cleanStep) Title() string { return "See that nothing of the migration is left" }

func (s *cleanStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }
func (*cleanStep) Do(context.Context) error                          { return nil }

func (s *cleanStep) Verify(ctx context.Context) error {
	var left []string
	services := &corev1.ServiceList{}
	if err := s.tools.Cluster.List(ctx, services); err != nil {
		return fmt.Errorf("listing services: %w", err)
	}
	for i := range services.Items {
		svc := &services.Items[i]
		name := svc.Namespace + "/" + svc.Name
		switch {
		case svc.Labels[v1alpha1.LabelMigration] == s.migration:
			left = append(left, svc.Labels[v1alpha1.LabelRole]+" "+name)
		case svc.Annotations[v1alpha1.LabelMigration] == s.migration:
			left = append(left, "the annotations of service "+name)
		}
	}
	held := &networkingv1.IPAddressList{}
	if err := s.tools.Cluster.List(ctx, held, client.MatchingLabels{v1alpha1.LabelMigration: s.migration}); err != nil {
		return fmt.Errorf("listing ipaddresses: %w", err)
	}
	for i := range held.Items {
		left = append(left, "held address "+held.Items[i].Name)
	}
	frozen, err := s.frozen(ctx)
	if err != nil {
		return err
	}
	if left = append(left, frozen...); len(left) > 0 {
		return engine.NotYet("still there: %s", listing(left))
	}
	return nil
}

func (s *cleanStep) frozen(ctx context.Context) ([]string, error) {
	policy := &admissionv1.ValidatingAdmissionPolicy{}
	err := s.tools.Cluster.Get(ctx, client.ObjectKey{Name: freeze.Name}, policy)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("validatingadmissionpolicy %s: %w", freeze.Name, err)
	}
	return []string{"validatingadmissionpolicy " + policy.Name}, nil
}
