package servicecidr

import (
	"github.com/replumb/replumb/internal/engine"
)

func (p *Planner) watch() []engine.Group {
	if p.Left() == "" {
		return nil
	}
	return p.Agents.Install()
}

// probeAppears reports whether a Service that agents call, and whose move cannot be planned, is yet
// to be made.
func (p *Planner) probeAppears() bool {
	return p.Agents != nil && !p.Inventory.HasProbes() && len(p.Inventory.Pending()) > 0
}
