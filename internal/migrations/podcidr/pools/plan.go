package pools

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

const (
	forward  = engine.Forward
	backward = engine.Backward

	phaseRoll = "roll"
)

// Planner makes the plans of a migration of pools.
type Planner struct {
	*podmove.Planner
	pools *Inventory
}

func (s *Inventory) Plans(p *podmove.Planner) podmove.Plans { return &Planner{Planner: p, pools: s} }

// apply is the way to the point where no pod has an old address and the old pools are still there.
func apply() migration.Phases[*Planner] {
	return migration.Phases[*Planner]{
		migration.CheckPhase[*Planner]("Check the cluster"),
		{
			Name: "secure", Title: "Record the migration and back up what it changes", Own: true, Recheck: true,
			Groups: (*Planner).secure,
		},
		lossguard.Phase("", (*Planner).watch),
		{Name: "prepare", Title: "Add one pod to workloads that must keep serving", Recheck: true, Groups: (*Planner).prepare},
		{Name: "add", Title: "Add the target pools", Recheck: true, Groups: (*Planner).add},
		{Name: "canary", Title: "Test the target pools on every node", Groups: (*Planner).canary},
		{Name: "hold", Title: "Keep connections through tunnels open", Recheck: true, Groups: (*Planner).keepTunnels},
		{
			// Only once the old pools are disabled is it certain which pods have old addresses.
			Name: "switch", Title: "Let new pods get new addresses only", Recheck: true, Groups: (*Planner).switchOver,
			Replan: func(p *Planner) bool { return !p.pools.closed(forward) },
		},
		{
			Name: phaseRoll, Title: "Restart pods with old addresses, tier by tier",
			Groups: func(p *Planner) []engine.Group { return p.roll(hook.Apply, forward) },
		},
		{Name: "verify", Title: "Verify that old addresses are unused", Groups: (*Planner).verifyRestarted},
	}
}

// rollback brings every pod back to the old range.
func rollback() migration.Phases[*Planner] {
	return migration.Phases[*Planner]{
		lossguard.Phase("", (*Planner).WatchBack),
		{Name: "hold", Title: "Keep connections through tunnels open", Groups: (*Planner).keepNewTunnels},
		{
			// Until the new pools are closed, pods come and go with new addresses.
			Name: "reopen", Title: "Let new pods get old addresses only", Groups: (*Planner).reopen,
			Replan: func(p *Planner) bool { return !p.pools.closed(backward) },
		},
		{
			Name: phaseRoll, Title: "Restart pods with new addresses, tier by tier",
			Groups: func(p *Planner) []engine.Group { return p.roll(hook.Rollback, backward) },
		},
		{
			Name:   "verify",
			Title:  "Verify that new addresses are unused",
			Groups: func(p *Planner) []engine.Group { return p.verify(backward) },
		},
		{
			Name: "release", Title: "Release the blocks of the target pools",
			Groups: func(p *Planner) []engine.Group { return p.release(backward) },
		},
		{Name: "withdraw", Title: "Delete the target pools", Groups: (*Planner).removeTargets},
		{Name: "tidy", Title: "Clean up", Groups: (*Planner).tidy},
	}
}

// finish deletes the old pools. Its phase "final" is the point of no return.
func finish() migration.Phases[*Planner] {
	return migration.Phases[*Planner]{
		lossguard.Phase("", (*Planner).WatchFinish),
		{
			Name:   "verify",
			Title:  "Verify that old addresses are unused",
			Groups: func(p *Planner) []engine.Group { return p.verify(forward) },
		},
		{Name: "installer", Title: "Wait until the installer has the new range", Groups: (*Planner).installer},
		migration.FinalPhase[*Planner](),
		{
			Name: "release", Title: "Release the blocks of the old pools",
			Groups: func(p *Planner) []engine.Group { return p.release(forward) },
		},
		{Name: "remove", Title: "Delete the old pools", Groups: (*Planner).removeOld},
		{Name: "tidy", Title: "Clean up", Groups: (*Planner).tidy},
	}
}

// Commands are the phases of every command.
func Commands() migration.Commands[*Planner] {
	return migration.Commands[*Planner]{Apply: apply(), Rollback: rollback(), Finish: finish()}
}

func (p *Planner) Apply() *engine.Plan { return apply().Plan(p, p.Migration, hook.Apply) }

func (p *Planner) Rollback() *engine.Plan { return rollback().Plan(p, p.Migration, hook.Rollback) }

func (p *Planner) Finish() *engine.Plan { return finish().Plan(p, p.Migration, hook.Finish) }

func (p *Planner) Left() string {
	fates := p.fates(forward)
	return podmove.StillOld(fates.Names())
}

func (p *Planner) Early() string {
	if !p.pools.Switched() {
		return "the old pools still give addresses to new pods"
	}
	if pods := p.Inventory.OldPods(); pods != "" {
		return pods
	}
	for i := range p.pools.Installations {
		for _, from := range p.Inventory.Spec.From {
			if _, has := p.pools.Installations[i].pool(from); has { // its operator would make the pool again
				return fmt.Sprintf("installation %s lists the old pool %s", p.pools.Installations[i].Name, from)
			}
		}
	}
	return p.Inventory.OldTunnels()
}

func (p *Planner) Kept() []rollout.Reported { return p.fates(forward).Reported }

// fates of the pods that have an address which direction d leaves.
func (p *Planner) fates(d engine.Direction) podmove.Fates {
	return p.Inventory.Fates(p.pools.Leaving(d, p.Tools.Now()))
}

func (p *Planner) secure() []engine.Group {
	var originals []client.Object
	for i := range p.pools.Moves {
		if m := &p.pools.Moves[i]; m.Old != nil && disabledAt(m.Old).IsZero() {
			originals = append(originals, m.Old.Object)
		}
	}
	return p.Record(originals)
}

func (p *Planner) watch() []engine.Group { return p.Watch(p.pools.Switched() && p.Left() == "") }

func (p *Planner) prepare() []engine.Group { return p.Prepare(p.pools.Switched()) }

func (p *Planner) add() []engine.Group {
	var steps []engine.Step
	for i := range p.pools.Moves {
		steps = append(steps, addPool(p.Tools.Cluster, p.Inventory.Spec, &p.pools.Moves[i]))
	}
	return append(p.BeforeAdd(p.pools.Switched()), engine.InOrder(steps...)...)
}

func (p *Planner) installer() []engine.Group { return p.BeforeFinal() }

func (p *Planner) canary() []engine.Group {
	if !p.Tries() || p.pools.Switched() {
		return nil
	}
	step := p.Trial("canary", "Try pods with new addresses out on every node")
	for i := range p.pools.Moves {
		step.Pools = append(step.Pools, p.pools.Moves[i].Name())
	}
	return engine.InOrder(step)
}

// keepTunnels keeps the old addresses of tunnels before their pools are disabled.
func (p *Planner) keepTunnels() []engine.Group {
	if !p.pools.KeepsTunnels() || p.pools.closed(forward) {
		return nil
	}
	s := p.Inventory.Spec
	steps := []engine.Step{
		reserveTunnels(p.Tools.Cluster, s.Name, s.From, tunnelAddresses(p.Inventory.Nodes, s.From)),
		p.keeper(keptOld, s.From).start(p.Tools.Cluster),
	}
	if p.pools.MovesTunnels() {
		steps = append(steps, p.routes(forward).steps()...)
	}
	return engine.InOrder(steps...)
}

// routes are for tunnels that go in direction d.
func (p *Planner) routes(d engine.Direction) *temporaryRoutes {
	s := p.Inventory.Spec
	r := &temporaryRoutes{cluster: p.Tools.Cluster, migration: s.Name, image: p.Image(), which: keptNew, from: s.From, to: s.To}
	if d == backward {
		r.which, r.from, r.to = keptOld, s.To, s.From
	}
	return r
}

// moveTunnels gives tunnels their addresses before Calico has to.
func (p *Planner) moveTunnels(d engine.Direction) []engine.Step {
	if !p.pools.MovesTunnels() || p.pools.closed(d) {
		return nil
	}
	return []engine.Step{p.routes(d).move()}
}

// converged ends what carried packets meanwhile, also what an earlier run left.
func (p *Planner) converged(d engine.Direction) []engine.Step {
	steps := []engine.Step{tunnelsMoved(p.Tools.Cluster, "tunnels", p.Inventory.Spec.Left(d))}
	if p.pools.MovesTunnels() {
		steps = append(steps, p.routes(d).remove("tunnels/land"))
	}
	return steps
}

// keepNewTunnels does the same on the way back, if tunnels have moved.
func (p *Planner) keepNewTunnels() []engine.Group {
	if !p.pools.KeepsTunnels() || p.pools.closed(backward) || !p.pools.Switched() {
		return nil
	}
	return engine.InOrder(p.keeper(keptNew, p.Inventory.Spec.To).start(p.Tools.Cluster))
}

func (p *Planner) keeper(which string, ranges []netip.Prefix) *tunnelKeeper {
	return &tunnelKeeper{migration: p.Inventory.Spec.Name, image: p.Image(), which: which, ranges: ranges}
}

// switchOver disables the old pools, and has pods prove that they get new addresses.
func (p *Planner) switchOver() []engine.Group {
	var closing []engine.Step
	for i := range p.pools.Moves {
		if old := p.pools.Moves[i].Old; old != nil {
			closing = append(closing, disablePool(p.Tools, old.Name))
		}
	}
	if len(closing) == 0 {
		return nil
	}
	steps := append(p.moveTunnels(forward), closing...)
	if p.Tries() && !p.Proven && !p.Arrived(p.pools.Switched()) {
		steps = append(steps, &proving{p.Trial("prove", "Verify that new pods get new addresses on every node"), p.OnProof})
	}
	return engine.InOrder(append(steps, p.converged(forward)...)...)
}

// proving is a trial that tells when it went well.
type proving struct {
	*connectivity.Step
	onProof func()
}

func (s *proving) Verify(ctx context.Context) error {
	err := s.Step.Verify(ctx)
	if err == nil && s.onProof != nil {
		s.onProof()
	}
	return err
}

// reopen is the switch back.
func (p *Planner) reopen() []engine.Group {
	var opening, closing []engine.Step
	for i := range p.pools.Moves {
		m := &p.pools.Moves[i]
		if m.Old != nil {
			opening = append(opening, enablePool(p.Tools, m.Old.Name))
		}
		closing = append(closing, disablePool(p.Tools, m.Name()))
	}
	if p.pools.MovesTunnels() && !p.pools.closed(backward) && p.pools.Switched() {
		opening = append(opening, p.routes(backward).steps()...)
	}
	return engine.InOrder(slices.Concat(opening, p.moveTunnels(backward), closing, p.converged(backward))...)
}

// verify proves that nothing has an address of what direction d leaves.
func (p *Planner) verify(d engine.Direction) []engine.Group {
	return p.VerifyVacant(p.Inventory.Spec.Left(d))
}

// verifyRestarted ends apply. Pods that are only reported concern finish.
func (p *Planner) verifyRestarted() []engine.Group {
	return engine.InOrder(p.restarted(), tunnelsMoved(p.Tools.Cluster, "verify/tunnels", p.Inventory.Spec.From))
}

func (p *Planner) release(d engine.Direction) []engine.Group {
	var steps []engine.Step
	if p.pools.KeepsTunnels() {
		steps = append(steps, releaseTunnels(p.Tools.Cluster, p.Inventory.Spec.Name))
	}
	if p.pools.MovesTunnels() { // of a run that ended in between
		steps = append(steps, p.routes(d).remove("release/land"))
	}
	for _, cidr := range p.Inventory.Spec.Left(d) {
		steps = append(steps, releaseBlocks(p.Tools.Cluster, cidr))
	}
	return engine.InOrder(steps...)
}

func (p *Planner) removeOld() []engine.Group {
	var steps []engine.Step
	for i := range p.pools.Moves {
		if m := &p.pools.Moves[i]; m.Old != nil {
			steps = append(steps, removePool(p.Tools.Cluster, m.Old.Name, m.From))
		}
	}
	return engine.InOrder(steps...)
}

func (p *Planner) removeTargets() []engine.Group {
	var steps []engine.Step
	for i := range p.pools.Moves {
		m := &p.pools.Moves[i]
		steps = append(steps, removePool(p.Tools.Cluster, m.Name(), m.To))
	}
	return engine.InOrder(steps...)
}

func (p *Planner) tidy() []engine.Group {
	var steps []engine.Step
	if p.pools.KeepsTunnels() {
		steps = append(steps, unreserveTunnels(p.Tools.Cluster, p.Inventory.Spec.Name))
	}
	return p.Tidy(append(steps, p.ScaleBack())...)
}
