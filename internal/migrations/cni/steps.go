package cni

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/safety/freeze"
)

// remembers reads what the Migration remembers; nothing, if there is none.
func (t Tools) remembers(ctx context.Context, name string) (v1alpha1.CNIStatus, error) {
	m, err := migration.Get(ctx, t.Cluster, name)
	if err != nil || m == nil || m.Status.CNI == nil {
		return v1alpha1.CNIStatus{}, err
	}
	return *m.Status.CNI, nil
}

func (t Tools) remember(ctx context.Context, name string, change func(*v1alpha1.CNIStatus)) error {
	return migration.UpdateStatus(ctx, t.Cluster, name, func(st *v1alpha1.MigrationStatus) {
		if st.CNI == nil {
			st.CNI = &v1alpha1.CNIStatus{}
		}
		change(st.CNI)
	})
}

// serverNow is the API server's clock, which also says when pods were made. Nothing is written.
func (t Tools) serverNow(ctx context.Context) (metav1.Time, error) {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, GenerateName: "clock-"}}
	if err := t.Cluster.Create(ctx, o, client.DryRunAll, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return metav1.Time{}, fmt.Errorf("asking the API server for the time: %w", err)
	}
	return o.CreationTimestamp, nil
}

// sweep ends what the migration may have left running in replumb's namespace.
func (t Tools) sweep(name string) migration.Sweep {
	remove := func(ctx context.Context) error {
		ours := []client.DeleteAllOfOption{
			client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabels{v1alpha1.LabelMigration: name},
		}
		for _, o := range []client.Object{&corev1.Pod{}, &networkingv1.NetworkPolicy{}, &corev1.Service{}} {
			if err := t.Cluster.DeleteAllOf(ctx, o, ours...); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("sweeping up in namespace %s: %w", v1alpha1.SystemNamespace, err)
			}
		}
		return nil
	}
	return migration.Sweep{Kinds: []string{"Pod", "NetworkPolicy", "Service"}, Remove: remove}
}

// memory is what a Migration remembers of the cluster, in status.cni.
type memory struct {
	tools     Tools
	migration string
}

// record is a step that changes what is remembered until holds says that it is there; shown is what the change comes to.
func (m memory) record(
	id, about string, shown map[string]any, change func(context.Context) error, holds func(v1alpha1.CNIStatus) bool,
) engine.Step {
	return &engine.Write{
		Name: id, About: about, As: engine.RoleOwn, Write: change,
		Holds: func(ctx context.Context) error {
			st, err := m.tools.remembers(ctx, m.migration)
			if err == nil && !holds(st) {
				return engine.NotYet("status.cni of migration %s is not written yet", m.migration)
			}
			return err
		},
		Changes: migration.StatusChange(m.migration, map[string]any{"cni": shown}),
	}
}

// remember records what there is before anything changes.
func (m memory) remember(s *Survey) engine.Step {
	var st v1alpha1.CNIStatus
	set := func(st *v1alpha1.CNIStatus) {
		st.From, st.Nodes, st.Unready = s.from(), s.NodeNames(), s.unready()
		st.Ranges = nil
		for _, r := range s.Ranges {
			st.Ranges = append(st.Ranges, r.String())
		}
		if s.Manifests != nil {
			st.ManifestsHash = s.Manifests.Hash
		}
	}
	set(&st)
	shown := map[string]any{
		"from": st.From, "nodes": st.Nodes, "unready": st.Unready, "ranges": st.Ranges, "manifestsHash": st.ManifestsHash,
	}
	return m.record("secure/remember", "Record what the cluster has", shown,
		func(ctx context.Context) error { return m.tools.remember(ctx, m.migration, set) },
		func(st v1alpha1.CNIStatus) bool { return st.ManifestsHash != "" && st.From != "" })
}

// begin records that the network of the cluster changes from now on: about says what that means for pods.
func (m memory) begin(about string) engine.Step {
	return m.record("begin", about, map[string]any{"begun": "now"},
		func(ctx context.Context) error {
			return m.at(ctx, func(st *v1alpha1.CNIStatus, now metav1.Time) { st.Begun, st.Network, st.Since = &now, "", nil })
		},
		func(st v1alpha1.CNIStatus) bool { return st.Begun != nil })
}

// since records since when a network is on every node: pods made before do not have it.
func (m memory) since(network v1alpha1.CNIName) engine.Step {
	return m.record("since/"+string(network), fmt.Sprintf("Record since when %s is on every node", network),
		map[string]any{"network": network, "since": "now"},
		func(ctx context.Context) error {
			return m.at(ctx, func(st *v1alpha1.CNIStatus, now metav1.Time) { st.Network, st.Since = network, &now })
		},
		func(st v1alpha1.CNIStatus) bool { return st.Network == network && st.Since != nil })
}

// at changes what is remembered by the API server's clock.
func (m memory) at(ctx context.Context, change func(*v1alpha1.CNIStatus, metav1.Time)) error {
	now, err := m.tools.serverNow(ctx)
	if err != nil {
		return err
	}
	return m.tools.remember(ctx, m.migration, func(st *v1alpha1.CNIStatus) { change(st, now) })
}

// reset removes what is remembered.
func (m memory) reset() engine.Step {
	return m.record("tidy/status", "Remove what the Migration remembers of the cluster", nil,
		func(ctx context.Context) error {
			return client.IgnoreNotFound(
				migration.UpdateStatus(ctx, m.tools.Cluster, m.migration, func(st *v1alpha1.MigrationStatus) { st.CNI = nil }),
			)
		},
		func(st v1alpha1.CNIStatus) bool { return equality.Semantic.DeepEqual(st, v1alpha1.CNIStatus{}) })
}

// remove deletes an object, and waits until it is gone with all that it owns. prefix begins the step's ID. Where deployments are frozen, it
// takes the object out of that first.
func (t Tools) remove(o *unstructured.Unstructured, prefix string, frozen bool) engine.Step {
	frozen = frozen && freeze.Freezes(o.GroupVersionKind().GroupKind())
	return &engine.Write{
		Name: prefix + "/" + keyOf(o).slug(), About: "Delete " + keyOf(o).String(), Limit: 5 * time.Minute,
		Write: func(ctx context.Context) error {
			if frozen {
				if err := freeze.Exempt(ctx, t.Any, o.DeepCopy()); client.IgnoreNotFound(err) != nil {
					return fmt.Errorf("%s: %w", keyOf(o), err)
				}
			}
			err := t.removeNow(ctx, o)
			if freeze.Refused(err) { // of a kind that a freeze names itself, or since lately
				err = freeze.Exempt(ctx, t.Any, o.DeepCopy())
				if err == nil {
					err = t.removeNow(ctx, o)
				}
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %w", keyOf(o), err)
			}
			return nil
		},
		Holds: func(ctx context.Context) error {
			have, err := t.get(ctx, o.GroupVersionKind(), client.ObjectKeyFromObject(o))
			if err == nil && have != nil && have.GetUID() == o.GetUID() {
				return engine.NotYet("%s is still there", keyOf(o))
			}
			return err
		},
		Changes: func() ([]engine.Change, error) {
			changes := []engine.Change{{Verb: "delete", Object: keyOf(o).String()}}
			if frozen {
				exempt := engine.Change{
					Verb: "patch", Object: keyOf(o).String(),
					Body: map[string]any{"metadata": map[string]any{"labels": map[string]any{v1alpha1.LabelBreakGlass: "true"}}},
				}
				changes = append([]engine.Change{exempt}, changes...)
			}
			return changes, nil
		},
	}
}

// removeNow deletes an object of this UID with all that it owns.
func (t Tools) removeNow(ctx context.Context, o *unstructured.Unstructured) error {
	uid := o.GetUID()
	return t.Any.Delete(ctx, o.DeepCopy(), client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationForeground))
}

// slug is a key as part of an ID.
func (k key) slug() string {
	out := k.Kind + "/"
	if k.namespace != "" {
		out += k.namespace + "/"
	}
	return out + k.name
}

// apply applies an object of the manifests, by server-side apply, and takes over fields that others have set.
func (t Tools) apply(name string, o *unstructured.Unstructured, exists bool) engine.Step {
	return t.applyAs("install/"+keyOf(o).Group+"/"+keyOf(o).slug(), "Apply "+keyOf(o).String(), name, o, exists)
}

// applyAs does so in a step of another id and title.
func (t Tools) applyAs(id, about, name string, o *unstructured.Unstructured, exists bool) engine.Step {
	return &engine.Write{
		Name: id, About: about,
		Write: func(ctx context.Context) error {
			want, err := marked(name, o)
			if err != nil {
				return err
			}
			return t.applyObject(ctx, want)
		},
		Holds: func(ctx context.Context) error { return t.applied(ctx, name, o) },
		Changes: func() ([]engine.Change, error) {
			want, err := marked(name, o)
			if err != nil {
				return nil, err
			}
			verb := "create"
			if exists {
				verb = "update"
			}
			return []engine.Change{{Verb: verb, Object: keyOf(want).String(), Body: want.Object}}, nil
		},
	}
}

// marked is an object of the manifests with which migration applied it, and a hash of what was applied.
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

func (t Tools) applyObject(ctx context.Context, o *unstructured.Unstructured) error {
	namespaced, err := t.Any.IsObjectNamespaced(o)
	if meta.IsNoMatchError(err) { // its definition was made a moment ago
		return engine.NotYet("the API server does not serve %s yet", keyOf(o))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", keyOf(o), err)
	}
	if namespaced && o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	err = t.Any.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.ForceOwnership, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsNotFound(err) {
		return engine.NotYet("%s: %w", keyOf(o), err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", keyOf(o), err)
	}
	return nil
}

// applied returns nil once an object is as the manifests say.
func (t Tools) applied(ctx context.Context, name string, o *unstructured.Unstructured) error {
	want, err := marked(name, o)
	if err != nil {
		return err
	}
	have, err := t.get(ctx, want.GroupVersionKind(), client.ObjectKeyFromObject(want))
	switch {
	case err != nil:
		return err
	case have == nil:
		return engine.NotYet("%s does not exist", keyOf(want))
	case have.GetLabels()[v1alpha1.LabelMigration] != name,
		have.GetAnnotations()[v1alpha1.AnnotationApplied] != want.GetAnnotations()[v1alpha1.AnnotationApplied]:
		return engine.NotYet("%s is not as the manifests say", keyOf(want))
	case keyOf(want).rank() == definitions && !established(have):
		return engine.NotYet("%s is not established", keyOf(want))
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

// restore brings an object back as it was. An object that this migration has applied is not the old one.
func (t Tools) restore(name string, was *unstructured.Unstructured) engine.Step {
	return &engine.Write{
		Name: "restore/" + keyOf(was).Group + "/" + keyOf(was).slug(), About: "Restore " + keyOf(was).String(),
		Write: func(ctx context.Context) error { return t.recreate(ctx, applicable(was)) },
		Holds: func(ctx context.Context) error {
			have, err := t.get(ctx, was.GroupVersionKind(), client.ObjectKeyFromObject(was))
			switch {
			case err != nil:
				return err
			case have == nil || have.GetDeletionTimestamp() != nil:
				return engine.NotYet("%s is not back", keyOf(was))
			case have.GetLabels()[v1alpha1.LabelMigration] == name && was.GetLabels()[v1alpha1.LabelMigration] != name:
				return engine.NotYet("%s is not as it was", keyOf(was))
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "create", Object: keyOf(was).String(), Body: applicable(was).Object}}, nil
		},
	}
}

// recreate creates an object, or replaces the one of its name.
func (t Tools) recreate(ctx context.Context, o *unstructured.Unstructured) error {
	have, err := t.get(ctx, o.GroupVersionKind(), client.ObjectKeyFromObject(o))
	if err != nil {
		return err
	}
	if have == nil {
		err = t.Any.Create(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	} else {
		o.SetResourceVersion(have.GetResourceVersion())
		err = t.Any.Update(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	}
	if apierrors.IsAlreadyExists(err) {
		return engine.NotYet("%s is still ending", keyOf(o))
	}
	if apierrors.IsNotFound(err) { // the role of a binding, which is restored beside it
		return engine.NotYet("%s: %w", keyOf(o), err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", keyOf(o), err)
	}
	return nil
}

// applicable is an object without what belongs to its past life.
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
