package servicecidr

import (
	"context"
	"fmt"
	"github.com/replumb/replumb/internal/spec"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/safety/backup"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// parallel is how many steps of one group run at once.
const parallel = 32

// Tools are what steps work with. Plans can be made and shown without them.
type Tools struct {
	Cluster *cluster.Cluster
	Probe   bridge.NodeProbe
	// Image of replumb for agents; empty if this build has none.
	Image     string
	Inspector Inspector
	Now       func() time.Time
}

// client is nil, and not a nil pointer in an interface, when there is no cluster.
func (t Tools) client() client.Client {
	if t.Cluster == nil {
		return nil
	}
	return t.Cluster
}

// Planner makes plans from a survey.
type Planner struct {
	Tools     Tools
	Survey    *Survey
	Migration *v1alpha1.Migration
	Findings  findings.Findings
	Form      v1alpha1.BridgeForm
	// HasCRD and Recorded say whether the definition of Migration, and this Migration, are in the cluster already.
	HasCRD   bool
	Recorded bool
	// Changes are the settings that differ from those recorded.
	Changes []spec.Change
	// CanFreeze says whether the cluster takes the policy that freezes Services.
	CanFreeze bool
	// Distribution is what the instructions of gates depend on.
	Distribution cluster.Distribution
	// Agents prove on every node what goes on; nil if there are none.
	Agents *lossguard.Agents
	// Remains takes away what an earlier run has left of agents.
	Remains []engine.Group
	// Observer, if set, is told of Services that have moved.
	Observer Observer
	// returning is true of a run that goes back. It stops for nothing that agents say, or do not say.
	returning bool
	// LeaveClients has finish not wait for those who still use old addresses.
	LeaveClients bool
	// Refresh is what has to be restarted for pods to get rid of old addresses.
	Refresh Refresh
	proving sync.Mutex
}

// phaseKubelets parts apply and rollback in two: who still carries an address of before can be told only once it is over,
// so what comes after it is planned anew then.
const phaseKubelets = "kubelets"

// ApplyPhases are the phases of apply, in order.
func ApplyPhases() []string {
	p := &Planner{Survey: &Survey{}, Migration: &v1alpha1.Migration{}}
	var names []string
	for _, phase := range p.Apply().Phases {
		names = append(names, phase.Name)
	}
	return names
}

// PhaseNames are the phases of all plans, which hooks can name.
func PhaseNames() []string {
	p := &Planner{Survey: &Survey{}, Migration: &v1alpha1.Migration{}}
	var names []string
	for _, plan := range []*engine.Plan{p.Apply(), p.Rollback(), p.Finish()} {
		for i := range plan.Phases {
			if !slices.Contains(names, plan.Phases[i].Name) {
				names = append(names, plan.Phases[i].Name)
			}
		}
	}
	return names
}

// Apply is the way to the point where nothing needs the old range any more and old addresses still answer.
func (p *Planner) Apply() *engine.Plan {
	phases := []engine.Phase{
		{Name: "check", Own: true, Title: "Check the cluster", Groups: single(&migration.CheckStep{Findings: p.Findings})},
		{Name: "secure", Own: true, Recheck: true, Title: "Record the migration, back up and freeze what it changes", Groups: p.secure()},
		p.Agents.Phase(p.agentsIfNeeded()),
		{Name: "extend", Recheck: true, Title: "Add the target range", Groups: p.extend()},
		{Name: "canary", Title: "Move a throw-away Service first", Groups: p.canary()},
		{Name: "move", Title: "Move Services, tier by tier, batch by batch", Groups: p.move()},
		{Name: phaseKubelets, Recheck: true, Title: "Have kubelets name the new cluster DNS address", Groups: p.kubelets(forth)},
		{Name: "refresh", Title: "Restart what carries old addresses", Groups: p.refresh()},
		{Name: "repoint", Recheck: true, Title: "Retire the old range", Groups: p.repoint()},
		{Name: "tidy", Title: "Remove what deleted Services left behind", Groups: p.tidy()},
	}
	return p.plan(hook.Apply, phases...)
}

// Finish takes the old addresses away. Its phase "final" is the point of no return.
func (p *Planner) Finish() *engine.Plan {
	return p.plan(
		hook.Finish,
		p.Agents.Phase(p.Agents.Install()),
		engine.Phase{Name: "drain", Title: "Let clients forget old addresses", Groups: single(p.drain())},
		engine.Phase{Name: "soak", Title: "See that nobody uses old addresses", Groups: p.soak()},
		engine.Phase{Name: "verify", Title: "Verify every moved Service", Groups: p.each(func(e *Entry) engine.Step {
			return &arrivedStep{tools: p.Tools, entry: e}
		})},
		engine.Phase{
			Name:   "final",
			Title:  "Pass the point of no return",
			Groups: single(migration.FinalStep(p.Tools.client(), p.spec().Name)),
		},
		engine.Phase{Name: "release", Title: "Take bridges and old addresses away", Groups: append(
			p.stopProbing(func(e *Entry) string { return e.Old.String() }),
			p.each(func(e *Entry) engine.Step {
				return &releaseStep{tools: p.Tools, migration: p.spec().Name, entry: e, at: e.New}
			})...,
		)},
		engine.Phase{Name: "prove", Title: "Prove that every node knows the new addresses", Groups: p.proveReleased()},
		engine.Phase{
			Name:   "tidy",
			Title:  "Remove what is left",
			Groups: slices.Concat(p.Agents.Dismiss(), p.Remains, p.tidy(), p.handOver(), p.leave()),
		},
	)
}

// Rollback brings every Service back to its old address, by the bridges that still answer on both, and after it whatever
// had followed the Services.
func (p *Planner) Rollback() *engine.Plan {
	p.returning = true
	return p.plan(
		hook.Rollback,
		p.Agents.Phase(p.Agents.InstallIfPossible()),
		engine.Phase{Name: "reopen", Title: "Open the old range again", Groups: p.reopen()},
		engine.Phase{Name: "return", Title: "Return Services, tier by tier, batch by batch", Groups: p.giveBack()},
		engine.Phase{Name: phaseKubelets, Title: "Have kubelets name the old cluster DNS address", Groups: p.kubelets(back)},
		engine.Phase{Name: "refresh", Title: "Restart what carries new addresses", Groups: p.refresh()},
		engine.Phase{Name: "restore", Title: "Make the old range the default again", Groups: p.restore()},
		engine.Phase{Name: "drain", Title: "Let clients forget new addresses", Groups: single(p.drain())},
		engine.Phase{Name: "release", Title: "Take bridges and new addresses away", Groups: append(
			p.Agents.BestEffort(p.stopProbing(func(e *Entry) string { return e.New.String() })),
			p.each(func(e *Entry) engine.Step {
				return &releaseStep{tools: p.Tools, migration: p.spec().Name, entry: e, at: e.Old}
			})...,
		)},
		engine.Phase{Name: "tidy", Title: "Remove what is left", Groups: slices.Concat(p.Agents.Dismiss(), p.Remains, p.tidy(), p.leave())},
		engine.Phase{Name: "withdraw", Title: "Remove the ranges of the migration", Groups: p.withdraw()},
	)
}

// direction of a migration.
type direction bool

const (
	forth direction = true
	back  direction = false
)

// plan puts hooks around phases that have something to do.
func (p *Planner) plan(run hook.Run, phases ...engine.Phase) *engine.Plan {
	return hook.Around(&engine.Plan{Name: p.spec().Name, Phases: phases}, p.spec().Common.Hooks, run)
}

func (p *Planner) spec() Spec { return p.Survey.Spec }

func (p *Planner) secure() []engine.Group {
	want := p.Migration.DeepCopy()
	want.Spec.Desired = v1alpha1.DesiredApplied
	steps := []engine.Step{
		&migration.CRDStep{Cluster: p.Tools.Cluster, Upgrade: p.HasCRD},
		p.namespace(),
		&migration.RecordStep{Cluster: p.Tools.Cluster, Want: want, Recorded: p.Recorded, Changes: p.Changes},
	}
	if originals := p.originals(); len(originals) > 0 {
		title := fmt.Sprintf("Back up %d objects", len(originals))
		steps = append(steps, backup.NewStep(p.Tools.client(), want, "secure/backup", title, originals))
	}
	if p.frozen() {
		steps = append(steps, p.freeze())
	}
	return inOrder(steps...)
}

// namespace is where sentinels and canaries live.
func (p *Planner) namespace() *migration.NamespaceStep {
	return &migration.NamespaceStep{Cluster: p.Tools.Cluster, Migration: p.spec().Name, Sweep: func(ctx context.Context) error {
		return bridge.RemoveThrowaways(ctx, p.Tools.Cluster, p.spec().Name)
	}}
}

// originals are the objects that are about to be changed for the first time.
func (p *Planner) originals() []client.Object {
	var all []client.Object
	for _, e := range p.Survey.Moves {
		if e.Place == Waiting || e.Place == Bridged {
			all = append(all, e.Service)
		}
	}
	if p.spec().Mode == v1alpha1.ModeExtend {
		return all
	}
	for i := range p.Survey.Ranges {
		if c := &p.Survey.Ranges[i]; p.goes(c) {
			all = append(all, c)
		}
	}
	return append(all, p.Refresh.Originals()...)
}

func (p *Planner) frozen() bool {
	return p.CanFreeze && p.spec().Common.Freeze != v1alpha1.FreezeDisabled && p.spec().Mode != v1alpha1.ModeExtend
}

func (p *Planner) freeze() *freeze.Step {
	return &freeze.Step{Client: p.Tools.client(), Migration: p.spec().Name}
}

// canary goes first, as long as no Service has gone.
func (p *Planner) canary() []engine.Group {
	pending := p.Survey.Pending()
	if len(pending) == 0 || len(pending) < len(p.Survey.Moves) || p.Survey.Counts().Bridged > 0 {
		return nil
	}
	return single(&canaryStep{planner: p, pool: cidr.NewPool(p.spec().From, p.Survey.Used)})
}

// kubelets waits until no kubelet names the cluster DNS address that is left behind.
func (p *Planner) kubelets(d direction) []engine.Group {
	var left []netip.Addr
	var want []string
	for _, e := range p.Survey.DNSMoves() {
		if d == back && !e.Touched {
			continue // it never moved
		}
		leaves, goes := e.Old, e.New
		if d == back {
			leaves, goes = e.New, e.Old
		}
		left, want = append(left, leaves), append(want, goes.String())
	}
	if len(left) == 0 {
		return nil
	}
	return single(&kubeletGate{
		gate: gate{
			id: "kubelets", title: "Wait until every kubelet names " + strings.Join(want, ", ") + " as cluster DNS",
			guide: kubeletGuide(p.Distribution, strings.Join(want, ",")), length: p.spec().GateWait,
		},
		tools: p.Tools, migration: p.spec().Name, left: left,
	})
}

// refresh restarts workloads, a tier at a time.
func (p *Planner) refresh() []engine.Group { return p.Refresh.groups() }

// The confirmations of operators, values of v1alpha1.AnnotationAPIServers.
const (
	repointed = "Repointed"
	restored  = "Restored"
)

// each makes a step for every Service of the migration that has something of it left: those never touched have not.
func (p *Planner) each(step func(*Entry) engine.Step) []engine.Group {
	var steps []engine.Step
	for _, e := range p.Survey.everything() {
		if e.Place != Waiting || e.Touched {
			steps = append(steps, step(e))
		}
	}
	return []engine.Group{{Parallel: parallel, Steps: steps}}
}

// proveReleased passes one more barrier: what is behind it, every node has seen, the removal of the bridges included.
func (p *Planner) proveReleased() []engine.Group {
	if len(p.Survey.Moves) == 0 {
		return nil
	}
	return single(p.barrier("released addresses"))
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

// leave removes what replumb keeps for itself, and looks that nothing is left.
func (p *Planner) leave() []engine.Group {
	steps := []engine.Step{p.freeze().Undo(), &remainsStep{tools: p.Tools, migration: p.spec().Name}}
	if p.spec().Common.Backups != v1alpha1.BackupsKeep {
		steps = append(
			steps,
			&backup.ForgetStep{Client: p.Tools.client(), Migration: p.spec().Name},
			p.namespace().Undo(),
		)
	}
	return append(inOrder(steps...), single(&cleanStep{tools: p.Tools, migration: p.spec().Name})...)
}

func (p *Planner) drain() engine.Step {
	return &drainStep{tools: p.Tools, migration: p.spec().Name, length: p.spec().Drain}
}

func single(s engine.Step) []engine.Group { return inOrder(s) }

func inOrder(steps ...engine.Step) []engine.Group {
	return []engine.Group{{Parallel: 1, Steps: steps}}
}
