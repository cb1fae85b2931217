package freeze

import (
	"context"
	"errors"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// Step freezes Services in flight.
type Step struct {
	Client    client.Client
	Migration string
}

var (
	_ engine.Undoer    = (*Step)(nil)
	_ engine.Previewer = (*Step)(nil)
)

func (*Step) ID() string { return "secure/freeze" }

// Role implements engine.Cast: the freeze is replumb's own, and changes with every batch.
func (*Step) Role() engine.StepRole { return engine.RoleOwn }
func (*Step) Title() string         { return "Freeze Services in flight for all other users" }

func (s *Step) State(ctx context.Context) (engine.State, error) {
	return stateOf(ctx, s.Client, Name, s.current, s.enforced)
}

func (s *Step) enforced(ctx context.Context) (bool, error) { return Prove(ctx, s.Client) }

func stateOf(
	ctx context.Context, c client.Client, name string, holds ...func(context.Context) (bool, error),
) (engine.State, error) {
	found, err := present(ctx, c, name)
	var foreign *ForeignError
	switch {
	case errors.As(err, &foreign):
		return engine.Blocked, err
	case err != nil:
		return engine.Unknown, err
	case !found.policy || !found.binding:
		return engine.Pending, nil
	}
	for _, hold := range holds {
		if ok, err := hold(ctx); err != nil {
			return engine.Unknown, err
		} else if !ok {
			return engine.Pending, nil
		}
	}
	return engine.Done, nil
}

func proof(name string, enforced bool, err error) error {
	if err == nil && !enforced {
		return engine.NotYet("the API server does not enforce validatingadmissionpolicy %s yet", name)
	}
	return err
}

func hasSpec(ctx context.Context, c client.Client, name string, want admissionv1.ValidatingAdmissionPolicySpec) (bool, error) {
	have := &admissionv1.ValidatingAdmissionPolicy{}
	err := c.Get(ctx, client.ObjectKey{Name: name}, have)
	return err == nil && equality.Semantic.DeepEqual(have.Spec, want), err
}

func creations(policy *admissionv1.ValidatingAdmissionPolicy, binding *admissionv1.ValidatingAdmissionPolicyBinding) []engine.Change {
	return []engine.Change{
		{Verb: "create", Object: "ValidatingAdmissionPolicy " + policy.Name, Body: policy},
		{Verb: "create", Object: "ValidatingAdmissionPolicyBinding " + binding.Name, Body: binding},
	}
}

func (s *Step) current(ctx context.Context) (bool, error) {
	_, wantBinding := Policy(s.Migration)
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	if err := s.Client.Get(ctx, client.ObjectKey{Name: Name}, policy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if err := s.Client.Get(ctx, client.ObjectKey{Name: Name}, binding); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return equality.Semantic.DeepEqual(policy.Spec, policySpec(s.Migration, lists(policy))) &&
		equality.Semantic.DeepEqual(binding.Spec, wantBinding.Spec), nil
}

func (s *Step) Do(ctx context.Context) error { return Ensure(ctx, s.Client, s.Migration) }

func (s *Step) Verify(ctx context.Context) error {
	enforced, err := s.enforced(ctx)
	return proof(Name, enforced, err)
}

func (s *Step) Undo() engine.Step {
	return &liftStep{client: s.Client, name: Name, prober: prober, id: "tidy/freeze", title: "Lift the freeze of Services"}
}

func (s *Step) Preview() ([]engine.Change, error) {
	return creations(Policy(s.Migration)), nil
}

type liftStep struct {
	client       client.Client
	name, prober string
	id, title    string
	// migration, if set, is the only one whose freeze is lifted.
	migration string
}

var _ engine.Previewer = (*liftStep)(nil)

func (s *liftStep) ID() string          { return s.id }
func (*liftStep) Role() engine.StepRole { return engine.RoleOwn }
func (s *liftStep) Title() string       { return s.title }

func (s *liftStep) State(ctx context.Context) (engine.State, error) {
	found, err := s.present(ctx)
	var foreign *ForeignError
	switch {
	case errors.As(err, &foreign):
		return engine.Blocked, err
	case err != nil:
		return engine.Unknown, err
	case found.policy || found.binding:
		return engine.Pending, nil
	}
	return engine.Done, nil
}

// present looks for the freeze to lift; another migration's is not.
func (s *liftStep) present(ctx context.Context) (parts, error) {
	found, err := present(ctx, s.client, s.name)
	if err != nil || s.migration == "" || !found.policy {
		return found, err
	}
	policy := &admissionv1.ValidatingAdmissionPolicy{}
	if err := s.client.Get(ctx, client.ObjectKey{Name: s.name}, policy); err != nil {
		return parts{}, err
	}
	if of := policy.Labels[v1alpha1.LabelMigration]; of != "" && of != s.migration {
		return parts{}, nil
	}
	return found, nil
}

func (s *liftStep) Do(ctx context.Context) error {
	found, err := s.present(ctx)
	if err != nil || !found.policy && !found.binding {
		return err
	}
	return remove(ctx, s.client, s.name)
}

// Verify does not take a freeze as lifted that the API server still enforces.
func (s *liftStep) Verify(ctx context.Context) error {
	found, err := s.present(ctx)
	if err != nil {
		return err
	}
	if found.policy || found.binding {
		return engine.NotYet("the freeze is not removed")
	}
	enforced, err := prove(ctx, s.client, s.name, s.prober)
	if err == nil && enforced {
		return engine.NotYet("the API server still enforces validatingadmissionpolicy %s", s.name)
	}
	return err
}

func (s *liftStep) Preview() ([]engine.Change, error) {
	return []engine.Change{
		{Verb: "delete", Object: "ValidatingAdmissionPolicyBinding " + s.name},
		{Verb: "delete", Object: "ValidatingAdmissionPolicy " + s.name},
	}, nil
}
