package servicecidr

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/bridge"
	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/cluster"
	"github.com/replumb/replumb/internal/engine"
)

// parallel is how many steps of one group run at once.
const parallel = 8

// Tools are what steps work with. Plans can be made and shown without them.
type Tools struct {
	Cluster *cluster.Cluster
	Probe   bridge.NodeProbe
	Now     func() time.Time
}

// Planner makes plans from a survey.
type Planner struct {
	Tools     Tools
	Survey    *Survey
	Migration *v1alpha1.Migration
	Findings  check.Findings
	Form      v1alpha1.BridgeForm
	// HasCRD and Recorded say whether the definition of Migration, and this Migration, are in the cluster already.
	HasCRD   bool
	Recorded bool

	proving sync.Mutex
}

// Apply is the way to the point where every Service has moved and old addresses still answer.
func (p *Planner) Apply() *engine.Plan {
	want := p.Migration.DeepCopy()
	want.Spec.Desired = v1alpha1.DesiredApplied
	return &engine.Plan{Name: p.spec().Name, Phases: []engine.Phase{
		{Name: "check", Title: "Check the cluster", Groups: single(&checkStep{findings: p.Findings})},
		{Name: "secure", Title: "Record the migration in the cluster", Groups: inOrder(
			&crdStep{tools: p.Tools, upgrade: p.HasCRD},
			&namespaceStep{tools: p.Tools, migration: p.spec().Name},
			&migrationStep{tools: p.Tools, want: want, recorded: p.Recorded},
		)},
		{Name: "extend", Title: "Add the target range", Groups: p.extend()},
		{Name: "move", Title: "Move Services, batch by batch", Groups: p.move()},
		{Name: "tidy", Title: "Remove what deleted Services left behind", Groups: p.tidy()},
	}}
}

// Outstanding is what of Apply is still to be done, for people to read. Services that have moved are in no plan anyway;
// what comes before them is looked at here.
func (p *Planner) Outstanding(ctx context.Context) *engine.Plan {
	return p.Apply().Outstanding(ctx, "secure", "extend")
}

// Finish takes the old addresses away. Its phase "final" is the point of no return.
func (p *Planner) Finish() *engine.Plan {
	return &engine.Plan{Name: p.spec().Name, Phases: []engine.Phase{
		{Name: "drain", Title: "Let clients forget old addresses", Groups: single(p.drain())},
		{Name: "verify", Title: "Verify every moved Service", Groups: p.each(func(e *Entry) engine.Step {
			return &arrivedStep{tools: p.Tools, entry: e}
		})},
		{Name: "final", Title: "Pass the point of no return", Groups: single(&finalStep{tools: p.Tools, name: p.spec().Name})},
		{Name: "release", Title: "Take bridges and old addresses away", Groups: p.each(func(e *Entry) engine.Step {
			return &releaseStep{tools: p.Tools, migration: p.spec().Name, entry: e, at: e.New}
		})},
		{Name: "tidy", Title: "Remove what is left", Groups: append(append(p.tidy(), p.handOver()...), p.leave()...)},
	}}
}

// Rollback brings every Service back to its old address, by the bridges that still answer on both.
func (p *Planner) Rollback() *engine.Plan {
	withdraw := []engine.Step{}
	for _, s := range p.rangeSteps() {
		withdraw = append(withdraw, s.Undo())
	}
	return &engine.Plan{Name: p.spec().Name, Phases: []engine.Phase{
		{Name: "return", Title: "Return Services, batch by batch", Groups: p.giveBack()},
		{Name: "drain", Title: "Let clients forget new addresses", Groups: single(p.drain())},
		{Name: "release", Title: "Take bridges and new addresses away", Groups: p.each(func(e *Entry) engine.Step {
			return &releaseStep{tools: p.Tools, migration: p.spec().Name, entry: e, at: e.Old}
		})},
		{Name: "tidy", Title: "Remove what is left", Groups: append(p.tidy(), p.leave()...)},
		{Name: "withdraw", Title: "Remove the target range", Groups: inOrder(withdraw...)},
	}}
}

func (p *Planner) spec() Spec { return p.Survey.Spec }

func (p *Planner) extend() []engine.Group {
	var steps []engine.Step
	for _, s := range p.rangeSteps() {
		steps = append(steps, s)
	}
	return inOrder(steps...)
}

func (p *Planner) rangeSteps() []*rangeStep {
	var steps []*rangeStep
	for i, r := range p.spec().To {
		steps = append(steps, &rangeStep{tools: p.Tools, migration: p.spec().Name, name: RangeName(p.spec(), i), cidr: r})
	}
	return steps
}

// RangeName is the name of the ServiceCIDR of the i-th target range.
func RangeName(spec Spec, i int) string {
	if len(spec.To) == 1 {
		return spec.Name
	}
	return fmt.Sprintf("%s-%d", spec.Name, i)
}

// move is the heart: per batch the bridges, the proof that every node knows them, the hops, and time to look.
func (p *Planner) move() []engine.Group {
	groups := p.follow()
	batches := chunk(p.Survey.Pending(), p.spec().Batch)
	counts := p.Survey.Counts()
	for i, batch := range batches {
		counts.Moved += len(batch)
		name := fmt.Sprintf("batch %d of %d", i+1, len(batches))
		groups = append(
			groups,
			engine.Group{Title: name, Parallel: parallel, Steps: mapSteps(batch, p.bridge)},
			engine.Group{Title: name, Steps: []engine.Step{p.barrier(name)}},
			engine.Group{Title: name, Parallel: parallel, Steps: mapSteps(batch, p.hop)},
			engine.Group{
				Title: name,
				Steps: []engine.Step{&noteStep{tools: p.Tools, migration: p.spec().Name, batch: name, counts: counts}, p.settle(name)},
			},
		)
	}
	return groups
}

// follow repairs the bridges of Services that moved before and were changed since, or whose bridge was taken away.
func (p *Planner) follow() []engine.Group {
	var stale []engine.Step
	for _, e := range p.Survey.Moves {
		if e.Place != Moved {
			continue
		}
		want := p.bridgeOf(e, e.Service)
		if e.Bridge != nil {
			want.Form = bridge.FormOf(e.Bridge)
		}
		if e.Bridge == nil || bridge.Difference(e.Bridge, want.Build()) != nil {
			stale = append(stale, p.bridge(e))
		}
	}
	if len(stale) == 0 {
		return nil
	}
	return []engine.Group{{Title: "bridges of moved Services", Parallel: parallel, Steps: stale}}
}

// giveBack is move the other way. A Service that never left its old address has nothing to return from.
func (p *Planner) giveBack() []engine.Group {
	var away []*Entry
	for _, e := range p.Survey.Moves {
		if e.Place == Moved || e.Place == HalfHopped {
			away = append(away, e)
		}
	}
	var groups []engine.Group
	batches := chunk(away, p.spec().Batch)
	for i, batch := range batches {
		name := fmt.Sprintf("batch %d of %d", i+1, len(batches))
		back := func(e *Entry) engine.Step { return p.hop(e).(*hopStep).Undo() }
		groups = append(groups,
			engine.Group{Title: name, Parallel: parallel, Steps: mapSteps(batch, p.bridge)},
			engine.Group{Title: name, Steps: []engine.Step{p.barrier(name)}},
			engine.Group{Title: name, Parallel: parallel, Steps: mapSteps(batch, back)},
			engine.Group{Title: name, Steps: []engine.Step{p.settle(name)}},
		)
	}
	return groups
}

// each makes a step for every Service of the migration that has something of it left: those never touched have not.
func (p *Planner) each(step func(*Entry) engine.Step) []engine.Group {
	var steps []engine.Step
	for _, e := range p.Survey.Moves {
		if e.Place != Waiting || e.Touched {
			steps = append(steps, step(e))
		}
	}
	return []engine.Group{{Parallel: parallel, Steps: steps}}
}

func (p *Planner) tidy() []engine.Group {
	var steps []engine.Step
	for _, b := range p.Survey.Orphans {
		steps = append(steps, &orphanStep{tools: p.Tools, bridge: b})
	}
	for i := range p.Survey.Strays {
		steps = append(steps, &strayStep{tools: p.Tools, migration: p.spec().Name, ip: &p.Survey.Strays[i]})
	}
	return []engine.Group{{Parallel: parallel, Steps: steps}}
}

func (p *Planner) handOver() []engine.Group {
	var steps []engine.Step
	for _, s := range p.rangeSteps() {
		steps = append(steps, &handOverStep{of: s})
	}
	return inOrder(steps...)
}

func (p *Planner) leave() []engine.Group {
	return single((&namespaceStep{tools: p.Tools, migration: p.spec().Name}).Undo())
}

func (p *Planner) bridgeOf(e *Entry, svc *corev1.Service) *bridge.Bridge {
	return &bridge.Bridge{Migration: p.spec().Name, Service: svc, Old: e.Old, New: e.New, Form: p.Form}
}

func (p *Planner) bridge(e *Entry) engine.Step {
	return &bridgeStep{planner: p, entry: e}
}

func (p *Planner) hop(e *Entry) engine.Step {
	return &hopStep{planner: p, entry: e}
}

// barrier in mode Wait proves nothing; a finding says so.
func (p *Planner) barrier(name string) engine.Step {
	if p.spec().Barrier == v1alpha1.BarrierWait {
		return &pauseStep{
			id: "barrier/" + name, length: p.spec().BarrierWait, now: p.Tools.Now,
			title: fmt.Sprintf("Give nodes %s to learn the bridges of %s (not proven)", p.spec().BarrierWait, name),
		}
	}
	return p.proof(name)
}

func (p *Planner) proof(name string) *bridge.Barrier {
	b := &bridge.Barrier{
		Probe: p.Tools.Probe, Pool: p.Survey.Pool, Migration: p.spec().Name, Name: name,
		Limit: max(time.Minute, p.spec().BarrierWait),
	}
	if p.Tools.Cluster != nil {
		b.Client = p.Tools.Cluster
	}
	return b
}

func (p *Planner) settle(name string) engine.Step {
	return &pauseStep{
		id: "settle/" + name, length: p.spec().Settle, now: p.Tools.Now,
		title: fmt.Sprintf("Let %s settle for %s", name, p.spec().Settle),
	}
}

func (p *Planner) drain() engine.Step {
	return &drainStep{tools: p.Tools, migration: p.spec().Name, length: p.spec().Drain}
}

func single(s engine.Step) []engine.Group { return inOrder(s) }

func inOrder(steps ...engine.Step) []engine.Group {
	return []engine.Group{{Parallel: 1, Steps: steps}}
}

func mapSteps(entries []*Entry, step func(*Entry) engine.Step) []engine.Step {
	steps := make([]engine.Step, len(entries))
	for i, e := range entries {
		steps[i] = step(e)
	}
	return steps
}

func chunk(entries []*Entry, size int) [][]*Entry {
	var out [][]*Entry
	for len(entries) > size {
		out = append(out, entries[:size])
		entries = entries[size:]
	}
	if len(entries) > 0 {
		out = append(out, entries)
	}
	return out
}
