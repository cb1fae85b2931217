package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/hop"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/operator/overlapset"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// parallel is how many steps of one group run at once.
const parallel = 32

// commands are the phases of everything that is done to Services.
func commands() migration.Commands[*Planner] {
	return migration.Commands[*Planner]{Apply: applyPhases(), Rollback: rollbackPhases(), Finish: finishPhases()}
}

// phaseKubelets parts apply and rollback in two: which pods still carry an address of before is
// known only once it is over.
const phaseKubelets = "kubelets"

// applyPhases go to the point where nothing needs the old range any more and old addresses still
// answer.
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
		{Name: "extend", Title: "Add the target range", Groups: rangesBy(ranges.Changes.Extend), Recheck: true},
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
		{Name: "repoint", Title: "Retire the old range", Groups: rangesBy(ranges.Changes.Repoint), Recheck: true},
		{Name: "tidy", Title: "Remove the remains of deleted Services", Groups: (*Planner).orphans},
	}
}

// rollbackPhases bring every Service back to its old address, by the bridges that still answer on
// both, and after it whatever had followed the Services.
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
			Groups: func(p *Planner) []engine.Group { return p.overlapping(p.Overlap.InstallIfPossible()) },
		},
		{Name: "reopen", Title: "Open the old range again", Groups: rangesBy(ranges.Changes.Reopen)},
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
		{Name: "restore", Title: "Make the old range the default again", Groups: rangesBy(ranges.Changes.Restore)},
		{Name: "drain", Title: "Let clients forget new addresses", Groups: (*Planner).drain},
		{Name: "release", Title: "Remove bridges and release new addresses", Groups: toward(engine.Backward, (*Planner).release)},
		{Name: "tidy", Title: "Clean up", Groups: toward(engine.Backward, (*Planner).tidy)},
		{Name: "withdraw", Title: "Remove the ranges of the migration that no Service is in", Groups: rangesBy(ranges.Changes.Withdraw)},
	}
}

// finishPhases take the old addresses away. Phase "final" is the point of no return.
func finishPhases() migration.Phases[*Planner] {
	return migration.Phases[*Planner]{
		{Name: agentset.Phase, Title: "Watch from every node", Groups: func(p *Planner) []engine.Group { return p.Agents.Install() }},
		{
			Name:   overlapset.Phase,
			Title:  "Keep bridges up to date",
			Groups: func(p *Planner) []engine.Group { return p.overlapping(p.Overlap.Install()) },
		},
		{Name: "drain", Title: "Let clients forget old addresses", Groups: (*Planner).drain},
		{Name: "soak", Title: "Wait until no client uses old addresses", Groups: (*Planner).soak},
		{Name: "verify", Title: "Verify every moved Service", Groups: (*Planner).verify},
		{Name: "recheck", Title: "Verify kubelets and API servers once more", Groups: (*Planner).recheck},
		migration.FinalPhase[*Planner](),
		{Name: "release", Title: "Remove bridges and release old addresses", Groups: toward(engine.Forward, (*Planner).release)},
		{Name: "prove", Title: "Prove that every node knows the new addresses", Groups: (*Planner).proveReleased},
		{Name: "tidy", Title: "Clean up", Groups: toward(engine.Forward, (*Planner).tidy)},
	}
}

// movesTo has a movePlan make the steps of a phase.
func movesTo(to engine.Direction) func(*Planner) []engine.Group {
	return func(p *Planner) []engine.Group { return p.moves(to).services() }
}

// toward makes the steps of a phase for one direction.
func toward(to engine.Direction, groups func(*Planner, engine.Direction) []engine.Group) func(*Planner) []engine.Group {
	return func(p *Planner) []engine.Group { return groups(p, to) }
}

// ApplyPhases are the names of the phases of apply, in order.
func ApplyPhases() []string { return commands().Apply.Names() }

// PhaseNames are the phases of all commands, which hooks can name.
func PhaseNames() []string { return commands().Names() }

// Outlines are the phases of all commands, for people.
func Outlines() []migration.Outline { return []migration.Outline{commands().Outline("")} }

// Planner makes plans from a inventory.
type Planner struct {
	migration.Base
	// Probe asks nodes what they know, Inspector API servers how they run.
	Probe     bridge.NodeProbe
	Inspector ranges.Inspector
	Inventory *services.Inventory
	// Forms are those of new bridges by namespace, Form is that of all others.
	Forms map[string]v1alpha1.BridgeForm
	Form  v1alpha1.BridgeForm
	// CanFreeze says whether the cluster takes the policy that freezes Services.
	CanFreeze bool
	// Origin is what the instructions of gates depend on.
	Origin cluster.Origin
	// Agents prove on every node what goes on; nil if there are none.
	Agents *lossguard.Agents
	// Overlap keeps bridges in step between commands; nil if nothing does.
	Overlap *overlapset.Set
	// OverlapWell says that it is alive, as far as the user may see.
	OverlapWell bool
	// Store is where API servers keep the Services that move by etcd; nil, if none does.
	Store hop.Store
	// Leftovers takes away what an earlier run has left of agents, and of Overlap.
	Leftovers []engine.Group
	// Observer, if set, hears of Services that have moved.
	Observer hop.MoveObserver
	// LeaveClients has finish not wait for clients of old addresses.
	LeaveClients bool
	// CreatedDuring are the Services made in the target range which a rollback moves to the old
	// one.
	CreatedDuring []CreatedDuring
	// Refresh is what has to be restarted for pods to get rid of old addresses.
	Refresh Refresh

	// tracker has what the steps of a run have written of each Service.
	tracker hop.Tracker
	// returning has the free addresses of the old range, once it is asked for.
	returning *cidr.Pool
}

func (p *Planner) Apply() *engine.Plan {
	return commands().Apply.Plan(p, p.Migration, hook.Apply)
}

func (p *Planner) Rollback() *engine.Plan {
	return commands().Rollback.Plan(p, p.Migration, hook.Rollback)
}

func (p *Planner) Finish() *engine.Plan { return commands().Finish.Plan(p, p.Migration, hook.Finish) }

func (p *Planner) spec() services.Spec { return p.Inventory.Spec }

// secure records the migration, backs up what is about to be changed for the first time, and
// freezes it.
func (p *Planner) secure() []engine.Group {
	s := migration.Securing{Originals: append(originals(p.Inventory), p.Refresh.Originals()...)}
	if p.frozen() {
		s.Then = []engine.Step{p.freeze()}
	}
	return p.Secure(s)
}

// frozen reports whether Services in flight are frozen.
func (p *Planner) frozen() bool {
	return p.CanFreeze && p.spec().Common.Freeze != v1alpha1.FreezeDisabled && p.spec().Mode != v1alpha1.ModeExtend
}

func (p *Planner) freeze() *freeze.Step {
	return &freeze.Step{Client: p.Tools.Client(), Migration: p.spec().Name}
}

// canary goes first, as long as no Service has gone.
func (p *Planner) canary() []engine.Group {
	pending := p.Inventory.Pending()
	if len(pending) == 0 || len(pending) < len(p.Inventory.Moves) || p.Inventory.Counts().Bridged > 0 {
		return nil
	}
	return engine.InOrder(&hop.Canary{Steps: p.steps(engine.Forward), Pool: p.canaryPool()})
}

// canaryPool has the addresses between which the canary moves: there, and back. API servers that
// have a flag give none of the range that is left.
func (p *Planner) canaryPool() *cidr.Pool {
	if p.Inventory.Bitmap {
		return p.Inventory.Pool
	}
	return cidr.NewPool(p.spec().From, p.Inventory.Used)
}

// pool has the addresses that replumb takes for itself in a direction.
func (p *Planner) pool(to engine.Direction) *cidr.Pool {
	if p.Inventory.Bitmap && to == engine.Backward {
		if p.returning == nil {
			p.returning = returnPool(p.Inventory)
		}
		return p.returning
	}
	return p.Inventory.Pool
}

// refresh restarts workloads, a tier at a time.
func refresh(p *Planner) []engine.Group { return p.Refresh.groups() }

// each makes a step for every Service of the migration that has something of it left: those never
// touched have not.
func (p *Planner) each(step func(*services.Entry) engine.Step) []engine.Group {
	var steps []engine.Step
	for _, e := range p.Inventory.All() {
		if e.Begun() {
			steps = append(steps, step(e))
		}
	}
	return engine.AtOnce(parallel, "", steps...)
}

// verify looks whether every Service is where it was to go.
func (p *Planner) verify() []engine.Group {
	listed := &hop.ServiceList{}
	return p.each(func(e *services.Entry) engine.Step {
		return hop.ArrivalStep(p.Tools.Client(), listed, e, p.spec().Domain)
	})
}

// release takes the addresses away that a direction leaves, and what kept them answering. Finish
// does that batch by batch, each with a barrier and time to look, so that a loss stops it before
// the next. A rollback is at the Services' own addresses, and stops for nothing.
func (p *Planner) release(to engine.Direction) []engine.Group {
	groups := p.stopProbing(to)
	all := p.each(func(e *services.Entry) engine.Step {
		_, at := e.Ends(to)
		if e.CannotReturn() {
			at = e.New
		}
		return p.releaseOf(e, at, "")
	})
	if to == engine.Backward || len(all) == 0 {
		return append(groups, all...)
	}
	batches := slices.Collect(slices.Chunk(all[0].Steps, p.spec().Batch))
	barriers := p.barriers(to)
	for i, steps := range batches {
		name := fmt.Sprintf("release %d of %d", i+1, len(batches))
		groups = append(groups, engine.AtOnce(parallel, name, steps...)...)
		if i+1 == len(batches) { // phase prove is its barrier
			break
		}
		after := []engine.Step{barriers.Step(name)}
		if p.spec().Settle > 0 {
			after = append(after, &migration.PauseStep{
				Name: "settle/" + name, Length: p.spec().Settle, Now: p.Tools.Now,
				About: fmt.Sprintf("Let %s settle for %s", name, p.spec().Settle),
			})
		}
		groups = append(groups, engine.AtOnce(1, name, after...)...)
	}
	return groups
}

func (p *Planner) releaseOf(e *services.Entry, at netip.Addr, why string) engine.Step {
	return hop.Release{
		Client:     p.Tools.Client(),
		Migration:  p.spec().Name,
		Entry:      e,
		At:         at,
		Domain:     p.spec().Domain,
		Strategies: p.spec().Strategies,
		Why:        why,
	}.Step()
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
	return append(engine.InOrder(steps...), p.moves(engine.Backward).services()...)
}

// proveReleased passes one more barrier: what is behind it, every node has seen, the removal of the
// bridges included.
func (p *Planner) proveReleased() []engine.Group {
	if len(p.Inventory.Moves) == 0 {
		return nil
	}
	return engine.InOrder(p.barriers(engine.Forward).Step("released addresses"))
}

// drain waits until clients have forgotten the addresses that are left.
func (p *Planner) drain() []engine.Group {
	return engine.InOrder(hop.DrainStep(p.Tools.Client(), p.spec().Name, p.spec().Drain, p.Tools.Now))
}

// orphans removes what Services that were deleted, or that left the migration, have left behind.
func (p *Planner) orphans() []engine.Group {
	var bridges, addresses []engine.Step
	for _, e := range p.Inventory.Removed {
		bridges = append(bridges, p.releaseOf(e, e.Old, e.Reason.Text))
	}
	for _, b := range p.Inventory.Orphans {
		bridges = append(bridges, hop.RemoveOrphan(p.Tools.Client(), b))
	}
	for i := range p.Inventory.OrphanedReservations {
		addresses = append(addresses, hop.ReleaseOrphaned(p.Tools.Client(), &p.Inventory.OrphanedReservations[i]))
	}
	// A bridge is known as one by the addresses that are reserved for it.
	return append(engine.AtOnce(parallel, "", bridges...), engine.AtOnce(parallel, "", addresses...)...)
}

// tidy removes what the migration leaves behind in a direction.
func (p *Planner) tidy(to engine.Direction) []engine.Group {
	// What keeps bridges in step stays as long as there is one. Orphans go before agents, which
	// stay as long as what they call has a bridge: another migration of a set that had them
	// meanwhile has made it again, and the bridge of the former one is an orphan.
	groups := slices.Concat(p.orphans(), p.Agents.Dismiss(), p.Overlap.Remove(), p.Leftovers)
	if to == engine.Forward {
		groups = append(groups, p.changes().HandOver()...)
	}
	return append(groups, p.leave(to)...)
}

// leave removes what replumb keeps for itself, and looks that nothing is left. On the way back the
// target ranges go last: what replumb keeps for itself is in them.
func (p *Planner) leave(to engine.Direction) []engine.Group {
	steps := append([]engine.Step{p.freeze().Undo()}, p.Thaw()...)
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
		if c := &s.Ranges[i]; ranges.Empties(s, c) {
			all = append(all, c)
		}
	}
	return all
}

// returnPool has the free addresses of the old range, of which replumb takes those that it needs
// for itself on the way back.
func returnPool(s *services.Inventory) *cidr.Pool {
	pool := cidr.NewPool(s.Spec.From, s.Used)
	for _, e := range s.All() {
		if e.Old.IsValid() { // where it returns to
			pool.Use(e.Old)
		}
	}
	return pool
}
