package migration

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
)

// Identifier says which cluster it is.
type Identifier interface {
	Identity(ctx context.Context) (engine.Identity, error)
}

// OtherClusterError says that a Migration was recorded in another cluster: it was restored from a
// backup, or copied, and its names are of other objects.
type OtherClusterError struct {
	Name     string
	Recorded string
	Here     engine.Identity
}

func (e *OtherClusterError) Error() string {
	return fmt.Sprintf(
		"migration %s was recorded in the cluster with UID %q, and this is %s with UID %s",
		e.Name,
		e.Recorded,
		e.Here,
		e.Here.UID,
	)
}

func (e *OtherClusterError) Advice() string {
	return "is this the cluster you mean? nothing was changed; if the Migration came with a restore, delete it, or remove its annotation " +
		v1alpha1.AnnotationCluster + " when you are sure that all it says is true of this cluster"
}

func (*OtherClusterError) ExitCode() int { return fault.ExitBlocked }

// Bind has a Migration belong to a cluster, of which the UID may not be known.
func Bind(m *v1alpha1.Migration, uid string) {
	if uid == "" {
		return
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[v1alpha1.AnnotationCluster] = uid
}

func boundAs(a, b *v1alpha1.Migration) bool {
	want := b.Annotations[v1alpha1.AnnotationCluster]
	return want == "" || a.Annotations[v1alpha1.AnnotationCluster] == want
}

// Join has a Migration be one of a set, whose names are in the order in which they are applied.
func Join(m *v1alpha1.Migration, names string) {
	if names == "" {
		return
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[v1alpha1.AnnotationSet] = names
}

func joinedAs(a, b *v1alpha1.Migration) bool {
	want := b.Annotations[v1alpha1.AnnotationSet]
	return want == "" || a.Annotations[v1alpha1.AnnotationSet] == want
}

// Beside reports whether a Migration has moved, and belongs to a set with another: until that one
// is over both of its addresses answer.
func Beside(m *v1alpha1.Migration, other string) bool {
	return m.Status.Phase == v1alpha1.PhaseMoved && m.Name != other &&
		slices.Contains(strings.Split(m.Annotations[v1alpha1.AnnotationSet], ","), other)
}

// Bound fails with a *ForeignError if a Migration belongs to another cluster. A Migration that
// belongs to none yet is bound by apply.
func Bound(ctx context.Context, c Identifier, m *v1alpha1.Migration) error {
	recorded, bound := "", false
	if m != nil {
		recorded, bound = m.Annotations[v1alpha1.AnnotationCluster]
	}
	if !bound {
		return nil
	}
	here, err := c.Identity(ctx)
	if err != nil {
		return err
	}
	if here.UID != recorded {
		return &OtherClusterError{Name: m.Name, Recorded: recorded, Here: here}
	}
	return nil
}

// ForeignCallsError says that the calls of the Migration in the cluster are not those agreed to.
type ForeignCallsError struct {
	Name string
}

func (e *ForeignCallsError) Error() string {
	return fmt.Sprintf("migration %s in the cluster calls something else than what was agreed to", e.Name)
}

func (*ForeignCallsError) Advice() string {
	return "look who has changed it: kubectl get migration -o yaml --show-managed-fields"
}

func (*ForeignCallsError) ExitCode() int { return fault.ExitBlocked }
