package servicecidr

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/hop"
	"github.com/replumb/replumb/internal/migrations/servicecidr/release"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
	"github.com/replumb/replumb/internal/verify/lossguard"
	"github.com/replumb/replumb/internal/verify/probe"
)

// movePlan makes the steps that take Services to their other address, in one direction.
type movePlan struct {
	*migration.Base
	inventory    *services.Inventory
	to           engine.Direction
	run          hook.RunPurpose
	phase        string
	frozen       bool
	steps        *hop.Steps
	agents       *lossguard.Agents
	certificates func() []engine.Step
}

func (p *Planner) moves(to engine.Direction) *movePlan {
	m := &movePlan{
		Base: &p.Base, inventory: p.Inventory, to: to, run: hook.Apply, phase: "move", frozen: p.frozen(), steps: p.steps(to),
		agents: p.Agents, certificates: p.ranges().Certificates,
	}
	if to == engine.Backward {
		m.run, m.phase = hook.Rollback, "return"
	}
	return m
}

func (m *movePlan) services() []engine.Group {
	var groups []engine.Group
	if m.to == engine.Forward {
		groups = m.staleBridges()
	}
	groups = append(groups, m.unthrottled()...)
	groups = append(groups, m.probeService()...)
	batches := m.batches()
	for _, tier := range m.inventory.Tiers {
		var inside []engine.Group
		for _, b := range batches {
			if b.tier == tier {
				inside = append(inside, m.batch(b)...)
			}
		}
		groups = append(groups, m.tier(tier, inside)...)
	}
	return slices.Concat(groups, m.reserved(batches), m.unbridge())
}

// reserved is for what etcd moves, which is not seen by who gives addresses out, and for what is
// found not to be reserved any more.
func (m *movePlan) reserved(batches []*batch) []engine.Group {
	var some []*services.Entry
	for _, b := range batches {
		for _, e := range b.entries {
			if !e.Hops() {
				some = append(some, e)
			}
		}
	}
	for _, e := range m.inventory.All() {
		if _, is := e.Reserved[e.Old]; e.Position == services.Moved && !is {
			some = append(some, e)
		}
	}
	if m.to == engine.Backward || len(some) == 0 {
		return nil
	}
	return engine.AtOnce(1, "", m.steps.StillReserved(some))
}

func (m *movePlan) batches() []*batch {
	var all []*batch
	counts, will := m.inventory.Counts(), map[*services.Entry]bool{}
	for _, tier := range m.inventory.Tiers {
		leaving := m.inventory.InTier(tier)
		if m.to == engine.Backward {
			leaving = m.inventory.Away(tier)
		}
		for _, entries := range services.SplitInBatches(leaving, m.inventory.Spec.Batch) {
			counts.Moved += len(entries)
			for _, e := range entries {
				will[e] = true
			}
			all = append(all, &batch{
				number: len(all) + 1, tier: tier, entries: entries, counts: counts, tiers: m.inventory.TierCounts(will),
			})
		}
	}
	for _, b := range all {
		b.of = len(all)
	}
	return all
}

// batch has bridges, their proof, the hops, the narrowing, and time to look.
func (m *movePlan) batch(b *batch) []engine.Group {
	groups := m.before(b)
	if m.to == engine.Forward && slices.ContainsFunc(b.entries, (*services.Entry).IsKubernetes) {
		groups = append(groups, engine.AtOnce(1, b.String(), m.certificates()...)...)
	}
	groups = append(groups, m.cross(b)...)
	var after []engine.Step
	if m.to == engine.Forward {
		groups = append(groups, m.connect(b)...)
		after = append(after, note(m.Tools.Client(), m.Migration.Name, b))
	}
	groups = append(groups, m.narrow(b)...)
	if m.frozen {
		after = append(after, thaw(m.Tools.Client(), m.Migration.Name, b))
	}
	groups = append(groups, engine.AtOnce(1, b.String(), append(after, m.pause(b)...)...)...)
	return append(groups, m.Hooks(m.occasion(v1alpha1.AfterBatch, b))...)
}

// before is what comes before a batch: the window to be in, hooks, and the freeze.
func (m *movePlan) before(b *batch) []engine.Group {
	var groups []engine.Group
	if windows := m.inventory.Spec.Common.Windows; len(windows) > 0 {
		groups = engine.AtOnce(1, b.String(), window.NewStep("window/"+b.String(), windows, m.Tools.Now))
	}
	groups = append(groups, m.Hooks(m.occasion(v1alpha1.BeforeBatch, b))...)
	if m.frozen {
		groups = append(groups, engine.AtOnce(1, b.String(), mark(m.Tools.Client(), m.Migration.Name, b))...)
	}
	return groups
}

// cross takes a batch over its bridges. Services with node ports hop one by one, each in its sync
// window, and kubernetes is last, when all beside it is proven to work.
func (m *movePlan) cross(b *batch) []engine.Group {
	var bridges, plain, last []engine.Step
	var routed, nodePorts []*services.Entry
	for _, e := range b.entries {
		bridges = append(bridges, m.steps.Bridge(e))
		switch {
		case e.IsKubernetes():
			last = append(last, m.steps.Hop(e, m.to))
		case e.HasNodePorts() && e.Hops():
			nodePorts = append(nodePorts, e)
		case e.Throttled():
			routed = append(routed, e)
		default:
			plain = append(plain, m.steps.Hop(e, m.to))
		}
	}
	groups := slices.Concat(
		m.reserve(b),
		engine.AtOnce(parallel, b.String(), bridges...),
		engine.AtOnce(1, b.String(), m.steps.Answering(b.String(), b.entries)),
		m.give(b),
		engine.AtOnce(parallel, b.String(), plain...),
	)
	for some := range slices.Chunk(routed, bridge.Together) {
		groups = append(groups, m.together(b, some)...)
	}
	for _, e := range nodePorts {
		groups = append(groups, m.together(b, []*services.Entry{e})...)
	}
	return append(groups, engine.AtOnce(1, b.String(), last...)...)
}

// reserve has what etcd moves keep others from its targets. On the way back all are reserved.
func (m *movePlan) reserve(b *batch) []engine.Group {
	some := slices.DeleteFunc(exchanging(b.entries), func(e *services.Entry) bool {
		_, is := e.Reserved[e.New]
		return is
	})
	if len(some) == 0 || m.to == engine.Backward {
		return nil
	}
	return engine.AtOnce(1, b.String(), m.steps.Reserve(b.String(), some))
}

func exchanging(all []*services.Entry) []*services.Entry {
	return slices.DeleteFunc(slices.Clone(all), func(e *services.Entry) bool { return !e.Exchanges() })
}

// give has what etcd moves get its IPAddresses.
func (m *movePlan) give(b *batch) []engine.Group {
	some := exchanging(b.entries)
	if len(some) == 0 {
		return nil
	}
	return engine.AtOnce(1, b.String(), m.steps.Give(b.String(), some, m.to))
}

// together has Services hop beside each other, which ingress controllers do not see.
func (m *movePlan) together(b *batch, some []*services.Entry) []engine.Group {
	var beside []bridge.Routed
	for _, e := range some {
		if e.Throttled() {
			beside = append(beside, bridge.Routed{Service: e.Service, Old: e.Old})
		}
	}
	var hops []engine.Step
	for _, e := range some {
		hops = append(hops, m.steps.HopBeside(e, m.to, beside))
	}
	groups := engine.AtOnce(parallel, b.String(), hops...)
	if len(beside) > 0 {
		groups = append(groups, engine.AtOnce(1, b.String(), m.steps.Unthrottle(some[0].Key().String(), some))...)
	}
	return groups
}

func (m *movePlan) unthrottled() []engine.Group {
	some := slices.DeleteFunc(slices.Clone(m.inventory.Moves), func(e *services.Entry) bool { return !e.Throttled() })
	if len(some) == 0 {
		return nil
	}
	return engine.AtOnce(1, "before the first batch", m.steps.Unthrottle("before", some))
}

func (m *movePlan) narrow(b *batch) []engine.Group {
	var steps []engine.Step
	for _, e := range b.entries {
		if !e.Exchanges() {
			steps = append(steps, m.steps.Narrow(e, m.to))
		}
	}
	return engine.AtOnce(parallel, b.String(), steps...)
}

// recent is for how long an address counts as used after a client was seen there. It is less than
// what drain leaves after name servers have forgotten the address.
const recent = 10 * time.Second

// users asks agents once, when the first bridge may go; without agents nobody is seen.
func (m *movePlan) users() hop.Users {
	if m.agents == nil {
		return func(context.Context, string) (string, error) { return "", nil }
	}
	var once sync.Once
	var all map[string]lossguard.OldAddressClient
	var err error
	return func(ctx context.Context, address string) (string, error) {
		once.Do(func() {
			all, err = lossguard.UsersOf(ctx, m.Tools.Client(), m.Migration.Name, m.Tools.Now().Add(-recent))
		})
		if user, is := all[address]; is {
			return user.PodOrSource() + " on node " + user.Node, nil
		}
		return "", err
	}
}

// tier puts hooks and the pause of a tier around its batches.
func (m *movePlan) tier(tier string, inside []engine.Group) []engine.Group {
	if len(inside) == 0 {
		return nil
	}
	before := m.Hooks(hook.Occasion{Run: m.run, Phase: m.phase, Tier: tier, Moment: v1alpha1.BeforeTier})
	after := m.Hooks(hook.Occasion{Run: m.run, Phase: m.phase, Tier: tier, Moment: v1alpha1.AfterTier})
	for _, t := range m.inventory.Spec.Common.Tiers {
		if t.Name == tier && t.Pause != nil && t.Pause.Duration > 0 {
			after = append(after, engine.AtOnce(1, tier, &migration.PauseStep{
				Name: "pause/" + tier, Length: t.Pause.Duration, Now: m.Tools.Now,
				About: fmt.Sprintf("Wait %s after tier %s", t.Pause.Duration, tier),
			})...)
		}
	}
	return slices.Concat(before, inside, after)
}

func (m *movePlan) occasion(moment v1alpha1.HookMoment, b *batch) hook.Occasion {
	return hook.Occasion{Run: m.run, Moment: moment, Phase: m.phase, Tier: b.tier, Batch: b.number, Services: b.names()}
}

func (m *movePlan) staleBridges() []engine.Group {
	var stale, wide []engine.Step
	for _, e := range m.inventory.All() {
		if e.Position == services.Moved && m.steps.BridgeIsStale(e) {
			stale = append(stale, m.steps.Rebridge(e))
		}
		if e.Position == services.Moved && e.KeepsItself() && e.Bridge != nil {
			wide = append(wide, m.steps.Narrow(e, engine.Forward))
		}
	}
	return append(engine.AtOnce(parallel, "bridges of moved Services", stale...), engine.AtOnce(parallel, "bridges of moved Services", wide...)...)
}

// unbridge removes bridges that were made to cross, once resolvers have forgotten them. After a
// way back, release removes them.
func (m *movePlan) unbridge() []engine.Group {
	var steps []engine.Step
	users := m.users()
	for _, e := range m.inventory.All() {
		if e.KeepsItself() && !e.Exchanges() && (e.Position != services.Moved || e.Bridge != nil) {
			steps = append(steps, m.steps.Unbridge(e, users))
		}
	}
	if len(steps) == 0 || m.to == engine.Backward {
		return nil
	}
	forgotten := release.DrainStep(m.Tools.Client(), m.Migration.Name, m.inventory.Spec.Drain, m.Tools.Now)
	forgotten.Name = "drain/bridges"
	return append(engine.InOrder(forgotten), engine.AtOnce(parallel, "bridges that nobody needs any more", steps...)...)
}

func (m *movePlan) pause(b *batch) []engine.Step {
	length := m.inventory.Spec.Settle
	if length == 0 {
		return nil
	}
	return []engine.Step{&migration.PauseStep{
		Name: "settle/" + b.String(), Length: length, Now: m.Tools.Now, About: fmt.Sprintf("Let %s settle for %s", b, length),
	}}
}

// probeService moves the Services that agents call before any other, under their requests.
func (m *movePlan) probeService() []engine.Group {
	b := &batch{name: "the Service of probes"}
	for _, e := range m.inventory.Probes {
		if m.to == engine.Forward && e.Position != services.Moved || m.to == engine.Backward && e.Away() {
			b.entries = append(b.entries, e)
		}
	}
	if len(b.entries) == 0 {
		return nil
	}
	if m.to == engine.Backward {
		return append(m.cross(b), m.narrow(b)...)
	}
	var groups []engine.Group
	if m.frozen {
		groups = engine.AtOnce(1, b.String(), mark(m.Tools.Client(), m.Migration.Name, b))
	}
	return slices.Concat(groups, m.cross(b), m.connect(b), m.narrow(b), engine.AtOnce(1, b.String(), m.answered(b)...))
}

// answered lets requests end before a user's Service moves: a time-out is seen when it is over.
func (m *movePlan) answered(b *batch) []engine.Step {
	if m.agents == nil {
		return m.pause(b)
	}
	const answer = probe.DefaultTimeout + time.Second
	return []engine.Step{&migration.PauseStep{
		Name: "settle/" + b.String(), Length: max(answer, m.inventory.Spec.Settle), Now: m.Tools.Now,
		About: fmt.Sprintf("Wait for requests to %s that are under way", b),
	}}
}

// connect has every node connect to the Services of a batch.
func (m *movePlan) connect(b *batch) []engine.Group {
	if m.agents == nil {
		return nil
	}
	return engine.AtOnce(1, b.String(), m.agents.Connected(b.String(), m.steps.Barriers.Limit))
}
