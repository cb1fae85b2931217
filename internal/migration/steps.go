package migration

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/spec"
)

// CRDStep installs or upgrades the definition of a kind.
type CRDStep struct {
	Cluster *cluster.Cluster
	// Kind that is defined. Default: Migration.
	Kind cluster.Definition
	// Name is the ID. Default: secure/crd.
	Name string
	// Upgrade is true if the cluster has a definition, though maybe of another build.
	Upgrade bool
}

func (s *CRDStep) kind() cluster.Definition { return cmp.Or(s.Kind, cluster.Migration) }

func (*CRDStep) Role() engine.StepRole { return engine.RoleOwn }

func (s *CRDStep) ID() string { return cmp.Or(s.Name, "secure/crd") }

func (s *CRDStep) Title() string { return fmt.Sprintf("Install the definition of %s", s.kind()) }

func (s *CRDStep) State(ctx context.Context) (engine.State, error) {
	current, err := s.Cluster.Current(ctx, s.kind())
	if err != nil {
		return engine.Unknown, err
	}
	if current {
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *CRDStep) Do(ctx context.Context) error { return s.Cluster.Define(ctx, s.kind()) }

func (s *CRDStep) Verify(ctx context.Context) error {
	current, err := s.Cluster.Current(ctx, s.kind())
	if err == nil && !current {
		return engine.NotYet("the definition of %s is not established", s.kind())
	}
	return err
}

func (s *CRDStep) Preview() ([]engine.Change, error) {
	crd, err := s.kind().CRD()
	if err != nil {
		return nil, err
	}
	return []engine.Change{{Verb: createOr(s.Upgrade), Object: "CustomResourceDefinition " + crd.Name}}, nil
}

// NamespaceStep makes the namespace of what replumb runs itself.
type NamespaceStep struct {
	Cluster   *cluster.Cluster
	Migration string
	// Sweep goes before the namespace does.
	Sweep Sweep
}

// Sweep removes what a migration keeps in the namespace. The zero value removes nothing.
type Sweep struct {
	// Kinds of the objects that may be there.
	Kinds []string
	// Remove deletes those of the migration.
	Remove func(context.Context) error
}

var _ engine.Undoer = (*NamespaceStep)(nil)

func (*NamespaceStep) Role() engine.StepRole { return engine.RoleOwn }

func (*NamespaceStep) ID() string { return "secure/namespace" }

func (*NamespaceStep) Title() string { return "Create the namespace " + v1alpha1.SystemNamespace }

func (s *NamespaceStep) Undo() engine.Step { return &leaveStep{of: s} }

func (s *NamespaceStep) get(ctx context.Context) (*corev1.Namespace, error) {
	ns := &corev1.Namespace{}
	err := s.Cluster.Get(ctx, client.ObjectKey{Name: v1alpha1.SystemNamespace}, ns)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", v1alpha1.SystemNamespace, err)
	}
	return ns, nil
}

func (s *NamespaceStep) State(ctx context.Context) (engine.State, error) {
	ns, err := s.get(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case ns != nil && ns.DeletionTimestamp.IsZero():
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *NamespaceStep) Do(ctx context.Context) error {
	ns, err := s.get(ctx)
	if err != nil {
		return err
	}
	if ns != nil && !ns.DeletionTimestamp.IsZero() {
		return engine.NotYet("namespace %s is being deleted", ns.Name)
	}
	err = s.Cluster.Create(ctx, s.build(), client.FieldOwner(v1alpha1.FieldManager))
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	err = fmt.Errorf("namespace %s: %w", v1alpha1.SystemNamespace, err)
	if admission.Of(err) != nil {
		return &fault.Hinted{Err: err, Hint: makeYourself + v1alpha1.SystemNamespace}
	}
	return err
}

func (s *NamespaceStep) build() *corev1.Namespace {
	return &corev1.Namespace{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{
			Name: v1alpha1.SystemNamespace, Labels: map[string]string{v1alpha1.LabelMigration: s.Migration},
		},
	}
}

func (s *NamespaceStep) Verify(ctx context.Context) error {
	ns, err := s.get(ctx)
	if err == nil && ns == nil {
		return engine.NotYet("namespace %s does not exist", v1alpha1.SystemNamespace)
	}
	return err
}

func (s *NamespaceStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "create", Object: "Namespace " + v1alpha1.SystemNamespace, Body: s.build()}}, nil
}

// leaveStep removes what replumb keeps in its namespace, and the namespace, unless it is someone
// else's or another migration has its backups there.
type leaveStep struct {
	of    *NamespaceStep
	swept bool
}

func (*leaveStep) ID() string            { return "tidy/namespace" }
func (*leaveStep) Role() engine.StepRole { return engine.RoleOwn }

func (s *leaveStep) Title() string {
	if s.of.Sweep.Remove != nil {
		return "Clean up in the namespace " + v1alpha1.SystemNamespace + ", and the namespace if replumb has made it"
	}
	return "Remove the namespace " + v1alpha1.SystemNamespace
}

func (s *leaveStep) Preview() ([]engine.Change, error) {
	var all []engine.Change
	for _, kind := range s.of.Sweep.Kinds {
		all = append(all, engine.Change{
			Verb: "delete", Object: fmt.Sprintf("%s %s/* (what an interrupted run left)", kind, v1alpha1.SystemNamespace),
		})
	}
	return append(all, engine.Change{Verb: "delete", Object: "Namespace " + v1alpha1.SystemNamespace}), nil
}

func (s *leaveStep) State(ctx context.Context) (engine.State, error) {
	ns, err := s.of.get(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	if ns == nil { // and what was in it
		return engine.Done, nil
	}
	if ns, err = s.leaving(ctx); err != nil {
		return engine.Unknown, err
	}
	if ns == nil && (s.of.Sweep.Remove == nil || s.swept) {
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *leaveStep) leaving(ctx context.Context) (*corev1.Namespace, error) {
	ns, err := s.of.get(ctx)
	if err != nil || ns == nil || ns.Labels[v1alpha1.LabelMigration] == "" {
		return nil, err
	}
	all, err := List(ctx, s.of.Cluster)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if m := &all[i]; m.Name != s.of.Migration && underWay(m) {
			return nil, nil
		}
	}
	return ns, nil
}

func underWay(m *v1alpha1.Migration) bool { return m.Status.Phase != "" && !m.Status.Phase.Over() }

func (s *leaveStep) Do(ctx context.Context) error {
	if s.of.Sweep.Remove != nil {
		if err := s.of.Sweep.Remove(ctx); err != nil {
			return err
		}
	}
	s.swept = true
	ns, err := s.leaving(ctx)
	if err != nil || ns == nil || !ns.DeletionTimestamp.IsZero() {
		return err
	}
	return client.IgnoreNotFound(s.of.Cluster.Delete(ctx, ns, client.Preconditions{UID: &ns.UID}))
}

func (s *leaveStep) Verify(ctx context.Context) error {
	ns, err := s.leaving(ctx)
	if err == nil && ns != nil {
		return engine.NotYet("namespace %s is still being removed", ns.Name)
	}
	return err
}

// RecordStep writes the Migration, or updates an existing one. Whether that is paused is left as it
// is.
type RecordStep struct {
	Cluster  *cluster.Cluster
	Want     *v1alpha1.Migration
	Recorded bool
	// Changes are the settings of this run that differ from the recorded ones.
	Changes []spec.FieldChange
	// Directed leaves spec.desired of a recorded Migration to others.
	Directed bool
}

var _ engine.Noter = (*RecordStep)(nil)

// Note implements engine.Noter: settings that have changed are in the journal.
func (s *RecordStep) Note() string {
	var all []string
	for _, c := range s.Changes {
		all = append(all, c.String())
	}
	return strings.Join(all, "; ")
}

func (*RecordStep) Role() engine.StepRole { return engine.RoleOwn }

func (*RecordStep) ID() string { return "secure/migration" }

func (s *RecordStep) Title() string { return "Record migration " + s.Want.Name }

func (s *RecordStep) State(ctx context.Context) (engine.State, error) {
	have, err := Get(ctx, s.Cluster, s.Want.Name)
	if err != nil {
		return engine.Unknown, err
	}
	if have == nil || !equality.Semantic.DeepEqual(have.Spec, s.wanted(have)) || !boundAs(have, s.Want) || !joinedAs(have, s.Want) {
		return engine.Pending, nil
	}
	return engine.Done, nil
}

// wanted is what an existing Migration shall say, with the pause as it is by now.
func (s *RecordStep) wanted(have *v1alpha1.Migration) v1alpha1.MigrationSpec {
	want := *s.Want.Spec.DeepCopy()
	want.Paused = have.Spec.Paused
	if s.Directed {
		want.Desired = have.Spec.Desired
	}
	return want
}

func (s *RecordStep) Do(ctx context.Context) error {
	have, err := Get(ctx, s.Cluster, s.Want.Name)
	if err != nil {
		return err
	}
	if have == nil {
		err = s.Cluster.Create(ctx, s.Want.DeepCopy(), client.FieldOwner(v1alpha1.FieldManager))
	} else {
		have.Spec = s.wanted(have)
		Bind(have, s.Want.Annotations[v1alpha1.AnnotationCluster])
		Join(have, s.Want.Annotations[v1alpha1.AnnotationSet])
		err = s.Cluster.Update(ctx, have, client.FieldOwner(v1alpha1.FieldManager))
	}
	if apierrors.IsNotFound(err) {
		return engine.NotYet("the API server does not serve migrations yet")
	}
	if err != nil {
		return fmt.Errorf("migration %s: %w", s.Want.Name, err)
	}
	return nil
}

func (s *RecordStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("migration %s is not as wanted", s.Want.Name)
	}
	return err
}

func (s *RecordStep) Preview() ([]engine.Change, error) {
	// Approvals and other annotations are not written here.
	body := &v1alpha1.Migration{TypeMeta: s.Want.TypeMeta, Spec: *s.Want.Spec.DeepCopy()}
	body.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Migration"))
	body.Name, body.Spec.Paused = s.Want.Name, false
	Bind(body, s.Want.Annotations[v1alpha1.AnnotationCluster])
	Join(body, s.Want.Annotations[v1alpha1.AnnotationSet])
	all := []engine.Change{{Verb: createOr(s.Recorded), Object: "Migration " + s.Want.Name, Body: body}}
	for _, c := range s.Changes {
		all = append(all, engine.Change{Verb: "change", Object: c.String()})
	}
	return all, nil
}

func createOr(exists bool) string {
	if exists {
		return "update"
	}
	return "create"
}

// CheckStep stops a run on blocking findings.
type CheckStep struct {
	Findings findings.Findings
}

func (*CheckStep) Role() engine.StepRole { return engine.RoleCheck }

// Waits implements engine.Waiter: nothing is written.
func (*CheckStep) Waits() {}

func (*CheckStep) ID() string { return "check" }

func (*CheckStep) Title() string { return "Check the cluster" }

func (s *CheckStep) State(context.Context) (engine.State, error) {
	if blocking := s.Findings.Blocking(); len(blocking) > 0 {
		return engine.Blocked, &findings.BlockedError{Findings: blocking}
	}
	return engine.Done, nil
}

func (*CheckStep) Do(context.Context) error { return nil }

func (*CheckStep) Verify(context.Context) error { return nil }

// StatusChange previews a write to the status of a Migration.
func StatusChange(name string, status map[string]any) func() ([]engine.Change, error) {
	return func() ([]engine.Change, error) {
		return []engine.Change{{Verb: "patch", Object: "Migration " + name, Body: map[string]any{"status": status}}}, nil
	}
}
