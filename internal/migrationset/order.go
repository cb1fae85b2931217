// Package migrationset has several Migrations of one cluster move as one set:
// docs/design/together.md has the order and its reasons.
package migrationset

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
)

// Describe says of which kind a Migration is. Services come first: their old addresses are carried
// by pods that move later. Nodes come last: new ones are made once, for both new ranges.
type Describe func(*v1alpha1.Migration) migration.Description

// Order sorts Migrations as they move, and has each know its set. It fails with everything that
// keeps them from being one.
func Order(kind Describe, all []*v1alpha1.Migration) ([]*v1alpha1.Migration, error) {
	if err := refusal(kind, all); err != nil {
		return nil, err
	}
	ordered := slices.Clone(all)
	slices.SortStableFunc(ordered, func(a, b *v1alpha1.Migration) int { return kind(a).Set.Order - kind(b).Set.Order })
	for _, m := range ordered {
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		m.Annotations[v1alpha1.AnnotationSet] = strings.Join(Names(ordered), ",")
	}
	return ordered, nil
}

// Names of Migrations, in their order.
func Names(all []*v1alpha1.Migration) (names []string) {
	for _, m := range all {
		names = append(names, m.Name)
	}
	return names
}

func refusal(kind Describe, all []*v1alpha1.Migration) error {
	var bad field.ErrorList
	for i, m := range all {
		place := kind(m).Set
		path := m.Name + ": spec." + m.Spec.Type()
		if place.Order == 0 {
			bad = append(bad, spec.Wrongf(path, "give it a file of its own, and run it by itself, when the others are finished",
				"cannot be in one set with %s: %s", others(all, i), place.Alone))
		}
		for _, other := range all[:i] {
			switch {
			case other.Name == m.Name:
				bad = append(
					bad,
					spec.Wrongf("metadata.name", "give each Migration a name of its own", "two Migrations are called %s", m.Name),
				)
			case other.Spec.Type() == m.Spec.Type() && place.Order > 0:
				bad = append(bad, spec.Wrongf(path, "put all into one Migration, or run the second file when the first is finished",
					"moves %s, as %s does", place.Moves, other.Name))
			}
		}
	}
	return spec.Refuse(bad)
}

func others(all []*v1alpha1.Migration, but int) string {
	return strings.Join(Names(slices.Delete(slices.Clone(all), but, but+1)), ", ")
}

// MemberProgress is what is known of a Migration in the cluster.
type MemberProgress struct {
	Name  string
	Phase v1alpha1.Phase
	// Applied says that a run was asked to apply it, even if it has no phase yet.
	Applied bool
	Final   bool
}

// Begun reports whether a Migration has changed something that is not undone.
func (s MemberProgress) Begun() bool {
	return (s.Phase != "" || s.Applied) && s.Phase != v1alpha1.PhaseRolledBack
}

// Spared says why apply leaves the i-th of a set alone; empty if it has something to do. A
// Migration that has moved is left alone once the next has begun.
func Spared(all []MemberProgress, i int) string {
	s := all[i]
	if s.Phase == v1alpha1.PhaseFinished {
		return "it is finished"
	}
	for _, later := range all[i+1:] {
		if s.Phase == v1alpha1.PhaseMoved && later.Begun() {
			return fmt.Sprintf("it has moved, and migration %s has begun after it", later.Name)
		}
	}
	return ""
}
