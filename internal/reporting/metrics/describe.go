package metrics

import (
	"cmp"
	"context"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// Description is what is true of a metric whatever it measures.
type Description struct {
	Name string
	Type string
	Help string
	// Labels are its names of labels, in the order of the alphabet.
	Labels []string
}

// Descriptions are read from a scrape of a migration that has something of everything: the library
// shows labels nowhere else.
func Descriptions() ([]Description, error) {
	one := v1alpha1.Migration{Status: v1alpha1.MigrationStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady}}}}
	m := New(func(context.Context) ([]v1alpha1.Migration, error) { return []v1alpha1.Migration{one}, nil })
	m.About(engine.Identity{})
	r := m.Of(one.Name)
	r.Event(engine.Event{Kind: engine.StepDone, Role: engine.RoleBarrier})
	r.Sample(journal.Sample{Sent: 1})
	families, err := m.registry.Gather()
	if err != nil {
		return nil, err
	}
	all := make([]Description, len(families))
	for i, f := range families {
		all[i] = Description{Name: f.GetName(), Type: strings.ToLower(f.GetType().String()), Help: f.GetHelp(), Labels: labels(f)}
	}
	slices.SortFunc(all, func(a, b Description) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

func labels(f *dto.MetricFamily) []string {
	var names []string
	for _, l := range f.GetMetric()[0].GetLabel() {
		names = append(names, l.GetName())
	}
	return names
}
