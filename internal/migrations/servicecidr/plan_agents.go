package servicecidr

import (
	"github.com/replumb/replumb/internal/engine"
)

// watch puts agents on nodes, unless apply has nothing left to do.
func (p *Planner) watch() []engine.Group {
	if p.Left() == "" {
		return nil
	}
	return p.Agents.Install()
}

// probeAppears reports whether a Service that agents call is yet to be made, so that it cannot be
// planned how it moves.
func (p *Planner) probeAppears() bool {
	return p.Agents != nil && !p.Inventory.HasProbes() && len(p.Inventory.Pending()) > 0
}
