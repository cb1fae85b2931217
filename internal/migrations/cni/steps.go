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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
)

// annotationApplied, on an object of the manifests, is a hash of what was applied.
const annotationApplied = "replumb.dev/applied"

// stateOf is what a look says of a step that verifies by looking.
func stateOf(err error) (engine.State, error) {
	switch {
	case err == nil:
		return engine.Done, nil
	case engine.Retryable(err):
		return engine.Pending, nil
	}
	return engine.Unknown, err
}

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
func (t Tools) sweep(ctx context.Context, migration string) error {
	ours := []client.DeleteAllOfOption{
		client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabels{v1alpha1.LabelMigration: migration},
	}
	for _, o := range []client.Object{&corev1.Pod{}, &networkingv1.NetworkPolicy{}, &corev1.Service{}} {
		if err := t.Cluster.DeleteAllOf(ctx, o, ours...); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("sweeping up in namespace %s: %w", v1alpha1.SystemNamespace, err)
		}
	}
	return nil
}

// rememberStep writes down what there is before anything changes.
type rememberStep struct {
	tools  Tools
	survey *Survey
}

func (*rememberStep) ID() string    { return "secure/remember" }
func (*rememberStep) Title() string { return "Write down what the cluster has" }
func (s *rememberStep) State(ctx context.Context) (engine.State, error) {
	return stateOf(s.Verify(ctx))
}

func (s *rememberStep) Do(ctx context.Context) error {
	return s.tools.remember(ctx, s.survey.Spec.Name, func(st *v1alpha1.CNIStatus) {
		st.From, st.Nodes, st.Unready = s.survey.from(), s.survey.NodeNames(), s.survey.unready()
		st.Ranges = nil
		for _, r := range s.survey.Ranges {
			st.Ranges = append(st.Ranges, r.String())
		}
		if s.survey.Manifests != nil {
			st.ManifestsHash = s.survey.Manifests.Hash
		}
	})
}

func (s *rememberStep) Verify(ctx context.Context) error {
	st, err := s.tools.remembers(ctx, s.survey.Spec.Name)
	if err == nil && (st.ManifestsHash == "" || st.From == "") {
		return engine.NotYet("migration %s does not say what the cluster has", s.survey.Spec.Name)
	}
	return err
}

// beginStep writes down that pods may lose their network from now on.
type beginStep struct {
	tools     Tools
	migration string
}

func (*beginStep) ID() string    { return "begin" }
func (*beginStep) Title() string { return "Note that pods lose their network" }

func (s *beginStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *beginStep) Do(ctx context.Context) error {
	now, err := s.tools.serverNow(ctx)
	if err != nil {
		return err
	}
	return s.tools.remember(ctx, s.migration, func(st *v1alpha1.CNIStatus) {
		st.Begun, st.Network, st.Since = &now, "", nil
	})
}

func (s *beginStep) Verify(ctx context.Context) error {
	st, err := s.tools.remembers(ctx, s.migration)
	if err == nil && st.Begun == nil {
		return engine.NotYet("migration %s does not say so", s.migration)
	}
	return err
}

// sinceStep writes down since when a network is on every node: pods made before do not have it.
type sinceStep struct {
	tools     Tools
	migration string
	network   v1alpha1.CNIName
}

func (s *sinceStep) ID() string { return "since/" + string(s.network) }
func (s *sinceStep) Title() string {
	return fmt.Sprintf("Note since when %s is on every node", s.network)
}

func (s *sinceStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *sinceStep) Do(ctx context.Context) error {
	now, err := s.tools.serverNow(ctx)
	if err != nil {
		return err
	}
	return s.tools.remember(ctx, s.migration, func(st *v1alpha1.CNIStatus) { st.Network, st.Since = s.network, &now })
}

func (s *sinceStep) Verify(ctx context.Context) error {
	st, err := s.tools.remembers(ctx, s.migration)
	if err == nil && (st.Network != s.network || st.Since == nil) {
		return engine.NotYet("migration %s does not say so", s.migration)
	}
	return err
}

// resetStep forgets what the migration remembers.
type resetStep struct {
	tools     Tools
	migration string
}

func (*resetStep) ID() string    { return "tidy/status" }
func (*resetStep) Title() string { return "Forget what the cluster had" }

func (s *resetStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *resetStep) Do(ctx context.Context) error {
	return client.IgnoreNotFound(
		migration.UpdateStatus(ctx, s.tools.Cluster, s.migration, func(st *v1alpha1.MigrationStatus) { st.CNI = nil }),
	)
}

func (s *resetStep) Verify(ctx context.Context) error {
	m, err := migration.Get(ctx, s.tools.Cluster, s.migration)
	if err == nil && m != nil && m.Status.CNI != nil {
		return engine.NotYet("migration %s still remembers", s.migration)
	}
	return err
}

// deleteStep deletes an object, and waits until it is gone with all that it owns.
type deleteStep struct {
	tools  Tools
	object *unstructured.Unstructured
	prefix string
}

func (s *deleteStep) ID() string { return s.prefix + "/" + keyOf(s.object).slug() }

func (s *deleteStep) Title() string                                   { return "Delete " + keyOf(s.object).String() }
func (*deleteStep) Deadline() time.Duration                           { return 5 * time.Minute }
func (s *deleteStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *deleteStep) Do(ctx context.Context) error {
	uid := s.object.GetUID()
	err := s.tools.Any.Delete(ctx, s.object.DeepCopy(), client.Preconditions{UID: &uid},
		client.PropagationPolicy(metav1.DeletePropagationForeground))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: %w", keyOf(s.object), err)
	}
	return nil
}

func (s *deleteStep) Verify(ctx context.Context) error {
	have, err := s.tools.get(ctx, s.object.GroupVersionKind(), client.ObjectKeyFromObject(s.object))
	if err == nil && have != nil && have.GetUID() == s.object.GetUID() {
		return engine.NotYet("%s is still there", keyOf(s.object))
	}
	return err
}

// Preview implements engine.Previewer.
func (s *deleteStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "delete", Object: keyOf(s.object).String()}}, nil
}

// slug is a key as part of an ID.
func (k key) slug() string {
	out := k.Kind + "/"
	if k.namespace != "" {
		out += k.namespace + "/"
	}
	return out + k.name
}

// applyStep applies an object of the manifests, by server-side apply, and takes over fields that others have set.
type applyStep struct {
	tools     Tools
	migration string
	object    *unstructured.Unstructured
	exists    bool
}

func (s *applyStep) ID() string {
	return "install/" + keyOf(s.object).Group + "/" + keyOf(s.object).slug()
}

func (s *applyStep) Title() string { return "Apply " + keyOf(s.object).String() }

func (s *applyStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

// build is the object with who applied it, and what.
func (s *applyStep) build() (*unstructured.Unstructured, error) {
	body, err := json.Marshal(s.object.Object)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	o := s.object.DeepCopy()
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels[v1alpha1.LabelMigration] = s.migration
	annotations[annotationApplied] = hex.EncodeToString(sum[:])[:16]
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	unstructured.RemoveNestedField(o.Object, "status")
	unstructured.RemoveNestedField(o.Object, "metadata", "creationTimestamp")
	return o, nil
}

func (s *applyStep) Do(ctx context.Context) error {
	o, err := s.build()
	if err != nil {
		return err
	}
	namespaced, err := s.tools.Any.IsObjectNamespaced(o)
	if meta.IsNoMatchError(err) { // its definition was made a moment ago
		return engine.NotYet("the API server does not serve %s yet", keyOf(o))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", keyOf(o), err)
	}
	if namespaced && o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	err = s.tools.Any.Apply(
		ctx,
		client.ApplyConfigurationFromUnstructured(o),
		client.ForceOwnership,
		client.FieldOwner(v1alpha1.FieldManager),
	)
	if apierrors.IsNotFound(err) {
		return engine.NotYet("%s: %w", keyOf(o), err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", keyOf(o), err)
	}
	return nil
}

func (s *applyStep) Verify(ctx context.Context) error {
	want, err := s.build()
	if err != nil {
		return err
	}
	have, err := s.tools.get(ctx, want.GroupVersionKind(), client.ObjectKeyFromObject(want))
	switch {
	case err != nil:
		return err
	case have == nil:
		return engine.NotYet("%s does not exist", keyOf(want))
	case have.GetLabels()[v1alpha1.LabelMigration] != s.migration,
		have.GetAnnotations()[annotationApplied] != want.GetAnnotations()[annotationApplied]:
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

// Preview implements engine.Previewer.
func (s *applyStep) Preview() ([]engine.Change, error) {
	o, err := s.build()
	if err != nil {
		return nil, err
	}
	verb := "create"
	if s.exists {
		verb = "update"
	}
	return []engine.Change{{Verb: verb, Object: keyOf(o).String(), Body: o.Object}}, nil
}

// restoreStep brings an object back as it was.
type restoreStep struct {
	tools     Tools
	migration string
	object    *unstructured.Unstructured
}

func (s *restoreStep) ID() string {
	return "restore/" + keyOf(s.object).Group + "/" + keyOf(s.object).slug()
}

func (s *restoreStep) Title() string { return "Bring back " + keyOf(s.object).String() }

func (s *restoreStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *restoreStep) Do(ctx context.Context) error {
	o := applicable(s.object)
	have, err := s.tools.get(ctx, o.GroupVersionKind(), client.ObjectKeyFromObject(o))
	if err != nil {
		return err
	}
	if have == nil {
		err = s.tools.Any.Create(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	} else {
		o.SetResourceVersion(have.GetResourceVersion())
		err = s.tools.Any.Update(ctx, o, client.FieldOwner(v1alpha1.FieldManager))
	}
	if apierrors.IsAlreadyExists(err) {
		return engine.NotYet("%s is still ending", keyOf(o))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", keyOf(o), err)
	}
	return nil
}

// Verify implements engine.Step: an object that this migration has applied is not the old one.
func (s *restoreStep) Verify(ctx context.Context) error {
	have, err := s.tools.get(ctx, s.object.GroupVersionKind(), client.ObjectKeyFromObject(s.object))
	switch {
	case err != nil:
		return err
	case have == nil || have.GetDeletionTimestamp() != nil:
		return engine.NotYet("%s is not back", keyOf(s.object))
	case have.GetLabels()[v1alpha1.LabelMigration] == s.migration && s.object.GetLabels()[v1alpha1.LabelMigration] != s.migration:
		return engine.NotYet("%s is not as it was", keyOf(s.object))
	}
	return nil
}

// Preview implements engine.Previewer.
func (s *restoreStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "create", Object: keyOf(s.object).String(), Body: applicable(s.object).Object}}, nil
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
