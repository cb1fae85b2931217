package noderanges

import (
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// The order of phases where Cilium's operator gives nodes their ranges: it takes back a range other
// than the one that it has reserved for a node, and reserves one by name only for a node for which
// it has none (reuseIPNets in operator/pkg/ipam/allocator/podcidr in github.com/cilium/cilium). So
// it has the pool that nodes move to first, and leaves those that have not moved alone. A
// CiliumPodIPPool has both ranges meanwhile, of which the next one comes first.

// poolApply is the way to the point where every CiliumNode has a range of the target.
func poolApply() migration.Phases[*Planner] {
	return append(opening(), migration.Phases[*Planner]{
		{
			Name: "pool", Title: "Have Cilium's operator give nodes ranges of the target",
			Groups: func(p *Planner) []engine.Group { return p.changePool(forward) },
		},
		{
			Name: "nodes", Title: "Move nodes to the target, one after the other",
			Groups: func(p *Planner) []engine.Group { return p.moveNodes(forward) },
		},
		{
			Name: "verify", Title: "Verify that old addresses are unused",
			Groups: func(p *Planner) []engine.Group { return p.verify(forward) },
		},
	}...)
}

func poolRollback() migration.Phases[*Planner] {
	return migration.Phases[*Planner]{
		lossguard.Phase("", (*Planner).WatchBack),
		{
			Name: "pool", Title: "Have Cilium's operator give nodes the former ranges",
			Groups: func(p *Planner) []engine.Group { return p.changePool(backward) },
		},
		{
			Name: "nodes", Title: "Move nodes back, one after the other",
			Groups: func(p *Planner) []engine.Group { return p.moveNodes(backward) },
		},
		{
			Name: "verify", Title: "Verify that new addresses are unused",
			Groups: func(p *Planner) []engine.Group { return p.verify(backward) },
		},
		{Name: "tidy", Title: "Clean up", Groups: func(p *Planner) []engine.Group { return p.tidyPool(backward) }},
	}
}

// poolFinish forgets the old ranges. Its phase "final" is the point of no return.
func poolFinish() migration.Phases[*Planner] {
	return migration.Phases[*Planner]{
		lossguard.Phase("", (*Planner).WatchFinish),
		{
			Name: "verify", Title: "Verify that old addresses are unused",
			Groups: func(p *Planner) []engine.Group { return p.verify(forward) },
		},
		migration.FinalPhase[*Planner](),
		{Name: "tidy", Title: "Clean up", Groups: func(p *Planner) []engine.Group { return p.tidyPool(forward) }},
	}
}

// PoolCommands are the phases of every command where Cilium's operator gives nodes their ranges.
func PoolCommands() migration.Commands[*Planner] {
	return migration.Commands[*Planner]{Apply: poolApply(), Rollback: poolRollback(), Finish: poolFinish()}
}

func (p *Planner) commands() migration.Commands[*Planner] {
	if p.nodes.pooled() {
		return PoolCommands()
	}
	return Commands()
}

func (p *Planner) changePool(d engine.Direction) []engine.Group {
	if p.nodes.Cilium.Pool != nil {
		pool := p.podPool()
		return engine.InOrder(pool.offer(d), pool.restartOperator())
	}
	c := cilium{tools: p.Tools, nodes: p.nodes, migration: p.Inventory.Spec.Name}
	return engine.InOrder(c.configure(d), c.restartOperator(d))
}

func (p *Planner) podPool() podPool { return podPool{tools: p.Tools, nodes: p.nodes} }

func (p *Planner) tidyPool(d engine.Direction) []engine.Group {
	c := cilium{tools: p.Tools, nodes: p.nodes, migration: p.Inventory.Spec.Name}
	forget := c.forget()
	if p.nodes.Cilium.Pool != nil {
		forget = p.podPool().settle(d)
	}
	further := []engine.Step{p.ScaleBack(), clearNotes(p.Tools, p.Inventory.Spec.Name), forget}
	if p.nodes.holdsAddress() && p.Agents == nil && len(p.Remains) == 0 { // else it goes with agents
		further = append(further, p.Unprivilege())
	}
	return p.Tidy(further...)
}
