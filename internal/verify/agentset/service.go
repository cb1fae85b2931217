package agentset

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

// serviceStep makes the Service that agents call. Its address is chosen once: from then on the migration moves it as any other.
type serviceStep struct{ set *Set }

var _ engine.Previewer = (*serviceStep)(nil)

const serviceName = "Service " + v1alpha1.SystemNamespace + "/" + Service

func (*serviceStep) ID() string    { return "agents/service" }
func (*serviceStep) Title() string { return "Make the Service that agents call" }

func (s *serviceStep) get(ctx context.Context) (*corev1.Service, error) { return s.set.getService(ctx) }

func (s *Set) getService(ctx context.Context) (*corev1.Service, error) {
	have := &corev1.Service{}
	err := s.Cluster.Get(ctx, client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: Service}, have)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", serviceName, err)
	}
	return have, nil
}

// State implements engine.Step.
func (s *serviceStep) State(ctx context.Context) (engine.State, error) {
	have, err := s.get(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case have == nil:
		return engine.Pending, nil
	}
	if err := s.set.free(ctx, serviceName, have.Labels); err != nil {
		return engine.Blocked, err
	}
	if s.asWanted(have) {
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *serviceStep) ours(have *corev1.Service) bool {
	return have.Labels[v1alpha1.LabelMigration] == s.set.Migration && have.Labels[v1alpha1.LabelRole] == v1alpha1.RoleProbe
}

// asWanted compares what decides where requests go to.
func (s *serviceStep) asWanted(have *corev1.Service) bool {
	want := s.set.service()
	return s.ours(have) && have.DeletionTimestamp.IsZero() && equality.Semantic.DeepEqual(have.Spec.Selector, want.Spec.Selector) &&
		equality.Semantic.DeepEqual(have.Spec.Ports, want.Spec.Ports)
}

// Do implements engine.Step. What a migration that is over has left has an address, and notes on it, that mean nothing to this one.
func (s *serviceStep) Do(ctx context.Context) error {
	have, err := s.get(ctx)
	switch {
	case err != nil:
		return err
	case have == nil:
		return s.create(ctx)
	case !s.ours(have):
		if err := s.set.Cluster.Delete(ctx, have, client.Preconditions{UID: &have.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("%s of an earlier migration: %w", serviceName, err)
		}
		return engine.NotYet("%s of an earlier migration is being removed", serviceName)
	}
	was, want := have.DeepCopy(), s.set.service()
	have.Spec.Selector, have.Spec.Ports = want.Spec.Selector, want.Spec.Ports
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := s.set.Cluster.Patch(ctx, have, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("%s: %w", serviceName, err)
	}
	return nil
}

func (s *serviceStep) create(ctx context.Context) error {
	for {
		svc := s.set.service()
		if s.set.Pool != nil {
			own, err := s.set.Pool.Highest()
			if err != nil {
				return fmt.Errorf("%s: %w", serviceName, err)
			}
			svc.Spec.ClusterIP = own.String()
		}
		err := s.set.Cluster.Create(ctx, svc, client.FieldOwner(v1alpha1.FieldManager))
		switch {
		case err == nil:
			return nil
		case apierrors.IsAlreadyExists(err):
			return engine.NotYet("%s was made by another client meanwhile", serviceName)
		case !bridge.IsTaken(err) || s.set.Pool == nil:
			return fmt.Errorf("%s: %w", serviceName, bridge.NotReadyYet(err))
		}
	}
}

// Verify implements engine.Step.
func (s *serviceStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("%s is not as wanted", serviceName)
	}
	return err
}

// Preview implements engine.Previewer. The address is chosen when the step is done.
func (s *serviceStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "create", Object: serviceName, Body: s.set.service()}}, nil
}
