package podcidr

import (
	"cmp"
	"context"
	"fmt"
	"github.com/replumb/replumb/internal/spec"
	"net/netip"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/safety/backup"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

const (
	// parallel is how many steps of one group run at once.
	parallel = 32
	// slack covers that the clocks of nodes, and of the machine replumb runs on, differ a little.
	slack = 2 * time.Second
	// phaseSwitch ends with every new pod getting a new address: which pods have old ones is certain from there.
	phaseSwitch = "switch"
	// phaseReopen is the same on the way back.
	phaseReopen = "reopen"
	phaseRoll   = "roll"
	phaseNodes  = "nodes"
	// tunnelWait is how long Calico may take to move the tunnels of all nodes.
	tunnelWait = 5 * time.Minute
)

// Tools are what steps work with. Plans can be made and shown without them.
type Tools struct {
	Cluster *cluster.Cluster
	// Image of replumb for the pods it runs itself.
	Image string
	Now   func() time.Time
}

func (t Tools) now() time.Time {
	if t.Now != nil {
		return t.Now()
	}
	return time.Now()
}

// client is nil, and not a nil pointer in an interface, when there is no cluster.
func (t Tools) client() client.Client {
	if t.Cluster == nil {
		return nil
	}
	return t.Cluster
}

// occupants are the pods and nodes as they are now.
func (t Tools) occupants(ctx context.Context) (*Survey, error) {
	workloads, err := rollout.Load(ctx, t.Cluster)
	if err != nil {
		return nil, err
	}
	nodes := &corev1.NodeList{}
	if err := t.Cluster.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	nodes.Items = slices.DeleteFunc(nodes.Items, func(n corev1.Node) bool { return nodeipam.IsTrial(&n) })
	return &Survey{Workloads: workloads, Nodes: nodes.Items}, nil
}

// direction of a migration.
type direction bool

const (
	forth direction = true
	back  direction = false
)

// Planner makes plans from a survey.
type Planner struct {
	Tools     Tools
	Survey    *Survey
	Migration *v1alpha1.Migration
	Findings  findings.Findings
	Rules     tier.Rules
	// HasCRD and Recorded say whether the definition of Migration, and this Migration, are in the cluster already.
	HasCRD   bool
	Recorded bool
	// Changes are the settings that differ from those recorded.
	Changes []spec.Change
	// Agents prove on every node what goes on; nil if there are none.
	Agents *lossguard.Agents
	// Remains takes away what an earlier run has left of agents.
	Remains []engine.Group
	// Proven is set when new pods have been seen to get new addresses on every node: the plans of later looks do not try that again. Nil is
	// never.
	Proven *bool
}

// Apply is the way to the point where no pod has an old address and the old pools are still there.
func (p *Planner) Apply() *engine.Plan {
	if p.Survey.OnNodes() {
		return p.applyOnNodes()
	}
	return p.plan(
		hook.Apply,
		engine.Phase{Name: "check", Own: true, Title: "Check the cluster", Groups: inOrder(&migration.CheckStep{Findings: p.Findings})},
		engine.Phase{Name: "secure", Own: true, Recheck: true, Title: "Record the migration and back up what it changes", Groups: p.secure()},
		p.Agents.Phase(p.watched()),
		engine.Phase{Name: "prepare", Recheck: true, Title: "Give what must not pause one more pod", Groups: p.prepare()},
		engine.Phase{Name: "add", Recheck: true, Title: "Add the target pools", Groups: p.add()},
		engine.Phase{Name: "canary", Title: "Try the target pools out on every node", Groups: p.canary()},
		engine.Phase{Name: "hold", Recheck: true, Title: "Keep what nodes have open through their tunnels", Groups: p.hold(forth)},
		engine.Phase{
			// Before the old pools are disabled, pods still come and go there.
			Name: phaseSwitch, Recheck: true, Replan: !p.Survey.Switched(),
			Title: "Let new pods get new addresses only", Groups: p.switchOver(),
		},
		engine.Phase{Name: phaseRoll, Title: "Restart pods with old addresses, tier by tier", Groups: p.roll(hook.Apply, forth)},
		engine.Phase{Name: "verify", Title: "See that nothing has an old address", Groups: p.restarted()},
	)
}

// Finish deletes the old pools. Its phase "final" is the point of no return.
func (p *Planner) Finish() *engine.Plan {
	if p.Survey.OnNodes() {
		return p.finishOnNodes()
	}
	return p.plan(
		hook.Finish,
		p.Agents.Phase(p.Agents.Install()),
		engine.Phase{Name: "verify", Title: "See that nothing has an old address", Groups: p.verify(p.spec().From)},
		engine.Phase{
			Name: "final", Title: "Pass the point of no return",
			Groups: inOrder(migration.FinalStep(p.Tools.client(), p.spec().Name)),
		},
		engine.Phase{Name: "release", Title: "Give back the blocks of the old pools", Groups: p.release(p.spec().From)},
		engine.Phase{Name: "remove", Title: "Delete the old pools", Groups: p.remove(forth)},
		engine.Phase{Name: "tidy", Title: "Remove what is left", Groups: p.tidy()},
	)
}

// Rollback brings every pod back to the old range.
func (p *Planner) Rollback() *engine.Plan {
	if p.Survey.OnNodes() {
		return p.rollbackOnNodes()
	}
	return p.plan(
		hook.Rollback,
		p.Agents.Phase(p.Agents.InstallIfPossible()),
		engine.Phase{Name: "hold", Title: "Keep what nodes have open through their tunnels", Groups: p.hold(back)},
		engine.Phase{
			// Until the new pools are closed, pods come and go with new addresses.
			Name: phaseReopen, Replan: !p.Survey.closed(back),
			Title: "Let new pods get old addresses only", Groups: p.reopen(),
		},
		engine.Phase{Name: phaseRoll, Title: "Restart pods with new addresses, tier by tier", Groups: p.roll(hook.Rollback, back)},
		engine.Phase{Name: "verify", Title: "See that nothing has a new address", Groups: p.verify(p.spec().To)},
		engine.Phase{Name: "release", Title: "Give back the blocks of the target pools", Groups: p.release(p.spec().To)},
		engine.Phase{Name: "withdraw", Title: "Delete the target pools", Groups: p.remove(back)},
		engine.Phase{Name: "tidy", Title: "Remove what is left", Groups: p.tidy()},
	)
}

func emptyPlanner() *Planner {
	return &Planner{Survey: &Survey{Workloads: &rollout.State{}}, Migration: &v1alpha1.Migration{}}
}

// ApplyPhases are the phases of apply, in order.
//
// Those of clusters with pools come first, then those that only clusters have whose Nodes carry the ranges.
func ApplyPhases() []string {
	p := emptyPlanner()
	return engine.PhaseNames(p.Apply(), p.applyOnNodes())
}

// PhaseNames are the phases of all plans, which hooks can name.
func PhaseNames() []string {
	p := emptyPlanner()
	return engine.PhaseNames(p.Apply(), p.Rollback(), p.Finish(), p.applyOnNodes(), p.rollbackOnNodes(), p.finishOnNodes())
}

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
		title := "Back up " + english.Plural(len(originals), "object", "")
		steps = append(steps, backup.NewStep(p.Tools.client(), want, "secure/backup", title, originals))
	}
	return inOrder(steps...)
}

// originals are the objects that are about to be changed for the first time.
func (p *Planner) originals() []client.Object {
	var all []client.Object
	for i := range p.Survey.Moves {
		if m := &p.Survey.Moves[i]; m.Old != nil && disabledAt(m.Old).IsZero() {
			all = append(all, m.Old.Object)
		}
	}
	return append(all, p.homesToBackUp()...)
}

func (p *Planner) namespace() *migration.NamespaceStep {
	return &migration.NamespaceStep{Cluster: p.Tools.Cluster, Migration: p.spec().Name}
}

func (p *Planner) prepare() []engine.Group {
	if p.spec().Prepare != v1alpha1.PrepareScale || p.arrived() {
		return nil
	}
	var steps []engine.Step
	for _, key := range p.Survey.Critical() {
		steps = append(steps, &scaleStep{tools: p.Tools, key: key})
	}
	return beside(steps)
}

// arrived reports whether there is nothing left to restart.
func (p *Planner) arrived() bool {
	return p.Survey.Switched() && len(p.Survey.PodsIn(p.spec().From)) == 0
}

func (p *Planner) add() []engine.Group {
	var steps []engine.Step
	for i := range p.Survey.Moves {
		steps = append(steps, &poolStep{tools: p.Tools, spec: p.spec(), move: &p.Survey.Moves[i]})
	}
	return inOrder(steps...)
}

func (p *Planner) canary() []engine.Group {
	if p.spec().Canary.Mode != v1alpha1.PodCanaryRun || p.Survey.Switched() || len(p.Survey.Moves) == 0 {
		return nil
	}
	step := p.trial("canary", "Try pods with new addresses out on every node")
	for i := range p.Survey.Moves {
		step.Pools = append(step.Pools, p.Survey.Moves[i].Name())
	}
	return inOrder(step)
}

func (p *Planner) trial(id, title string) *connectivity.Step {
	return &connectivity.Step{
		Cluster: p.Tools.Cluster, Migration: p.spec().Name, Name: id, About: title, Image: p.image(),
		Within: p.spec().To, Targets: p.spec().Canary.Targets,
	}
}

// image of replumb, for pods that it runs.
func (p *Planner) image() string { return cmp.Or(p.spec().Canary.Image, p.Tools.Image) }

// proving is a trial that is remembered when it went well.
type proving struct {
	*connectivity.Step
	proven *bool
}

// Verify implements engine.Step.
func (s *proving) Verify(ctx context.Context) error {
	err := s.Step.Verify(ctx)
	if err == nil && s.proven != nil {
		*s.proven = true
	}
	return err
}

// switchOver disables the old pools, and has pods that ask for nothing prove that they get new addresses.
func (p *Planner) switchOver() []engine.Group {
	var steps []engine.Step
	for i := range p.Survey.Moves {
		if old := p.Survey.Moves[i].Old; old != nil {
			steps = append(steps, &switchStep{tools: p.Tools, name: old.Name, disable: true})
		}
	}
	if len(steps) == 0 {
		return nil
	}
	if p.spec().Canary.Mode == v1alpha1.PodCanaryRun && !ptr.Deref(p.Proven, false) && !p.arrived() {
		steps = append(steps, &proving{p.trial("prove", "See that new pods get new addresses on every node"), p.Proven})
	}
	return inOrder(append(steps, p.tunnels("tunnels", p.spec().From))...)
}

func (p *Planner) tunnels(id string, left []netip.Prefix) engine.Step {
	return &tunnelStep{tools: p.Tools, id: id, left: left, length: tunnelWait}
}

func (p *Planner) verify(left []netip.Prefix) []engine.Group {
	if len(left) == 0 {
		return nil
	}
	return inOrder(&emptyStep{tools: p.Tools, left: left})
}

// restarted is what apply ends with. Pods that are only reported are no concern of it, but of finish.
func (p *Planner) restarted() []engine.Group {
	if len(p.Survey.Moves) == 0 {
		return nil
	}
	return inOrder(&restartedStep{tools: p.Tools, spec: p.spec()}, p.tunnels("verify/tunnels", p.spec().From))
}

func (p *Planner) release(all []netip.Prefix) []engine.Group {
	steps := p.letGo()
	for _, cidr := range all {
		steps = append(steps, &releaseStep{tools: p.Tools, cidr: cidr})
	}
	return inOrder(steps...)
}

// remove deletes what is left behind: the old pools on the way forth, the targets on the way back.
func (p *Planner) remove(d direction) []engine.Group {
	var steps []engine.Step
	for i := range p.Survey.Moves {
		m := &p.Survey.Moves[i]
		if d == back {
			steps = append(steps, &removeStep{tools: p.Tools, name: m.Name(), cidr: m.To})
		} else if m.Old != nil {
			steps = append(steps, &removeStep{tools: p.Tools, name: m.Old.Name, cidr: m.From})
		}
	}
	return inOrder(steps...)
}

// reopen is the switch back.
func (p *Planner) reopen() []engine.Group {
	var steps []engine.Step
	for i := range p.Survey.Moves {
		m := &p.Survey.Moves[i]
		if m.Old != nil {
			steps = append(steps, &switchStep{tools: p.Tools, name: m.Old.Name})
		}
		steps = append(steps, &switchStep{tools: p.Tools, name: m.Name(), disable: true})
	}
	if len(steps) == 0 {
		return nil
	}
	return inOrder(append(steps, p.tunnels("tunnels", p.spec().To))...)
}

func (p *Planner) tidy() []engine.Group {
	steps := append(p.unreserve(), &unscaleStep{tools: p.Tools})
	if p.spec().Common.Backups != v1alpha1.BackupsKeep {
		steps = append(steps, &backup.ForgetStep{Client: p.Tools.client(), Migration: p.spec().Name}, p.namespace().Undo())
	}
	return slices.Concat(p.Agents.Dismiss(), p.Remains, inOrder(steps...))
}

func inOrder(steps ...engine.Step) []engine.Group {
	return []engine.Group{{Parallel: 1, Steps: steps}}
}

func beside(steps []engine.Step) []engine.Group {
	return []engine.Group{{Parallel: parallel, Steps: steps}}
}
