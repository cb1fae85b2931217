package servicecidr

import (
	"cmp"
	"context"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/addr"
	"github.com/replumb/replumb/internal/agents"
	"github.com/replumb/replumb/internal/bridge"
	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/proof"
)

// phaseAgents puts agents on nodes. What comes after it is planned anew if they had no Service to call.
const phaseAgents = "agents"

// agentImage is what agents run; empty if there are to be none.
func (j *Job) agentImage() string {
	if j.Spec.Common.Proof.Agents == v1alpha1.AgentsDisabled || j.Spec.Mode == v1alpha1.ModeExtend {
		return ""
	}
	return cmp.Or(j.Spec.Common.Proof.Image, j.Tools.Image)
}

// hasImage refuses agents that there is no image for.
func (j *Job) hasImage() error {
	needed := j.Spec.Common.Proof.Agents == v1alpha1.AgentsEnabled || j.Spec.Barrier == v1alpha1.BarrierAgent
	switch {
	case j.agentImage() != "" || j.Spec.Mode == v1alpha1.ModeExtend || !needed:
		return nil
	case j.Spec.Common.Proof.Agents == v1alpha1.AgentsDisabled:
		return &SpecError{
			Field: "spec.serviceCIDR.barrier.mode", Problem: "is Agent, and there are to be no agents",
			Hint: "set barrier.mode: HealthCheck, or let spec.proof.agents be Enabled",
		}
	}
	return &SpecError{
		Field: "spec.proof.image", Problem: "is empty, and this build of replumb knows of no image of its own",
		Hint: "name an image that nodes can pull, or set spec.proof.agents: Disabled",
	}
}

// enlist makes the agents of a job, and what follows them; neither, if there are to be none.
func (j *Job) enlist(p *Planner, nodes int) {
	image := j.agentImage()
	if image == "" {
		return
	}
	j.guard()
	p.Watch = j.watch
	p.Agents = &agents.Set{
		Cluster: j.Tools.Cluster, Migration: j.Spec.Name, Image: image, Domain: j.Spec.Domain, Wait: j.proofWait(), Now: j.Tools.Now,
		Interval: interval(nodes),
	}
	if len(p.Survey.Pending()) > 0 {
		p.Agents.Pool = addr.NewPool(p.Survey.Spec.From, p.Survey.Used)
	}
	j.watch.Reason, j.watch.Ended = p.Agents.Reason, p.Agents.Ended
}

// Blame returns the error that a run ends with which was stopped by a loss.
func (j *Job) Blame(ctx context.Context, loss *proof.LossError) error {
	if j.watch == nil {
		return loss
	}
	return j.watch.Blame(ctx, loss)
}

// interval is how often agents report: so often that API servers take twenty reports a second, in steps, so that agents need not be
// restarted when a node joins.
func interval(nodes int) time.Duration {
	every := 2 * time.Second
	for every < time.Duration(nodes)*time.Second/10 {
		every *= 2
	}
	return every
}

// guard is what follows the agents; nil if there are none.
func (j *Job) guard() *proof.Watch {
	if j.agentImage() == "" || j.Tools.Cluster == nil {
		return nil
	}
	if j.watch == nil {
		j.watch = &proof.Watch{
			Client: j.Tools.Cluster, Migration: j.Spec.Name, Budget: j.Spec.Common.Proof.Budget, Patience: j.proofWait(), Now: j.Tools.Now,
			Status: j.keeper().Status,
		}
	}
	if j.observer != nil {
		j.watch.Observer = j.observer
	}
	return j.watch
}

// Observer is told of what happens in runs beside their events.
type Observer interface {
	proof.Observer
	// Findings are those of a look at the cluster.
	Findings(all check.Findings)
	// Moved is called for a Service that has arrived at another address, forward or back.
	Moved(service, from, to, strategy string, at time.Time, took time.Duration)
}

// Observe has somebody told of what happens while runs go on.
func (j *Job) Observe(o Observer) { j.observer = o }

// found tells of findings.
func (j *Job) found(all check.Findings) {
	if j.observer != nil {
		j.observer.Findings(all)
	}
}

func (j *Job) proofWait() time.Duration {
	if w := j.Spec.Common.Proof.Wait; w != nil {
		return w.Duration
	}
	return 2 * time.Minute
}

// soakFor is how long old addresses must have been unused.
func (p *Planner) soakFor() time.Duration {
	if s := p.spec().Common.Proof.Soak; s != nil {
		return s.Duration
	}
	return time.Minute
}

// agents puts agents on every node, and sees that all is well before anything is changed. What goes back may do so because it is not.
func (p *Planner) agents() []engine.Group {
	switch {
	case p.Agents == nil:
		return nil
	case p.returning:
		return p.Agents.InstallForReturn()
	}
	return append(p.Agents.Install(), single(&proof.Steady{Watch: p.Watch, Limit: p.Agents.Wait})...)
}

// agentsIfNeeded does without when apply has nothing left to do.
func (p *Planner) agentsIfNeeded() []engine.Group {
	if p.idle() {
		return nil
	}
	return p.agents()
}

// vanguard moves the Service that agents call, before any other: under their requests, from every node.
func (p *Planner) vanguard() []engine.Group {
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

// rearguard brings that Service back.
func (p *Planner) rearguard() []engine.Group {
	e := p.Survey.Probe
	if e == nil || e.Place != Moved && e.Place != HalfHopped {
		return nil
	}
	b := &batch{name: "the Service of probes", entries: []*Entry{e}}
	return p.crossing(b, func(e *Entry) engine.Step { return p.hop(e).(*hopStep).Undo() })
}

// connect has every node connect to the Services of a batch.
func (p *Planner) connect(b *batch) []engine.Group {
	if p.Watch == nil {
		return nil
	}
	return []engine.Group{{Title: b.String(), Steps: []engine.Step{
		&proof.Connected{Watch: p.Watch, Name: b.String(), Limit: p.barrierLimit()},
	}}}
}

// soak waits until nobody uses old addresses.
func (p *Planner) soak() []engine.Group {
	if p.Watch == nil || p.LeaveClients {
		return nil
	}
	return single(&proof.Soak{
		Client:    p.Tools.client(),
		Migration: p.spec().Name,
		Length:    p.soakFor(),
		Limit:     p.Agents.Wait,
		Within:    p.soakFor() + p.spec().GateWait,
		Now:       p.Tools.Now,
	})
}

// hush has agents leave addresses alone that are about to go.
func (p *Planner) hush(going func(*Entry) string) []engine.Group {
	if p.Watch == nil {
		return nil
	}
	all := map[string]bool{}
	for _, e := range p.Survey.everything() {
		all[going(e)] = true
	}
	leave := &proof.Leave{Watch: p.Watch, Addresses: all, Limit: p.Agents.Wait}
	if p.returning {
		leave.Moment = min(agents.Moment, p.Agents.Wait/2)
	}
	return single(leave)
}

// dismiss takes the agents away, also those of runs that had some when this one has none.
func (p *Planner) dismiss() []engine.Group {
	switch {
	case p.Agents == nil && p.Survey.Probe != nil:
		return inOrder((&agents.Set{Cluster: p.Tools.Cluster, Migration: p.spec().Name}).Remove()...)
	case p.Agents == nil:
		return nil
	}
	return inOrder(append([]engine.Step{&proof.Dismiss{Watch: p.Watch}}, p.Agents.Remove()...)...)
}

// witness is who tells that nodes know a sentinel.
func (p *Planner) witness() bridge.Witness {
	mode := p.spec().Barrier
	asked := bridge.HealthChecks{Probe: p.Tools.Probe}
	switch {
	case p.Watch == nil || mode != v1alpha1.BarrierAgent && mode != "":
		return asked
	case p.returning:
		return bridge.Either{First: p.Watch, Second: asked}
	}
	return p.Watch
}

// barrierLimit is how long nodes may take. An agent that is silent is told of as that, and not as a kube-proxy that is slow.
func (p *Planner) barrierLimit() time.Duration {
	limit := max(time.Minute, p.spec().BarrierWait)
	if p.Watch != nil && !p.returning {
		limit = max(limit, p.Agents.Wait+moreThanSilence)
	}
	return limit
}

// moreThanSilence is by how much a barrier is more patient than what notices that an agent is silent.
const moreThanSilence = 30 * time.Second
