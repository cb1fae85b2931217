// Package together has several Migrations of one cluster move as one set: it knows in which order, which of them cannot be in one, and what
// of one is in the way of another. What moves each is behind it: docs/design/together.md says why the order is what it is.
package together

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

// place is where a kind stands in a set, and what people call what it moves.
type place struct {
	kind, moves string
}

// places are the kinds that can be in a set, in their order. Services come first: what carries their old addresses is replaced when pods
// move, and pods that start then are given the new ones. Nodes come last: new ones are made once, for the new Service range, with addresses
// for pods of the new range, and the old ones are there for as long as anything may have to go back.
func places() []place {
	return []place{{"serviceCIDR", "Services"}, {"podCIDR", "pods"}, {"nodes", "nodes"}}
}

func rank(m *v1alpha1.Migration) int {
	return slices.IndexFunc(places(), func(p place) bool { return p.kind == m.Spec.Type() })
}

// Moves is what a Migration moves, for people.
func Moves(m *v1alpha1.Migration) string {
	if i := rank(m); i >= 0 {
		return places()[i].moves
	}
	return m.Spec.Type()
}

// Order puts Migrations into the order in which they move, wherever they stand in the files, and has each know the set that it is in. It
// fails with everything that keeps them from being one.
func Order(all []*v1alpha1.Migration) ([]*v1alpha1.Migration, error) {
	if err := refusal(all); err != nil {
		return nil, err
	}
	ordered := slices.Clone(all)
	slices.SortStableFunc(ordered, func(a, b *v1alpha1.Migration) int { return rank(a) - rank(b) })
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

// refusal is everything that keeps Migrations from being one set.
func refusal(all []*v1alpha1.Migration) error {
	var bad field.ErrorList
	for i, m := range all {
		path := m.Name + ": spec." + m.Spec.Type()
		if rank(m) < 0 {
			bad = append(bad, spec.Wrongf(path, "give it a file of its own, and run it by itself, when the others are finished",
				"cannot be in one set with %s: %s", others(all, i), alone(m)))
		}
		for _, other := range all[:i] {
			switch {
			case other.Name == m.Name:
				bad = append(
					bad,
					spec.Wrongf(m.Name+": metadata.name", "give each Migration a name of its own", "is that of another one too"),
				)
			case other.Spec.Type() == m.Spec.Type() && rank(m) >= 0:
				bad = append(bad, spec.Wrongf(path, "put all into one Migration, or run the second file when the first is finished",
					"moves %s, as %s does", Moves(m), other.Name))
			}
		}
	}
	return spec.Refuse(bad)
}

func others(all []*v1alpha1.Migration, but int) string {
	return strings.Join(Names(slices.Delete(slices.Clone(all), but, but+1)), ", ")
}

// alone says why a kind is none of a set.
func alone(m *v1alpha1.Migration) string {
	if m.Spec.Mirror != nil {
		return "it copies the cluster to another one, which must not change meanwhile"
	}
	return "it replaces the network that the others prove their moves with"
}

// Standing is what is known of a Migration in the cluster.
type Standing struct {
	Name  string
	Phase v1alpha1.Phase
	// Applied says that a run was asked to apply it: before its first plan is through, it has no phase.
	Applied bool
	// Final is true once the point of no return is passed.
	Final bool
}

// Begun reports whether a Migration has changed something that is not undone.
func (s Standing) Begun() bool {
	return (s.Phase != "" || s.Applied) && s.Phase != v1alpha1.PhaseRolledBack
}

// Spared says why apply leaves the i-th of a set alone; empty if it has something to do. One that has moved is looked at again only until
// the next has begun: from then on the two would be in each other's way, and what the earlier one was to move has moved.
func Spared(all []Standing, i int) string {
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
