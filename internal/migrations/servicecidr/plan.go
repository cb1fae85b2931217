// Package servicecidr moves the Services of a live cluster to another Service range. plan.go lists
// the phases in order.
package servicecidr

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/hop"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/release"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/network/overlapset"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// commands are the phases of everything that is done to Services.
func commands() migration.Commands[*Planner] {
	return migration.Commands[*Planner]{Apply: applyPhases(), Rollback: rollbackPhases(), Finish: finishPhases()}
}

// phaseKubelets parts apply and rollback in two: pods with an old address are known only after it.
const phaseKubelets = "kubelets"

// applyPhases end where nothing needs the old range and old addresses still answer.
func applyPhases() migration.Phases[*Planner] {
	return migration.Phases[*Planner]{
		migration.CheckPhase[*Planner]("Check the cluster"),
		{
			Name:    "secure",
			Title:   "Record the migration, back up and freeze what it changes",
			Groups:  (*Planner).secure,
			Recheck: true,
			Own:     true,
		},
		{Name: agentset.Phase, Title: "Watch from every node", Groups: (*Planner).watch, Replan: (*Planner).probeAppears},
		// Before the first bridge, which is the canary's.
		{Name: overlapset.Phase, Title: "Keep bridges up to date", Groups: (*Planner).overlap},
		{Name: "extend", Title: "Add the target range", Groups: rangesBy(ranges.RangeSteps.Extend), Recheck: true},
		{Name: "canary", Title: "Move a throw-away Service first", Groups: (*Planner).canary},
		{Name: "move", Title: "Move Services, tier by tier, batch by batch", Groups: movesTo(engine.Forward)},
		{
			Name:    phaseKubelets,
			Title:   "Have kubelets name the new cluster DNS address",
			Groups:  toward(engine.Forward, (*Planner).kubelets),
			Replan:  (*Planner).movesAhead,
			Recheck: true,
		},
		{Name: "refresh", Title: "Restart pods that carry old addresses", Groups: refresh},
		{Name: "repoint", Title: "Retire the old range", Groups: rangesBy(ranges.RangeSteps.Repoint), Recheck: true},
		{Name: "tidy", Title: "Remove the remains of deleted Services", Groups: (*Planner).orphans},
	}
}

// rollbackPhases bring every Service back by bridges that answer on both, then its followers.
func rollbackPhases() migration.Phases[*Planner] {
	return migration.Phases[*Planner]{
		{
			Name:   agentset.Phase,
			Title:  "Watch from every node",
			Groups: func(p *Planner) []engine.Group { return p.Agents.InstallIfPossible() },
		},
		{
			Name:   overlapset.Phase,
			Title:  "Keep bridges up to date",
			Groups: func(p *Planner) []engine.Group { return whileBridged(p, p.Overlap.InstallIfPossible()) },
		},
		{Name: "reopen", Title: "Open the old range again", Groups: rangesBy(ranges.RangeSteps.Reopen)},
		{
			Name:   "late",
			Title:  "Reserve old addresses for Services made in the new range",
			Groups: (*Planner).adopt,
			Replan: (*Planner).adoptsAhead,
		},
		{Name: "return", Title: "Return Services, tier by tier, batch by batch", Groups: (*Planner).back},
		{
			Name:   phaseKubelets,
			Title:  "Have kubelets name the old cluster DNS address",
			Groups: toward(engine.Backward, (*Planner).kubelets),
			Replan: (*Planner).returnsAhead,
		},
		{Name: "refresh", Title: "Restart pods that carry new addresses", Groups: refresh},
		{Name: "restore", Title: "Make the old range the default again", Groups: rangesBy(ranges.RangeSteps.Restore)},
		{Name: "drain", Title: "Let clients forget new addresses", Groups: drain},
		{Name: "release", Title: "Remove bridges and release new addresses", Groups: toward(engine.Backward, (*Planner).release)},
		{Name: "tidy", Title: "Clean up", Groups: toward(engine.Backward, (*Planner).tidy)},
		{Name: "withdraw", Title: "Remove the ranges of the migration that no Service is in", Groups: rangesBy(ranges.RangeSteps.Withdraw)},
	}
}

// finishPhases take the old addresses away. Phase "final" is the point of no return.
func finishPhases() migration.Phases[*Planner] {
	return migration.Phases[*Planner]{
		{Name: agentset.Phase, Title: "Watch from every node", Groups: func(p *Planner) []engine.Group { return p.Agents.Install() }},
		{
			Name:   overlapset.Phase,
			Title:  "Keep bridges up to date",
			Groups: func(p *Planner) []engine.Group { return whileBridged(p, p.Overlap.Install()) },
		},
		{Name: "drain", Title: "Let clients forget old addresses", Groups: drain},
		{Name: "soak", Title: "Wait until no client uses old addresses", Groups: soak},
		{Name: "verify", Title: "Verify every moved Service", Groups: verify},
		{Name: "recheck", Title: "Verify kubelets and API servers once more", Groups: (*Planner).recheck},
		migration.FinalPhase[*Planner](),
		{Name: "release", Title: "Remove bridges and release old addresses", Groups: toward(engine.Forward, (*Planner).release)},
		{Name: "prove", Title: "Prove that every node knows the new addresses", Groups: proveReleased},
		{Name: "tidy", Title: "Clean up", Groups: toward(engine.Forward, (*Planner).tidy)},
	}
}

func movesTo(to engine.Direction) func(*Planner) []engine.Group {
	return func(p *Planner) []engine.Group { return p.moves(to).services() }
}

func toward(to engine.Direction, groups func(*Planner, engine.Direction) []engine.Group) func(*Planner) []engine.Group {
	return func(p *Planner) []engine.Group { return groups(p, to) }
}

// ApplyPhases are the names of the phases of apply, in order.
func ApplyPhases() []string { return commands().Apply.Names() }

// phaseNames are the phases of all commands, which hooks can name.
func phaseNames() []string { return commands().Names() }

// Outlines are the phases of all commands, for people.
func Outlines() []migration.Outline { return []migration.Outline{commands().Outline("")} }

func (p *Planner) Apply() *engine.Plan {
	return commands().Apply.Plan(p, p.Migration, hook.Apply)
}

func (p *Planner) Rollback() *engine.Plan {
	return commands().Rollback.Plan(p, p.Migration, hook.Rollback)
}

func (p *Planner) Finish() *engine.Plan { return commands().Finish.Plan(p, p.Migration, hook.Finish) }

// secure records the migration, and backs up and freezes what it is about to change.
func (p *Planner) secure() []engine.Group {
	s := migration.Securing{Privileged: p.Kubeadm != nil || p.Relayed != nil, Originals: append(originals(p.Inventory), p.Refresh.Originals()...)}
	s.Then = p.reach(p.Inventory.Pending())
	for _, way := range waysOf(p.Inventory.Pending()) {
		if way.Strategy == v1alpha1.StrategyOfEtcd {
			s.Then = append(s.Then, p.canaryOf(way).Written())
			break
		}
	}
	if p.frozen() {
		s.Then = append(s.Then, p.freeze())
	}
	if p.KeepType != nil {
		s.Then = append(s.Then, p.KeepType.Step())
	}
	return append(p.Secure(s), p.lookAtNodes()...)
}

// canary goes first, as long as no Service has gone.
func (p *Planner) canary() []engine.Group {
	pending := p.Inventory.Pending()
	if len(pending) == 0 || len(pending) < len(p.Inventory.Moves) || p.Inventory.Counts().Bridged > 0 {
		return p.trials(pending)
	}
	var steps []engine.Step
	for _, way := range waysOf(pending) {
		steps = append(steps, p.canaryOf(way))
	}
	return append(p.trials(pending), engine.InOrder(steps...)...)
}

// trials are of the kinds of Services that are about to hop, in namespaces where none has.
func (p *Planner) trials(pending []*services.Entry) []engine.Group {
	tried := map[string]bool{v1alpha1.SystemNamespace: true}
	for _, e := range p.Inventory.Moves {
		if e.Position == services.Moved {
			tried[e.Service.Namespace] = true
		}
	}
	var like []*services.Entry
	for _, e := range pending {
		key := e.Service.Namespace + " " + string(e.Service.Spec.Type)
		if e.Position == services.Waiting && e.Hops() && !tried[e.Service.Namespace] && !tried[key] {
			tried[key] = true
			like = append(like, e)
		}
	}
	if len(like) == 0 {
		return nil
	}
	return engine.InOrder(p.steps(engine.Forward).TryArrivals(like))
}

func (p *Planner) canaryOf(way hop.Way) *hop.Canary {
	return &hop.Canary{Steps: p.steps(engine.Forward), Pool: canaryPool(p), Way: way}
}

// waysOf are the ways of some Services, each once, in their order.
func waysOf(all []*services.Entry) (ways []hop.Way) {
	for _, e := range all {
		if way := (hop.Way{Strategy: e.Strategy, Overlap: e.Overlap.Form}); !slices.Contains(ways, way) {
			ways = append(ways, way)
		}
	}
	return ways
}

// canaryPool has the addresses of the canary; API servers with a flag give none of the left range.
func canaryPool(p *Planner) *cidr.Allocator {
	if p.Inventory.Bitmap {
		return p.Inventory.Pool
	}
	return cidr.NewPool(p.spec().From, p.Inventory.Used)
}

func refresh(p *Planner) []engine.Group {
	groups := p.Refresh.groups()
	if len(groups) == 0 {
		return nil
	}
	return append(groups, p.Agents.Learned()...)
}

// back returns every Service that can, and names the others.
func (p *Planner) back() []engine.Group {
	var steps []engine.Step
	for _, e := range p.Inventory.Moves {
		if e.CannotReturn() {
			steps = append(steps, &engine.Wait{
				Name: "stays/" + e.Key().String(), About: fmt.Sprintf("Leave %s at %s: it %s", e.Key(), e.New, e.Reason),
				For: func(context.Context) error { return nil }, Again: true,
			})
		}
	}
	returning := slices.DeleteFunc(p.Inventory.All(), func(e *services.Entry) bool { return !e.Away() || e.CannotReturn() })
	return append(engine.InOrder(append(p.reach(returning), steps...)...), p.moves(engine.Backward).services()...)
}

func (p *Planner) orphans() []engine.Group {
	var bridges, addresses []engine.Step
	for _, e := range p.Inventory.Removed {
		bridges = append(bridges, releaseOf(p, e, e.Old, e.Reason.Text).Step())
	}
	for _, b := range p.Inventory.Orphans {
		bridges = append(bridges, release.RemoveOrphan(p.Tools.Client(), b))
	}
	for i := range p.Inventory.OrphanedReservations {
		addresses = append(addresses, release.RemoveReservation(p.Tools.Client(), &p.Inventory.OrphanedReservations[i]))
	}
	if p.RelayLeft != nil {
		bridges = append(bridges, p.RelayLeft)
	}
	// A bridge is known as one by the addresses that are reserved for it.
	return append(engine.AtOnce(parallel, "", bridges...), engine.AtOnce(parallel, "", addresses...)...)
}

func (p *Planner) tidy(to engine.Direction) []engine.Group {
	// The follower stays as long as a bridge, and agents as long as a bridge of what they call:
	// orphans go before them, since another migration of the set may have made those anew.
	groups := slices.Concat(p.leaveNodes(to), p.orphans(), p.Agents.Dismiss(), p.Overlap.Remove(), p.Leftovers)
	if to == engine.Forward {
		groups = append(groups, p.changes().HandOver()...)
	}
	return append(groups, p.leave(to)...)
}

// leave removes replumb's own objects. On the way back target ranges go last: these are in them.
func (p *Planner) leave(to engine.Direction) []engine.Group {
	steps := append([]engine.Step{p.freeze().Undo()}, p.Thaw()...)
	if (p.Kubeadm != nil || p.Relayed != nil) && p.Agents == nil && len(p.Leftovers) == 0 { // else it goes with agents
		steps = append(steps, p.Unprivilege())
	}
	if p.KeepType != nil {
		steps = append(steps, p.KeepType.Undo())
	}
	if p.Inventory.Bitmap {
		steps = append(steps, p.ranges().Guard("end", nil).Undo())
	}
	steps = append(append(steps, hop.RemoveLeftovers(p.Tools.Client(), p.spec().Name)), p.Forget(migration.Sweep{})...)
	return append(engine.InOrder(steps...), engine.InOrder(nothingLeft(p.Tools.Client(), p.Inventory, to))...)
}

// originals are the objects that are about to be changed for the first time.
func originals(s *services.Inventory) []client.Object {
	var all []client.Object
	for _, e := range s.Moves {
		if e.Position == services.Waiting || e.Position == services.Bridged {
			all = append(all, e.Service)
		}
	}
	if s.Spec.Mode == v1alpha1.ModeExtend || s.Bitmap {
		return all
	}
	for i := range s.Ranges {
		if c := &s.Ranges[i]; ranges.IsEmptied(s, c) {
			all = append(all, c)
		}
	}
	return all
}
