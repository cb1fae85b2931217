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
	"github.com/replumb/replumb/internal/migration/incluster"
	"github.com/replumb/replumb/internal/network/bridge"
)

// serviceStep makes a Service that agents call. Its address is chosen once: from then on the migration moves it as any other.
type serviceStep struct {
	set *Set
	id  string
	// about says what it is for.
	about string
	want  func() *corev1.Service
}

// probeService is the Service with an endpoint on every node, singleService the one with a single endpoint.
func (s *Set) probeService() *serviceStep {
	return &serviceStep{set: s, id: "agents/service", about: "Create the Service that agents call", want: s.service}
}

func (s *Set) singleService() *serviceStep {
	return &serviceStep{
		set: s, id: "agents/service/" + Single, about: "Create the Service that agents call from nodes without an endpoint", want: s.single,
	}
}

var _ engine.Previewer = (*serviceStep)(nil)

func (s *serviceStep) ID() string { return s.id }

func (s *serviceStep) Title() string { return s.about }

func (s *serviceStep) name() string { return incluster.NameOf(s.want()) }

func (s *serviceStep) get(ctx context.Context) (*corev1.Service, error) {
	have := &corev1.Service{}
	err := s.set.Cluster.Get(ctx, client.ObjectKeyFromObject(s.want()), have)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name(), err)
	}
	return have, nil
}

func (s *serviceStep) State(ctx context.Context) (engine.State, error) {
	have, err := s.get(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case have == nil:
		return engine.Pending, nil
	}
	if err := s.set.free(ctx, s.name(), have.Labels); err != nil {
		return engine.Blocked, err
	}
	if s.asWanted(have) {
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *serviceStep) ours(have *corev1.Service) bool {
	return have.Labels[v1alpha1.LabelMigration] == s.set.Migration && have.Labels[v1alpha1.LabelRole] == s.want().Labels[v1alpha1.LabelRole]
}

// asWanted compares what decides where requests go to.
func (s *serviceStep) asWanted(have *corev1.Service) bool {
	want := s.want()
	return s.ours(have) && have.DeletionTimestamp.IsZero() && equality.Semantic.DeepEqual(have.Spec.Selector, want.Spec.Selector) &&
		equality.Semantic.DeepEqual(have.Spec.Ports, want.Spec.Ports)
}

func (s *serviceStep) Do(ctx context.Context) error {
	have, err := s.get(ctx)
	switch {
	case err != nil:
		return err
	case have == nil:
		return s.create(ctx)
	case !s.ours(have):
		if err := s.set.Cluster.Delete(ctx, have, client.Preconditions{UID: &have.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("%s of an earlier migration: %w", s.name(), err)
		}
		return engine.NotYet("%s of an earlier migration is being removed", s.name())
	}
	was, want := have.DeepCopy(), s.want()
	have.Spec.Selector, have.Spec.Ports = want.Spec.Selector, want.Spec.Ports
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := s.set.Cluster.Patch(ctx, have, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("%s: %w", s.name(), err)
	}
	return nil
}

func (s *serviceStep) create(ctx context.Context) error {
	for {
		svc := s.want()
		if s.set.Pool != nil {
			own, err := s.set.Pool.Highest()
			if err != nil {
				return fmt.Errorf("%s: %w", s.name(), err)
			}
			svc.Spec.ClusterIP = own.String()
		}
		err := s.set.Cluster.Create(ctx, svc, client.FieldOwner(v1alpha1.FieldManager))
		switch {
		case err == nil:
			return nil
		case apierrors.IsAlreadyExists(err):
			return engine.NotYet("%s was made by another client meanwhile", s.name())
		case !bridge.IsTaken(err) || s.set.Pool == nil:
			return fmt.Errorf("%s: %w", s.name(), bridge.NotReadyYet(err))
		}
	}
}

func (s *serviceStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("%s is not as wanted", s.name())
	}
	return err
}

func (s *serviceStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "create", Object: s.name(), Body: s.want()}}, nil
}
