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
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/network/bridge"
)

// serviceStep makes a Service that agents call. Its address is chosen once: from then on the
// migration moves it as any other.
func (s *Set) serviceStep(id, title string, want func() *corev1.Service) engine.Step {
	name := workload.NameOf(want())
	look := func(ctx context.Context) (engine.State, *corev1.Service, error) {
		have := &corev1.Service{}
		there, err := workload.Get(ctx, s.Cluster, name, client.ObjectKeyFromObject(want()), have)
		if err != nil {
			return engine.Unknown, nil, err
		}
		if !there {
			return engine.Pending, nil, nil
		}
		if err := s.exclusive(ctx, have.Labels[v1alpha1.LabelMigration], name); err != nil {
			return engine.Blocked, nil, err
		}
		if asWanted(have, want()) {
			return engine.Done, have, nil
		}
		return engine.Pending, have, nil
	}
	return &engine.Observed[*corev1.Service]{
		Name: id, About: title, Look: look,
		Write: func(ctx context.Context, have *corev1.Service) error {
			if have == nil {
				return s.create(ctx, name, want)
			}
			return s.correct(ctx, name, have, want())
		},
		Proof: func(ctx context.Context) error {
			state, _, err := look(ctx)
			if err == nil && state != engine.Done {
				return engine.NotYet("%s is not as wanted", name)
			}
			return err
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "create", Object: name, Body: want()}}, nil
		},
	}
}

// asWanted compares whose a Service is, and where its requests go to.
func asWanted(have, want *corev1.Service) bool {
	return sameOwner(have, want) && have.DeletionTimestamp.IsZero() &&
		equality.Semantic.DeepEqual(have.Spec.Selector, want.Spec.Selector) &&
		equality.Semantic.DeepEqual(have.Spec.Ports, want.Spec.Ports)
}

func sameOwner(have, want *corev1.Service) bool {
	return have.Labels[v1alpha1.LabelMigration] == want.Labels[v1alpha1.LabelMigration] &&
		have.Labels[v1alpha1.LabelRole] == want.Labels[v1alpha1.LabelRole]
}

// correct patches a Service of this migration, and deletes that of an earlier one.
func (s *Set) correct(ctx context.Context, name string, have, want *corev1.Service) error {
	if !sameOwner(have, want) {
		err := s.Cluster.Delete(ctx, have, client.Preconditions{UID: &have.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("%s of an earlier migration: %w", name, err)
		}
		return engine.NotYet("%s of an earlier migration is being removed", name)
	}
	was := have.DeepCopy()
	have.Spec.Selector, have.Spec.Ports = want.Spec.Selector, want.Spec.Ports
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := s.Cluster.Patch(ctx, have, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (s *Set) create(ctx context.Context, name string, want func() *corev1.Service) error {
	for {
		svc := want()
		if s.Pool != nil {
			own, err := s.Pool.Highest()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			svc.Spec.ClusterIP = own.String()
		}
		err := s.Cluster.Create(ctx, svc, client.FieldOwner(v1alpha1.FieldManager))
		switch {
		case err == nil:
			return nil
		case apierrors.IsAlreadyExists(err):
			return engine.NotYet("%s was made by another client meanwhile", name)
		case !bridge.IsTaken(err) || s.Pool == nil:
			return fmt.Errorf("%s: %w", name, bridge.NotReadyYet(err))
		}
	}
}
