package migration

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/lists"
)

// Expectation is a plan that someone has looked at.
type Expectation struct {
	Changes map[string]string
}

// Expect reads what a plan would write, step by step. Steps that write nothing count for nothing.
func Expect(p *engine.Plan) (*Expectation, error) {
	e := &Expectation{Changes: map[string]string{}}
	for _, s := range p.Steps() {
		changes, err := engine.Preview(s)
		if err != nil {
			return nil, err
		}
		if err := e.Add(s.ID(), engine.RoleOf(s), changes); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// Add notes what a step writes, except for replumb's own writes and hooks, which may differ between
// two runs of a plan, and for the Services that agents call: the first run makes them, so that the
// plan before it has none of their steps.
func (e *Expectation) Add(step string, role engine.StepRole, changes []engine.Change) error {
	if len(changes) == 0 {
		return nil
	}
	switch role {
	case engine.RoleOwn, engine.RoleBarrier, engine.RoleFinal, engine.RoleHook:
		return nil
	}
	if strings.Contains(step, "/"+v1alpha1.SystemNamespace+"/") {
		return nil
	}
	body, err := canonical(changes)
	if err != nil {
		return fmt.Errorf("reading step %s: %w", step, err)
	}
	e.Changes[step] = string(body)
	return nil
}

// canonical is JSON with sorted keys, from objects or from a file.
func canonical(changes []engine.Change) ([]byte, error) {
	body, err := json.Marshal(changes)
	if err != nil {
		return nil, err
	}
	var plain any
	if err := json.Unmarshal(body, &plain); err != nil {
		return nil, err
	}
	return json.Marshal(plain)
}

// ChangedPlanError says that a plan is not the one that was looked at.
type ChangedPlanError struct {
	// Added are steps that were not in it, Different those that write something else now.
	Added, Different []string
}

func (e *ChangedPlanError) Error() string {
	var parts []string
	for _, part := range []struct {
		what  string
		steps []string
	}{{"new", e.Added}, {"different", e.Different}} {
		if len(part.steps) > 0 {
			parts = append(parts, part.what+": "+lists.FirstN(part.steps, 10))
		}
	}
	return "the cluster has changed, and the plan with it; " + strings.Join(parts, "; ")
}

func (*ChangedPlanError) Advice() string {
	return "look at the new plan: replumb plan -f FILE; nothing was changed"
}

func (*ChangedPlanError) ExitCode() int { return fault.ExitBlocked }

// Check refuses a plan that exceeds the expected one, with a ChangedPlanError. Missing steps are
// done.
func (e *Expectation) Check(p *engine.Plan) error {
	now, err := Expect(p)
	if err != nil {
		return err
	}
	return e.compare(now)
}

func (e *Expectation) compare(now *Expectation) error {
	changed := &ChangedPlanError{}
	for _, step := range slices.Sorted(maps.Keys(now.Changes)) {
		was, known := e.Changes[step]
		switch {
		case !known:
			changed.Added = append(changed.Added, step)
		case was != now.Changes[step]:
			changed.Different = append(changed.Different, step)
		}
	}
	if len(changed.Added)+len(changed.Different) == 0 {
		return nil
	}
	return changed
}
