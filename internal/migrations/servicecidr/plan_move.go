package servicecidr

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
)

// move is the heart: tier by tier, batch by batch.
func (p *Planner) move() []engine.Group {
	groups := append(p.follow(), p.moveProbeService()...)
	counts := p.Survey.Counts()
	total := 0
	for _, tier := range p.Survey.Tiers {
		total += len(chunk(p.Survey.InTier(tier), p.spec().Batch))
	}
	number := 0
	will := map[*Entry]bool{}
	for _, tier := range p.Survey.Tiers {
		var inside []engine.Group
		for _, entries := range chunk(p.Survey.InTier(tier), p.spec().Batch) {
			number++
			counts.Moved += len(entries)
			for _, e := range entries {
				will[e] = true
			}
			b := &batch{number: number, of: total, tier: tier, entries: entries, counts: counts, tiers: p.Survey.TierCounts(will)}
			inside = append(inside, p.moveBatch(b)...)
		}
		groups = append(groups, p.around(hook.Apply, "move", tier, inside)...)
	}
	if number > 0 && p.frozen() {
		groups = append(groups, engine.Group{Steps: []engine.Step{&markStep{tools: p.Tools, migration: p.spec().Name, id: "none"}}})
	}
	return groups
}

// batch is what moves together.
type batch struct {
	// name is what it is called, if it has no number.
	name       string
	number, of int
	tier       string
	entries    []*Entry
	// counts are those of the whole migration once the batch has moved.
	counts v1alpha1.Counts
	tiers  []v1alpha1.TierStatus
}

func (b *batch) String() string { return cmp.Or(b.name, fmt.Sprintf("batch %d of %d", b.number, b.of)) }

func (b *batch) keys() []types.NamespacedName {
	keys := make([]types.NamespacedName, len(b.entries))
	for i, e := range b.entries {
		keys[i] = e.Key()
	}
	return keys
}

func (b *batch) names() []string {
	names := make([]string, len(b.entries))
	for i, e := range b.entries {
		names[i] = e.Key().String()
	}
	return names
}

// moveBatch: the bridges, the proof that every node knows them, the hops, and time to look.
func (p *Planner) moveBatch(b *batch) []engine.Group {
	groups := p.approach(hook.Apply, "move", b)
	if slices.ContainsFunc(b.entries, (*Entry).IsKubernetes) {
		groups = append(groups, engine.Group{Title: b.String(), Steps: []engine.Step{p.certificates()}})
	}
	groups = append(groups, p.crossing(b, p.hop)...)
	groups = append(groups, p.connect(b)...)
	note := &noteStep{tools: p.Tools, migration: p.spec().Name, batch: b.String(), counts: b.counts, tiers: b.tiers}
	groups = append(groups, engine.Group{Title: b.String(), Steps: append([]engine.Step{note}, p.settle(b.String())...)})
	return append(groups, p.hooks(p.occasion(hook.Apply, v1alpha1.AfterBatch, "move", b))...)
}

// approach is what comes before a batch: the window to be in, hooks, and the freeze.
func (p *Planner) approach(run hook.Run, phase string, b *batch) []engine.Group {
	var groups []engine.Group
	if windows := p.spec().Common.Windows; len(windows) > 0 {
		groups = append(groups, engine.Group{
			Title: b.String(), Steps: []engine.Step{window.NewStep("window/"+b.String(), windows, p.Tools.now)},
		})
	}
	groups = append(groups, p.hooks(p.occasion(run, v1alpha1.BeforeBatch, phase, b))...)
	if p.frozen() {
		groups = append(groups, engine.Group{Title: b.String(), Steps: []engine.Step{p.mark(b)}})
	}
	return groups
}

// mark has the freeze hold the Services of a batch.
func (p *Planner) mark(b *batch) engine.Step {
	return &markStep{tools: p.Tools, migration: p.spec().Name, id: b.String(), keys: b.keys()}
}

// crossing takes a batch over its bridges. Services with node ports hop one after the other: each needs a sync window of
// the kube-proxies for itself. kubernetes hops last, when everything beside it is proven to work.
func (p *Planner) crossing(b *batch, hop func(*Entry) engine.Step) []engine.Group {
	var plainHops, nodePorts, last []*Entry
	for _, e := range b.entries {
		switch {
		case e.IsKubernetes():
			last = append(last, e)
		case e.HasNodePorts():
			nodePorts = append(nodePorts, e)
		default:
			plainHops = append(plainHops, e)
		}
	}
	return []engine.Group{
		{Title: b.String(), Parallel: parallel, Steps: mapSteps(b.entries, p.bridge)},
		{Title: b.String(), Steps: []engine.Step{p.barrier(b.String())}},
		{Title: b.String(), Parallel: parallel, Steps: mapSteps(plainHops, hop)},
		{Title: b.String(), Parallel: 1, Steps: mapSteps(nodePorts, hop)},
		{Title: b.String(), Steps: mapSteps(last, hop)},
	}
}

// around puts hooks and the pause of a tier around its batches.
func (p *Planner) around(run hook.Run, phase, tier string, inside []engine.Group) []engine.Group {
	if len(inside) == 0 {
		return nil
	}
	o := hook.Occasion{Run: run, Phase: phase, Tier: tier}
	o.Moment = v1alpha1.BeforeTier
	before := p.hooks(o)
	o.Moment = v1alpha1.AfterTier
	after := p.hooks(o)
	for _, t := range p.spec().Common.Tiers {
		if t.Name == tier && t.Pause != nil && t.Pause.Duration > 0 {
			after = append(after, engine.Group{Title: tier, Steps: []engine.Step{&migration.PauseStep{
				Name: "pause/" + tier, Length: t.Pause.Duration, Now: p.Tools.Now,
				About: fmt.Sprintf("Wait %s after tier %s", t.Pause.Duration, tier),
			}}})
		}
	}
	return slices.Concat(before, inside, after)
}

func (p *Planner) occasion(run hook.Run, moment v1alpha1.HookMoment, phase string, b *batch) hook.Occasion {
	return hook.Occasion{Run: run, Moment: moment, Phase: phase, Tier: b.tier, Batch: b.number, Services: b.names()}
}

func (p *Planner) hooks(o hook.Occasion) []engine.Group {
	o.Migration = p.spec().Name
	return hook.Groups(p.spec().Common.Hooks, o)
}

// follow repairs the bridges of Services that moved before and were changed since, or whose bridge was taken away.
func (p *Planner) follow() []engine.Group {
	var stale []engine.Step
	for _, e := range p.Survey.everything() {
		if e.Place != Moved {
			continue
		}
		want := p.bridgeOf(e, e.Service)
		if e.Bridge != nil {
			want.Form = bridge.FormOf(e.Bridge)
		}
		if e.Bridge == nil || e.Mirrored() || bridge.Difference(e.Bridge, want.Build()) != nil {
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
	groups := p.returnProbeService()
	total := 0
	for _, tier := range p.Survey.Tiers {
		total += len(chunk(p.Survey.Away(tier), p.spec().Batch))
	}
	number := 0
	for _, tier := range p.Survey.Tiers {
		var inside []engine.Group
		for _, entries := range chunk(p.Survey.Away(tier), p.spec().Batch) {
			number++
			b := &batch{number: number, of: total, tier: tier, entries: entries}
			inside = append(inside, p.approach(hook.Rollback, "return", b)...)
			inside = append(inside, p.crossing(b, func(e *Entry) engine.Step { return p.hop(e).(*hopStep).Undo() })...)
			inside = append(inside, engine.Group{Title: b.String(), Steps: p.settle(b.String())})
			inside = append(inside, p.hooks(p.occasion(hook.Rollback, v1alpha1.AfterBatch, "return", b))...)
		}
		groups = append(groups, p.around(hook.Rollback, "return", tier, inside)...)
	}
	return groups
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
		return &migration.PauseStep{
			Name: "barrier/" + name, Length: p.spec().BarrierWait, Now: p.Tools.Now,
			About: fmt.Sprintf("Give nodes %s to learn the bridges of %s (not proven)", p.spec().BarrierWait, name),
		}
	}
	return p.proof(name)
}

func (p *Planner) proof(name string) *bridge.Barrier {
	b := &bridge.Barrier{
		Witness: p.witness(), Pool: p.Survey.Pool, Migration: p.spec().Name, Name: name,
		Limit: p.barrierLimit(),
	}
	if p.Tools.Cluster != nil {
		b.Client = p.Tools.Cluster
	}
	return b
}

func (p *Planner) settle(name string) []engine.Step {
	if p.spec().Settle == 0 {
		return nil
	}
	return []engine.Step{&migration.PauseStep{
		Name: "settle/" + name, Length: p.spec().Settle, Now: p.Tools.Now,
		About: fmt.Sprintf("Let %s settle for %s", name, p.spec().Settle),
	}}
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
