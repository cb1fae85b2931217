package servicecidr

import (
	"cmp"
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/safety/freeze"
)

// batch is what moves together.
type batch struct {
	name       string
	number, of int
	tier       string
	entries    []*services.Entry
	counts     v1alpha1.Counts
	tiers      []v1alpha1.TierStatus
}

func (b *batch) String() string { return cmp.Or(b.name, fmt.Sprintf("batch %d of %d", b.number, b.of)) }

func (b *batch) keys() []types.NamespacedName {
	keys := make([]types.NamespacedName, len(b.entries))
	for i, e := range b.entries {
		keys[i] = e.Key()
	}
	return keys
}

func (b *batch) names() []string {
	names := make([]string, len(b.entries))
	for i, e := range b.entries {
		names[i] = e.Key().String()
	}
	return names
}

// mark tells the freeze that the Services of a batch are in flight.
func mark(c client.Client, migration string, b *batch) engine.Step {
	return inFlight(c, migration, "freeze/"+b.String(), "Freeze "+b.String(), b)
}

// thaw tells the freeze that a batch has arrived: its Services say themselves what must not change.
func thaw(c client.Client, migration string, b *batch) engine.Step {
	return inFlight(c, migration, "thaw/"+b.String(), "Let "+b.String()+" change, but for what the overlap needs", &batch{})
}

func inFlight(c client.Client, migration, id, title string, b *batch) engine.Step {
	write := func(ctx context.Context) error { return freeze.Mark(ctx, c, migration, b.keys()) }
	return always(id, title, write, func() ([]engine.Change, error) {
		return []engine.Change{{
			Verb: "update", Object: "ValidatingAdmissionPolicy " + freeze.Name, Body: map[string]any{"inFlight": b.names()},
		}}, nil
	})
}

func note(c client.Client, name string, b *batch) engine.Step {
	counts := b.counts
	counts.Bridged = max(counts.Bridged, counts.Moved)
	write := func(ctx context.Context) error {
		return migration.UpdateStatus(ctx, c, name, func(st *v1alpha1.MigrationStatus) {
			st.Phase, st.Counts, st.Tiers = v1alpha1.PhaseApplying, counts, b.tiers
			migration.SetReady(st, metav1.ConditionFalse, v1alpha1.ReasonInProgress, b.String()+" has moved")
		})
	}
	return always("note/"+b.String(), "Record that "+b.String()+" has moved", write,
		migration.StatusChange(name, map[string]any{"phase": v1alpha1.PhaseApplying, "counts": counts, "tiers": b.tiers}))
}

// always is a step that writes in every run, since to compare would cost as much as to write.
func always(id, title string, write func(context.Context) error, changes func() ([]engine.Change, error)) engine.Step {
	return &engine.Observed[struct{}]{
		Name: id, About: title, As: engine.RoleOwn, Changes: changes,
		Look:  func(context.Context) (engine.State, struct{}, error) { return engine.Pending, struct{}{}, nil },
		Write: func(ctx context.Context, _ struct{}) error { return write(ctx) },
		Proof: func(context.Context) error { return nil },
	}
}
