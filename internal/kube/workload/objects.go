// Package workload puts programs of replumb into a cluster, says why one of their pods does not
// run, and takes them away. It knows no migration: its callers say whose an object is.
package workload

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// Exclusive fails as long as an object of an owner, by its label of a migration, must not be taken.
type Exclusive func(ctx context.Context, owner, object string) error

// Apply makes objects, or makes existing ones as they should be, by server-side apply. The API
// server is asked by a dry run whether they are: it knows the defaults, and what webhooks add.
type Apply struct {
	Cluster *cluster.Cluster
	// Name is the ID of the step, About its title.
	Name, About string
	// Build makes the objects, given the addresses of the API servers.
	Build func(servers []string) ([]client.Object, error)
	// Exclusive, if set, is asked about every object that exists.
	Exclusive Exclusive
	// Effect, if set, returns nil once the objects have it, and NotYet before.
	Effect func(context.Context) error
}

// Pair is an object as it should be and as it is; nil if it does not exist.
type Pair struct{ Want, Have *unstructured.Unstructured }

// Step is the step that makes the objects.
func (a *Apply) Step() *engine.Observed[[]Pair] {
	return &engine.Observed[[]Pair]{
		Name: a.Name, About: a.About, Proof: a.prove,
		Look: func(ctx context.Context) (engine.State, []Pair, error) {
			state, seen, err := a.look(ctx)
			if err == nil && state == engine.Done && a.Effect != nil {
				state, err = engine.StateOf(a.Effect(ctx))
			}
			return state, seen, err
		},
		Write: func(ctx context.Context, seen []Pair) error {
			for _, p := range seen {
				if err := Write(ctx, a.Cluster, p.Want); err != nil {
					return err
				}
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			all, err := a.objects([]string{"…"})
			return Created(all), err
		},
	}
}

func (a *Apply) look(ctx context.Context) (engine.State, []Pair, error) {
	seen, err := a.Pairs(ctx)
	if err != nil {
		return engine.Unknown, nil, err
	}
	for _, p := range seen {
		if p.Have == nil {
			return engine.Pending, seen, nil
		}
		if a.Exclusive != nil {
			owner := p.Have.GetLabels()[v1alpha1.LabelMigration]
			if err := a.Exclusive(ctx, owner, NameOf(p.Want)); err != nil {
				return engine.Blocked, nil, err
			}
		}
		if p.Have.GetDeletionTimestamp() != nil {
			return engine.Unknown, nil, engine.NotYet("%s is being removed", NameOf(p.Want))
		}
		same, err := Same(ctx, a.Cluster, p)
		if err != nil {
			return engine.Unknown, nil, err
		}
		if !same {
			return engine.Pending, seen, nil
		}
	}
	return engine.Done, seen, nil
}

func (a *Apply) prove(ctx context.Context) error {
	state, _, err := a.look(ctx)
	switch {
	case err != nil:
		return err
	case state != engine.Done:
		return engine.NotYet("not all is as wanted")
	case a.Effect != nil:
		return a.Effect(ctx)
	}
	return nil
}

// Pairs finds what exists of the objects. Programs that know all API servers keep the list that
// they have: one that is away for a moment is no reason to restart them.
func (a *Apply) Pairs(ctx context.Context) ([]Pair, error) {
	now, err := APIServers(ctx, a.Cluster)
	if err != nil {
		return nil, err
	}
	wanted, err := a.objects(now)
	if err != nil {
		return nil, err
	}
	var all []Pair
	for i, want := range wanted {
		have := &unstructured.Unstructured{}
		have.SetGroupVersionKind(want.GroupVersionKind())
		there, err := Get(ctx, a.Cluster, NameOf(want), client.ObjectKeyFromObject(want), have)
		if err != nil {
			return nil, err
		}
		if !there {
			all = append(all, Pair{Want: want})
			continue
		}
		kept, err := a.objects(servers(now, have))
		if err != nil {
			return nil, err
		}
		all = append(all, Pair{kept[i], have})
	}
	return all, nil
}

func (a *Apply) objects(servers []string) ([]*unstructured.Unstructured, error) {
	typed, err := a.Build(servers)
	if err != nil {
		return nil, err
	}
	return Written(typed...)
}

// Written are objects as they are written: as maps, since empty fields of types would be claimed,
// and without fields that only the API server sets.
func Written(typed ...client.Object) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, o := range typed {
		body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.GetName(), err)
		}
		u := &unstructured.Unstructured{Object: body}
		unstructured.RemoveNestedField(u.Object, "status")
		unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
		unstructured.RemoveNestedField(u.Object, "spec", "template", "metadata", "creationTimestamp")
		all = append(all, u)
	}
	return all, nil
}

// Get reads an object, named so in errors. It returns false if there is none.
func Get(
	ctx context.Context, c client.Reader, name string, key client.ObjectKey, o client.Object,
) (bool, error) {
	err := c.Get(ctx, key, o)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	return !apierrors.IsNotFound(err), nil
}

// Write applies an object.
func Write(ctx context.Context, c client.Client, want *unstructured.Unstructured) error {
	return apply(ctx, c, want.DeepCopy())
}

// Try asks by a dry run whether an object may be written.
func Try(ctx context.Context, c client.Client, want *unstructured.Unstructured) error {
	return apply(ctx, c, want.DeepCopy(), client.DryRunAll)
}

// Same reports whether an object that exists is as it should be.
func Same(ctx context.Context, c client.Client, p Pair) (bool, error) {
	applied := p.Want.DeepCopy()
	if err := apply(ctx, c, applied, client.DryRunAll); err != nil {
		return false, err
	}
	return equality.Semantic.DeepEqual(content(applied), content(p.Have)), nil
}

// apply makes o what exists then, or would.
func apply(
	ctx context.Context, c client.Client, o *unstructured.Unstructured, opts ...client.ApplyOption,
) error {
	name := NameOf(o)
	opts = append(opts, client.ForceOwnership, client.FieldOwner(v1alpha1.FieldManager))
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), opts...); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// content is what people and programs write in an object.
func content(o *unstructured.Unstructured) map[string]any {
	c := maps.Clone(o.Object)
	delete(c, "metadata")
	delete(c, "status")
	c["labels"], c["annotations"] = o.GetLabels(), o.GetAnnotations()
	return c
}

// Created are the changes that make objects.
func Created(all []*unstructured.Unstructured) []engine.Change {
	var changes []engine.Change
	for _, o := range all {
		changes = append(changes, engine.Change{Verb: "create", Object: NameOf(o), Body: o.Object})
	}
	return changes
}

// Deleted are the changes that delete objects.
func Deleted[T client.Object](all []T) []engine.Change {
	var changes []engine.Change
	for _, o := range all {
		changes = append(changes, engine.Change{Verb: "delete", Object: NameOf(o)})
	}
	return changes
}

// Left are those of the objects that exist, as metadata alone, in their order.
func Left[T client.Object](
	ctx context.Context, c client.Reader, all []T,
) ([]client.Object, error) {
	var left []client.Object
	for _, o := range all {
		have := &metav1.PartialObjectMetadata{}
		have.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
		there, err := Get(ctx, c, NameOf(o), client.ObjectKeyFromObject(o), have)
		if err != nil {
			return nil, err
		}
		if there {
			left = append(left, have)
		}
	}
	return left, nil
}

// Delete deletes that very object, and then what it owns.
func Delete(ctx context.Context, c client.Client, o client.Object, opts ...client.DeleteOption) error {
	uid := o.GetUID()
	opts = append(opts, client.PropagationPolicy(metav1.DeletePropagationBackground),
		client.Preconditions{UID: &uid})
	if err := client.IgnoreNotFound(c.Delete(ctx, o, opts...)); err != nil {
		return fmt.Errorf("removing %s: %w", NameOf(o), err)
	}
	return nil
}

// Removal deletes what left finds, in its order, until it finds nothing. Pods are waited for: what
// makes them has gone before.
func Removal(
	c client.Client, name, title string, left func(context.Context) ([]client.Object, error),
	changes ...engine.Change,
) *engine.Write {
	return &engine.Write{
		Name: name, About: title, Changes: func() ([]engine.Change, error) { return changes, nil },
		Holds: func(ctx context.Context) error {
			all, err := left(ctx)
			if err == nil && len(all) > 0 {
				return engine.NotYet("%s is still there", NameOf(all[0]))
			}
			return err
		},
		Write: func(ctx context.Context) error {
			all, err := left(ctx)
			for _, o := range all {
				if pod, is := o.(*corev1.Pod); is && err == nil {
					return engine.NotYet("pod %s on node %s is still there", pod.Name, pod.Spec.NodeName)
				}
				if err == nil {
					err = Delete(ctx, c, o)
				}
			}
			return err
		},
	}
}

// NameOf is kind and name.
func NameOf(o client.Object) string {
	name := strings.TrimPrefix(client.ObjectKeyFromObject(o).String(), "/")
	return strings.TrimSpace(o.GetObjectKind().GroupVersionKind().Kind + " " + name)
}
