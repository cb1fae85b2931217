package migration_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
)

// planOf is a plan of steps that write one object each.
func planOf(steps ...string) *engine.Plan {
	var all []engine.Step
	for _, id := range steps {
		all = append(all, &engine.Write{
			Name: id, Changes: engine.Shows(engine.Change{Verb: "create", Object: "Service " + id}),
		})
	}
	return &engine.Plan{Phases: []engine.Phase{{Name: "move", Groups: engine.InOrder(all...)}}}
}

// TestExpectedPlan: a plan that someone has looked at holds for a second run, for which there are
// Services that agents call, and for no step of anybody else's.
func TestExpectedPlan(t *testing.T) {
	expected, err := migration.Expect(planOf("bridge/shop/web", "narrow/shop/web"))
	if err != nil {
		t.Fatal(err)
	}
	second := planOf("bridge/replumb-system/probe", "narrow/replumb-system/single", "narrow/shop/web")
	if err := expected.Check(second); err != nil {
		t.Errorf("what replumb made for itself since: %v", err)
	}
	err = expected.Check(planOf("bridge/shop/web", "bridge/shop/cart"))
	var changed *migration.ChangedPlanError
	if !errors.As(err, &changed) || !slices.Equal(changed.Added, []string{"bridge/shop/cart"}) {
		t.Errorf("a Service that is new: %v", err)
	}
}
