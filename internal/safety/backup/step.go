package backup

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// Step stores objects before they are changed.
type Step struct {
	client    client.Client
	migration *v1alpha1.Migration
	id, title string
	objects   []client.Object
}

var _ engine.Previewer = (*Step)(nil)

// NewStep stores objects as they were read. The Migration must exist when it runs.
func NewStep(c client.Client, m *v1alpha1.Migration, id, title string, objects []client.Object) *Step {
	return &Step{client: c, migration: m, id: id, title: title, objects: objects}
}

func (s *Step) ID() string          { return s.id }
func (*Step) Role() engine.StepRole { return engine.RoleOwn }
func (s *Step) Title() string       { return s.title }

// A damaged backup blocks, since what it held may have changed by now.
func (s *Step) State(ctx context.Context) (engine.State, error) {
	first, err := s.lacking(ctx)
	var corrupt *CorruptError
	switch {
	case errors.As(err, &corrupt):
		return engine.Blocked, err
	case err != nil:
		return engine.Unknown, err
	case first != nil:
		return engine.Pending, nil
	}
	return engine.Done, nil
}

func (s *Step) Do(ctx context.Context) error { return Store(ctx, s.client, s.migration, s.objects) }

func (s *Step) Verify(ctx context.Context) error {
	first, err := s.lacking(ctx)
	if err == nil && first != nil {
		return engine.NotYet("%s is not backed up", first)
	}
	return err
}

func (s *Step) lacking(ctx context.Context) (*Key, error) {
	if len(s.objects) == 0 {
		return nil, nil
	}
	have, err := Stored(ctx, s.client, s.migration.Name)
	if err != nil {
		return nil, err
	}
	for _, o := range s.objects {
		key, err := KeyOf(s.client, o)
		if err != nil {
			return nil, err
		}
		if !have.Has(key) {
			return &key, nil
		}
	}
	return nil, nil
}

// Preview lists the objects. Chunks depend on content, and the plan must not change with every
// status.
func (s *Step) Preview() ([]engine.Change, error) {
	names := map[string][]string{}
	for _, o := range s.objects {
		key, err := KeyOf(s.client, o)
		if err != nil {
			return nil, err
		}
		kind := "ConfigMap"
		if key.Group == corev1.GroupName && key.Kind == "Secret" {
			kind = "Secret"
		}
		names[kind] = append(names[kind], key.String())
	}
	var changes []engine.Change
	for _, kind := range []string{"ConfigMap", "Secret"} {
		if len(names[kind]) == 0 {
			continue
		}
		slices.Sort(names[kind])
		changes = append(changes, engine.Change{
			Verb: "create", Object: kind + " " + v1alpha1.SystemNamespace + "/" + namePrefix(s.migration.Name) + "*",
			Body: map[string][]string{"objects": names[kind]},
		})
	}
	if len(changes) > 0 {
		changes = append(changes, engine.Change{
			Verb: "patch", Object: "Migration " + s.migration.Name,
			Body: map[string]any{"status": map[string]string{"backups": "the digests of what is stored"}},
		})
	}
	return changes, nil
}

// ForgetStep removes the backups of a migration that is over.
type ForgetStep struct {
	Client    client.Client
	Migration string
}

func (*ForgetStep) ID() string            { return "tidy/backups" }
func (*ForgetStep) Title() string         { return "Remove the backups" }
func (*ForgetStep) Role() engine.StepRole { return engine.RoleOwn }

func (s *ForgetStep) Preview() ([]engine.Change, error) {
	name := v1alpha1.SystemNamespace + "/" + namePrefix(s.Migration) + "*"
	return []engine.Change{{Verb: "delete", Object: "ConfigMap " + name}, {Verb: "delete", Object: "Secret " + name}}, nil
}

func (s *ForgetStep) State(ctx context.Context) (engine.State, error) {
	left, err := exist(ctx, s.Client, s.Migration)
	switch {
	case err != nil:
		return engine.Unknown, err
	case left:
		return engine.Pending, nil
	}
	return engine.Done, nil
}

func (s *ForgetStep) Do(ctx context.Context) error {
	return Remove(ctx, s.Client, s.Migration)
}

func (s *ForgetStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("backups of migration %s are still there", s.Migration)
	}
	return err
}
