package servicecidr

import (
	"context"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// phaseAgents puts agents on nodes. What comes after it is planned anew if they had no Service to call.
const phaseAgents = agentset.Phase

// agents are those that watch the migration.
func (j *Job) agents() *lossguard.AgentConfig {
	c := &j.agentConfig
	c.Cluster, c.Migration, c.Spec, c.Own, c.Now = j.Tools.Cluster, j.Spec.Name, j.Spec.Common.Proof, j.Tools.Image, j.Tools.Now
	c.None = j.Spec.Mode == v1alpha1.ModeExtend
	return c
}

// hasImage refuses agents that there is no image for, and barriers that need agents where there are none.
func (j *Job) hasImage() error {
	c := j.agents()
	if j.Spec.Barrier != v1alpha1.BarrierAgent || c.None {
		return c.Check()
	}
	if c.Spec.Agents == v1alpha1.AgentsDisabled {
		return &SpecError{
			Field: "spec.serviceCIDR.barrier.mode", Problem: "is Agent, and there are to be no agents",
			Hint: "set barrier.mode: HealthCheck, or let spec.proof.agents be Enabled",
		}
	}
	c.Spec.Agents = v1alpha1.AgentsEnabled
	return c.Check()
}

// newAgents makes the agents of a job, and what follows them; neither, if there are to be none.
func (j *Job) newAgents(p *Planner, nodes int) {
	p.Agents = j.agents().New(nodes)
	if p.Agents == nil {
		return
	}
	p.Agents.Domain = j.Spec.Domain
	if len(p.Survey.Pending()) > 0 {
		p.Agents.Pool = cidr.NewPool(p.Survey.Spec.From, p.Survey.Used)
	}
}

// Blame returns the error that a run ends with which was stopped by a loss.
func (j *Job) Blame(ctx context.Context, loss *lossguard.LossError) error {
	return j.agents().Blame(ctx, loss)
}

// Observer is told of what happens in runs beside their events.
type Observer interface {
	lossguard.Observer
	// Moved is called for a Service that has arrived at another address, forward or back.
	Moved(service, from, to, strategy string, at time.Time, took time.Duration)
}

// Observe has somebody told of what happens while runs go on.
func (j *Job) Observe(o Observer) {
	j.observer = o
	j.agentConfig.Observe(o)
}

// soakFor is how long old addresses must have been unused.
func (p *Planner) soakFor() time.Duration {
	if s := p.spec().Common.Proof.Soak; s != nil {
		return s.Duration
	}
	return time.Minute
}

// agentsIfNeeded does without when apply has nothing left to do.
func (p *Planner) agentsIfNeeded() []engine.Group {
	if p.idle() {
		return nil
	}
	return p.Agents.Install()
}

// moveProbeService moves the Service that agents call, before any other: under their requests, from every node.
func (p *Planner) moveProbeService() []engine.Group {
	e := p.Survey.Probe
	if e == nil || e.Place == Moved {
		return nil
	}
	b := &batch{name: "the Service of probes", entries: []*Entry{e}}
	var groups []engine.Group
	if p.frozen() {
		groups = append(groups, engine.Group{Title: b.String(), Steps: []engine.Step{p.mark(b)}})
	}
	groups = append(groups, p.crossing(b, p.hop)...)
	groups = append(groups, p.connect(b)...)
	return append(groups, engine.Group{Title: b.String(), Steps: p.settle(b.String())})
}

// returnProbeService brings that Service back.
func (p *Planner) returnProbeService() []engine.Group {
	e := p.Survey.Probe
	if e == nil || e.Place != Moved && e.Place != HalfHopped {
		return nil
	}
	b := &batch{name: "the Service of probes", entries: []*Entry{e}}
	return p.crossing(b, func(e *Entry) engine.Step { return p.hop(e).(*hopStep).Undo() })
}

// connect has every node connect to the Services of a batch.
func (p *Planner) connect(b *batch) []engine.Group {
	if p.Agents == nil {
		return nil
	}
	return []engine.Group{{Title: b.String(), Steps: []engine.Step{
		&lossguard.Connected{Watch: p.Agents.Watch, Name: b.String(), Limit: p.barrierLimit()},
	}}}
}

// soak waits until nobody uses old addresses.
func (p *Planner) soak() []engine.Group {
	if p.Agents == nil || p.LeaveClients {
		return nil
	}
	return single(&lossguard.Soak{
		Client:    p.Tools.client(),
		Migration: p.spec().Name,
		Length:    p.soakFor(),
		Limit:     p.Agents.Wait,
		Within:    p.soakFor() + p.spec().GateWait,
		Now:       p.Tools.Now,
	})
}

// stopProbing has agents leave addresses alone that are about to go.
func (p *Planner) stopProbing(going func(*Entry) string) []engine.Group {
	if p.Agents == nil {
		return nil
	}
	all := map[string]bool{}
	for _, e := range p.Survey.everything() {
		all[going(e)] = true
	}
	return single(&lossguard.Leave{Watch: p.Agents.Watch, Addresses: all, Limit: p.Agents.Wait})
}

// witness is who tells that nodes know a sentinel.
func (p *Planner) witness() bridge.Witness {
	mode := p.spec().Barrier
	asked := bridge.HealthChecks{Probe: p.Tools.Probe}
	switch {
	case p.Agents == nil || mode != v1alpha1.BarrierAgent && mode != "":
		return asked
	case p.returning:
		return bridge.Either{First: p.Agents.Watch, Second: asked}
	}
	return p.Agents.Watch
}

// barrierLimit is how long nodes may take. An agent that is silent is told of as that, and not as a kube-proxy that is slow.
func (p *Planner) barrierLimit() time.Duration {
	limit := max(time.Minute, p.spec().BarrierWait)
	if p.Agents != nil && !p.returning {
		limit = max(limit, p.Agents.Wait+moreThanSilence)
	}
	return limit
}

// moreThanSilence is by how much a barrier is more patient than what notices that an agent is silent.
const moreThanSilence = 30 * time.Second
