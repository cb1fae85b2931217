package switchover

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/safety/freeze"
)

func (d Deps) sweep(name string) migration.Sweep {
	remove := func(ctx context.Context) error {
		ours := []client.DeleteAllOfOption{
			client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabels{v1alpha1.LabelMigration: name},
		}
		for _, o := range []client.Object{&corev1.Pod{}, &networkingv1.NetworkPolicy{}, &corev1.Service{}} {
			if err := d.Cluster.DeleteAllOf(ctx, o, ours...); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("sweeping up in namespace %s: %w", v1alpha1.SystemNamespace, err)
			}
		}
		return nil
	}
	return migration.Sweep{Kinds: []string{"Pod", "NetworkPolicy", "Service"}, Remove: remove}
}

// Remove deletes an object, and waits until it is gone with all that it owns. Where deployments are
// frozen, the object is exempted before. prefix begins the step's ID.
func (d Deps) Remove(o *unstructured.Unstructured, prefix string, frozen bool) engine.Step {
	frozen = frozen && freeze.Freezes(o.GroupVersionKind().GroupKind())
	return &engine.Write{
		Name: prefix + "/" + manifests.KeyOf(o).Slug(), About: "Delete " + manifests.KeyOf(o).String(), Limit: 5 * time.Minute,
		Write: func(ctx context.Context) error {
			if frozen {
				if err := freeze.Exempt(ctx, d.Any, o.DeepCopy()); client.IgnoreNotFound(err) != nil {
					return fmt.Errorf("%s: %w", manifests.KeyOf(o), err)
				}
			}
			err := d.removeNow(ctx, o)
			if freeze.Refused(err) { // of a kind that a freeze names itself, or since lately
				err = freeze.Exempt(ctx, d.Any, o.DeepCopy())
				if err == nil {
					err = d.removeNow(ctx, o)
				}
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %w", manifests.KeyOf(o), err)
			}
			return nil
		},
		Holds: func(ctx context.Context) error {
			have, err := d.Get(ctx, o.GroupVersionKind(), client.ObjectKeyFromObject(o))
			if err == nil && have != nil && have.GetUID() == o.GetUID() {
				return engine.NotYet("%s is still there", manifests.KeyOf(o))
			}
			return err
		},
		Changes: func() ([]engine.Change, error) {
			changes := []engine.Change{{Verb: "delete", Object: manifests.KeyOf(o).String()}}
			if frozen {
				exempt := engine.Change{
					Verb: "patch", Object: manifests.KeyOf(o).String(),
					Body: map[string]any{"metadata": map[string]any{"labels": map[string]any{v1alpha1.LabelBreakGlass: "true"}}},
				}
				changes = append([]engine.Change{exempt}, changes...)
			}
			return changes, nil
		},
	}
}

func (d Deps) removeNow(ctx context.Context, o *unstructured.Unstructured) error {
	uid := o.GetUID()
	return d.Any.Delete(ctx, o.DeepCopy(), client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationForeground))
}

// Apply applies an object of the manifests by server-side apply, and takes over fields that others
// have set.
func (d Deps) Apply(name string, o *unstructured.Unstructured, exists bool) engine.Step {
	return d.ApplyAs("install/"+manifests.KeyOf(o).Group+"/"+manifests.KeyOf(o).Slug(), "Apply "+manifests.KeyOf(o).String(), name, o, exists)
}

func (d Deps) ApplyAs(id, about, name string, o *unstructured.Unstructured, exists bool) engine.Step {
	return &engine.Write{
		Name: id, About: about,
		Write: func(ctx context.Context) error {
			want, err := marked(name, o)
			if err != nil {
				return err
			}
			return d.applyObject(ctx, want)
		},
		Holds: func(ctx context.Context) error { return d.applied(ctx, name, o) },
		Changes: func() ([]engine.Change, error) {
			want, err := marked(name, o)
			if err != nil {
				return nil, err
			}
			verb := "create"
			if exists {
				verb = "update"
			}
			return []engine.Change{{Verb: verb, Object: manifests.KeyOf(want).String(), Body: want.Object}}, nil
		},
	}
}

// marked is an object with labels that say which migration applied it, and a hash of its content.
func marked(name string, of *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	body, err := json.Marshal(of.Object)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	o := of.DeepCopy()
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels[v1alpha1.LabelMigration] = name
	annotations[v1alpha1.AnnotationApplied] = hex.EncodeToString(sum[:])[:16]
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	unstructured.RemoveNestedField(o.Object, "status")
	unstructured.RemoveNestedField(o.Object, "metadata", "creationTimestamp")
	return o, nil
}

func (d Deps) applyObject(ctx context.Context, o *unstructured.Unstructured) error {
	namespaced, err := d.Any.IsObjectNamespaced(o)
	if meta.IsNoMatchError(err) { // its definition was made a moment ago
		return engine.NotYet("the API server does not serve %s yet", manifests.KeyOf(o))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", manifests.KeyOf(o), err)
	}
	if namespaced && o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	err = d.Any.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.ForceOwnership, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsNotFound(err) {
		return engine.NotYet("%s: %w", manifests.KeyOf(o), err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", manifests.KeyOf(o), err)
	}
	return nil
}

func (d Deps) applied(ctx context.Context, name string, o *unstructured.Unstructured) error {
	want, err := marked(name, o)
	if err != nil {
		return err
	}
	have, err := d.Get(ctx, want.GroupVersionKind(), client.ObjectKeyFromObject(want))
	switch {
	case err != nil:
		return err
	case have == nil:
		return engine.NotYet("%s does not exist", manifests.KeyOf(want))
	case have.GetLabels()[v1alpha1.LabelMigration] != name,
		have.GetAnnotations()[v1alpha1.AnnotationApplied] != want.GetAnnotations()[v1alpha1.AnnotationApplied]:
		return engine.NotYet("%s is not as the manifests say", manifests.KeyOf(want))
	case want.GetKind() == "CustomResourceDefinition" && !established(have):
		return engine.NotYet("%s is not established", manifests.KeyOf(want))
	}
	return nil
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Established" && m["status"] == "True" {
			return true
		}
	}
	return false
}

// restore brings an object back as it was. An object that this migration has applied is not the old
// one.
func (d Deps) restore(name string, was *unstructured.Unstructured) engine.Step {
	return &engine.Write{
		Name: "restore/" + manifests.KeyOf(was).Group + "/" + manifests.KeyOf(was).Slug(), About: "Restore " + manifests.KeyOf(was).String(),
		Write: func(ctx context.Context) error { return d.recreate(ctx, applicable(was)) },
		Holds: func(ctx context.Context) error {
			have, err := d.Get(ctx, was.GroupVersionKind(), client.ObjectKeyFromObject(was))
			switch {
			case err != nil:
				return err
			case have == nil || have.GetDeletionTimestamp() != nil:
				return engine.NotYet("%s is not back", manifests.KeyOf(was))
			case have.GetLabels()[v1alpha1.LabelMigration] == name && was.GetLabels()[v1alpha1.LabelMigration] != name:
				return engine.NotYet("%s is not as it was", manifests.KeyOf(was))
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "create", Object: manifests.KeyOf(was).String(), Body: applicable(was).Object}}, nil
		},
	}
}

func (d Deps) recreate(ctx context.Context, o *unstructured.Unstructured) error {
	have, err := d.Get(ctx, o.GroupVersionKind(), client.ObjectKeyFromObject(o))
	if err != nil {
		return err
	}
	if have == nil {
		err = d.Any.Create(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	} else {
		o.SetResourceVersion(have.GetResourceVersion())
		err = d.Any.Update(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	}
	if apierrors.IsAlreadyExists(err) {
		return engine.NotYet("%s is still ending", manifests.KeyOf(o))
	}
	if apierrors.IsNotFound(err) { // the role of a binding, which is restored beside it
		return engine.NotYet("%s: %w", manifests.KeyOf(o), err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", manifests.KeyOf(o), err)
	}
	return nil
}

func applicable(o *unstructured.Unstructured) *unstructured.Unstructured {
	o = o.DeepCopy()
	unstructured.RemoveNestedField(o.Object, "status")
	for _, field := range []string{
		"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "ownerReferences", "selfLink",
		"deletionTimestamp", "deletionGracePeriodSeconds",
	} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	return o
}
