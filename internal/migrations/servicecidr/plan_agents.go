package servicecidr

import (
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/hop"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/verify/lossguard"
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

// soak waits until no client uses old addresses.
func (p *Planner) soak() []engine.Group {
	if p.Agents == nil || p.LeaveClients {
		return nil
	}
	length := time.Minute
	if s := p.spec().Common.Proof.Soak; s != nil {
		length = s.Duration
	}
	return engine.InOrder(&lossguard.Soak{
		Client:    p.Tools.Client(),
		Migration: p.spec().Name,
		Watch:     p.Agents.Watch,
		Addresses: p.leaving(engine.Forward),
		Length:    length,
		Limit:     p.Agents.Wait,
		Within:    length + p.spec().GateWait,
		Now:       p.Tools.Now,
	})
}

// stopProbing has agents leave the addresses alone that a direction leaves.
func (p *Planner) stopProbing(to engine.Direction) []engine.Group {
	if p.Agents == nil {
		return nil
	}
	groups := engine.InOrder(&lossguard.Leave{Watch: p.Agents.Watch, Addresses: p.leaving(to), Limit: p.Agents.Wait})
	if to == engine.Backward {
		return p.Agents.BestEffort(groups)
	}
	return groups
}

// leaving are the addresses, as texts, that a direction leaves: those that Services leave, and the
// bridges' own. For as long as a hop lasts the name of a Service leads to the own address of its
// bridge, and who looks names up once may have kept that.
func (p *Planner) leaving(to engine.Direction) map[string]bool {
	all := map[string]bool{}
	for _, e := range p.Inventory.All() {
		left, _ := e.Ends(to)
		all[left.String()] = true
		if e.Bridge != nil {
			for _, own := range services.AddressesOf(e.Bridge) {
				all[own.String()] = true
			}
		}
	}
	return all
}

// barriers are those of a direction. A run that goes back stops for nothing that agents report, or
// do not report.
func (p *Planner) barriers(to engine.Direction) *hop.Barriers {
	b := &hop.Barriers{
		Client: p.Tools.Client(), Migration: p.spec().Name, Pool: p.pool(to),
		Mode: p.spec().Barrier, Wait: p.spec().BarrierWait, Limit: max(time.Minute, p.spec().BarrierWait), Now: p.Tools.Now,
		Also: p.Inventory.OtherFamily(),
	}
	health := bridge.HealthChecks{Probe: p.Probe}
	back := to == engine.Backward
	switch {
	case p.Agents == nil || b.Mode != v1alpha1.BarrierAgent && b.Mode != "":
		b.Witness = health
	case back:
		b.Agents, b.Witness = p.Agents.Watch, bridge.Either{First: p.Agents.Watch, Second: health}
	default:
		b.Agents, b.Witness = p.Agents.Watch, p.Agents.Watch
	}
	if p.Agents != nil && !back { // an agent that is silent is reported as that, and not as a kube-proxy that is slow
		b.Limit = max(b.Limit, p.Agents.Wait+moreThanSilence)
	}
	return b
}

// moreThanSilence is by how much a barrier is more patient than what notices that an agent is
// silent.
const moreThanSilence = 30 * time.Second
