package rehearsal

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// plan takes from the plan of the snapshot what a rehearsal does not do.
func (m *rehearsal) plan(ctx context.Context, file string) error {
	s, err := m.program.run(ctx, "plan", "-o", "json", "-f", file, "--from", m.Snapshot)
	if err != nil {
		return err
	}
	if s.code != codeDone && s.code != codeBlocked {
		return failure("plan", s)
	}
	var planned planned
	if err := json.Unmarshal(s.stdout, &planned); err != nil {
		return fmt.Errorf("reading what replumb plan says: %w", err)
	}
	planned.services(&m.report.Services)
	batches, restarts := planned.steps()
	m.report.Restarts = append(m.report.Restarts, restarts...)
	m.report.WaitsLeftOut = (time.Duration(batches)*m.settings.Settle + m.settings.Pauses).Seconds()
	return nil
}

// planned is what a rehearsal reads of the output of replumb plan.
type planned struct {
	Services []struct{ Strategy, Risk string }
	Phases   []struct {
		Name  string
		Steps []struct {
			ID, Title string
			Role      engine.StepRole
		}
	}
}

// services counts the Services of a plan.
func (p *planned) services(into *Fates) {
	for _, svc := range p.Services {
		if svc.Strategy == "pin" || svc.Strategy == "stay" {
			into.Stay++
			continue
		}
		into.Move++
		if svc.Risk != "" {
			into.AtRisk++
		}
	}
}

// steps are the number of batches of a plan, each of which ends with a wait, and the titles of its restarts.
func (p *planned) steps() (batches int, restarts []string) {
	restarting := []engine.StepRole{engine.RoleWait, engine.RoleMove, engine.RoleWrite}
	for _, phase := range p.Phases {
		for _, step := range phase.Steps {
			switch {
			case phase.Name == "move" && step.Role == engine.RoleBarrier:
				batches++
			case phase.Name == "refresh" && slices.Contains(restarting, step.Role):
				restarts = append(restarts, step.Title)
			}
		}
	}
	return batches, restarts
}
