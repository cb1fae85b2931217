package servicecidr

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/bridge"
	"github.com/replumb/replumb/internal/cluster"
	"github.com/replumb/replumb/internal/engine"
)

// crdStep installs or upgrades the definition of Migration.
type crdStep struct {
	tools Tools
	// upgrade is true if the cluster has a definition, though maybe of another build.
	upgrade bool
}

func (*crdStep) ID() string    { return "secure/crd" }
func (*crdStep) Title() string { return "Install the definition of Migration" }
func (s *crdStep) State(ctx context.Context) (engine.State, error) {
	current, err := s.tools.Cluster.CRDCurrent(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	if current {
		return engine.Done, nil
	}
	return engine.Pending, nil
}
func (s *crdStep) Do(ctx context.Context) error { return s.tools.Cluster.InstallCRD(ctx) }
func (s *crdStep) Verify(ctx context.Context) error {
	current, err := s.tools.Cluster.CRDCurrent(ctx)
	if err == nil && !current {
		return engine.NotYet("the definition of Migration is not established")
	}
	return err
}

// Preview implements engine.Previewer.
func (s *crdStep) Preview() ([]engine.Change, error) {
	crd, err := cluster.MigrationCRD()
	if err != nil {
		return nil, err
	}
	return []engine.Change{{Verb: createOr(s.upgrade), Object: "CustomResourceDefinition " + crd.Name}}, nil
}

// namespaceStep makes the namespace of sentinels.
type namespaceStep struct {
	tools     Tools
	migration string
}

var _ engine.Undoer = (*namespaceStep)(nil)

func (*namespaceStep) ID() string    { return "secure/namespace" }
func (*namespaceStep) Title() string { return "Create the namespace " + v1alpha1.SystemNamespace }

// Undo implements engine.Undoer.
func (s *namespaceStep) Undo() engine.Step { return &leaveStep{s} }

func (s *namespaceStep) get(ctx context.Context) (*corev1.Namespace, error) {
	ns := &corev1.Namespace{}
	err := s.tools.Cluster.Get(ctx, client.ObjectKey{Name: v1alpha1.SystemNamespace}, ns)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", v1alpha1.SystemNamespace, err)
	}
	return ns, nil
}

func (s *namespaceStep) State(ctx context.Context) (engine.State, error) {
	ns, err := s.get(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case ns != nil && ns.DeletionTimestamp.IsZero():
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *namespaceStep) Do(ctx context.Context) error {
	ns, err := s.get(ctx)
	if err != nil {
		return err
	}
	if ns != nil && !ns.DeletionTimestamp.IsZero() {
		return engine.NotYet("namespace %s is being deleted", ns.Name)
	}
	err = s.tools.Cluster.Create(ctx, s.build(), client.FieldOwner(v1alpha1.FieldManager))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace %s: %w", v1alpha1.SystemNamespace, err)
	}
	return nil
}

func (s *namespaceStep) build() *corev1.Namespace {
	return &corev1.Namespace{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{
			Name: v1alpha1.SystemNamespace, Labels: map[string]string{v1alpha1.LabelMigration: s.migration},
		},
	}
}

func (s *namespaceStep) Verify(ctx context.Context) error {
	ns, err := s.get(ctx)
	if err == nil && ns == nil {
		return engine.NotYet("namespace %s does not exist", v1alpha1.SystemNamespace)
	}
	return err
}

// Preview implements engine.Previewer.
func (s *namespaceStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "create", Object: "Namespace " + v1alpha1.SystemNamespace, Body: s.build()}}, nil
}

// leaveStep removes what replumb keeps in its namespace, and the namespace, if it is this migration's.
type leaveStep struct {
	of *namespaceStep
}

func (*leaveStep) ID() string    { return "tidy/namespace" }
func (*leaveStep) Title() string { return "Remove the namespace " + v1alpha1.SystemNamespace }
func (s *leaveStep) State(ctx context.Context) (engine.State, error) {
	ns, err := s.of.get(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	if ns == nil || ns.Labels[v1alpha1.LabelMigration] != s.of.migration {
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *leaveStep) Do(ctx context.Context) error {
	if err := bridge.RemoveThrowaways(ctx, s.of.tools.Cluster, s.of.migration); err != nil {
		return err
	}
	ns, err := s.of.get(ctx)
	if err != nil || ns == nil || !ns.DeletionTimestamp.IsZero() {
		return err
	}
	return client.IgnoreNotFound(s.of.tools.Cluster.Delete(ctx, ns, client.Preconditions{UID: &ns.UID}))
}

func (s *leaveStep) Verify(ctx context.Context) error {
	ns, err := s.of.get(ctx)
	if err == nil && ns != nil {
		return engine.NotYet("namespace %s is still being removed", ns.Name)
	}
	return err
}

// migrationStep writes the Migration, or brings an existing one to what is wanted of it now.
type migrationStep struct {
	tools Tools
	want  *v1alpha1.Migration
	// recorded is true if the cluster has a Migration of that name.
	recorded bool
}

func (*migrationStep) ID() string      { return "secure/migration" }
func (s *migrationStep) Title() string { return "Record migration " + s.want.Name }
func (s *migrationStep) State(ctx context.Context) (engine.State, error) {
	have, err := GetMigration(ctx, s.tools.Cluster, s.want.Name)
	if err != nil {
		return engine.Unknown, err
	}
	if have == nil || !equality.Semantic.DeepEqual(have.Spec, s.want.Spec) {
		return engine.Pending, nil
	}
	return engine.Done, nil
}

func (s *migrationStep) Do(ctx context.Context) error {
	have, err := GetMigration(ctx, s.tools.Cluster, s.want.Name)
	if err != nil {
		return err
	}
	if have == nil {
		err = s.tools.Cluster.Create(ctx, s.want.DeepCopy(), client.FieldOwner(v1alpha1.FieldManager))
	} else {
		have.Spec = s.want.Spec
		err = s.tools.Cluster.Update(ctx, have, client.FieldOwner(v1alpha1.FieldManager))
	}
	if apierrors.IsNotFound(err) {
		return engine.NotYet("the API server does not serve migrations yet")
	}
	if err != nil {
		return fmt.Errorf("migration %s: %w", s.want.Name, err)
	}
	return nil
}

func (s *migrationStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("migration %s is not as wanted", s.want.Name)
	}
	return err
}

// Preview implements engine.Previewer.
func (s *migrationStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: createOr(s.recorded), Object: "Migration " + s.want.Name, Body: s.want}}, nil
}

func createOr(exists bool) string {
	if exists {
		return "update"
	}
	return "create"
}

// noteStep writes the progress on the Migration once every hop of a batch is proven.
type noteStep struct {
	tools     Tools
	migration string
	batch     string
	counts    v1alpha1.Counts
	tiers     []v1alpha1.TierStatus
}

func (s *noteStep) ID() string    { return "note/" + s.batch }
func (s *noteStep) Title() string { return "Record that " + s.batch + " has moved" }
func (s *noteStep) State(context.Context) (engine.State, error) {
	return engine.Pending, nil
}

func (s *noteStep) Do(ctx context.Context) error {
	return UpdateStatus(ctx, s.tools.Cluster, s.migration, func(st *v1alpha1.MigrationStatus) {
		s.counts.Bridged = max(s.counts.Bridged, s.counts.Moved)
		st.Phase, st.Counts, st.Tiers = v1alpha1.PhaseApplying, s.counts, s.tiers
		setReady(st, metav1.ConditionFalse, v1alpha1.ReasonInProgress, s.batch+" has moved")
	})
}
func (s *noteStep) Verify(context.Context) error { return nil }

// GetMigration returns nil if there is no such Migration, or no definition of Migration at all.
func GetMigration(ctx context.Context, c client.Client, name string) (*v1alpha1.Migration, error) {
	m := &v1alpha1.Migration{}
	err := c.Get(ctx, client.ObjectKey{Name: name}, m)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("migration %s: %w", name, err)
	}
	return m, nil
}

// Migrations are all Migrations of the cluster, by name.
func Migrations(ctx context.Context, c client.Client) ([]v1alpha1.Migration, error) {
	all := &v1alpha1.MigrationList{}
	if err := c.List(ctx, all); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("listing migrations: %w", err)
	}
	slices.SortFunc(all.Items, func(a, b v1alpha1.Migration) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all.Items, nil
}
