package nodes

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

func commands() migration.Commands[*Planner] {
	type phases = migration.Phases[*Planner]
	verify := migration.Phase[*Planner]{Name: "verify", Title: "Verify that old nodes are empty", Groups: (*Planner).verify}
	return migration.Commands[*Planner]{
		Apply: phases{
			migration.CheckPhase[*Planner]("Check the cluster"),
			{
				Name:   "secure",
				Title:  "Record the migration and back up what it changes",
				Groups: (*Planner).secure, Recheck: true, Own: true,
			},
			lossguard.Phase("", watch),
			{Name: "join", Title: "Wait for new nodes, and test them", Groups: (*Planner).join},
			{Name: "ingress", Title: "Switch externalTrafficPolicy to Cluster", Groups: switchPolicies, Recheck: true},
			{Name: "taint", Title: "Keep new pods off old nodes", Groups: (*Planner).taint, Recheck: true},
			{Name: "prepare", Title: "Add one pod to workloads that must keep serving", Recheck: true, Groups: (*Planner).prepare},
			{Name: "traffic", Title: "Point DNS records to the load balancers of the new network", Groups: moveRecords},
			{Name: phaseDrain, Title: "Drain old nodes", Groups: (*Planner).drainOldNodes, Replan: (*Planner).Follows},
			{Name: "restore", Title: "Restore externalTrafficPolicy", Groups: restorePolicies, Recheck: true},
			{Name: "control-plane", Title: "Move the control plane, one node after the other", Groups: (*Planner).moveControlPlane},
			{Name: "names", Title: "Lead names of the API to what they have at last", Groups: endRecords},
			verify,
		},
		Rollback: phases{
			lossguard.Phase("", watchBack),
			{Name: "reopen", Title: "Let pods onto old nodes again", Groups: (*Planner).reopen},
			{Name: "ingress", Title: "Switch externalTrafficPolicy to Cluster", Groups: switchPoliciesForReturn},
			{Name: "traffic", Title: "Point DNS records back to the load balancers of the old network", Groups: moveRecordsBack},
			{Name: phaseDrain, Title: "Drain new nodes", Groups: (*Planner).drainNewNodes},
			{Name: "restore", Title: "Restore externalTrafficPolicy", Groups: restorePoliciesAfterReturn},
			{Name: "tidy", Title: "Clean up", Groups: (*Planner).tidyBack},
		},
		Finish: phases{
			verify,
			lossguard.Phase("", watchFinish),
			migration.FinalPhase[*Planner](),
			{Name: "terminate", Title: "Terminate old nodes", Groups: (*Planner).terminateOldNodes},
			{Name: "tidy", Title: "Clean up", Groups: (*Planner).tidy},
		},
	}
}

const (
	// parallel is how many steps of one group run at once.
	parallel = 32

	phaseDrain = "drain"
)

// Planner makes plans from a survey.
type Planner struct {
	migration.Base
	Inventory *Inventory
	// Records lead to load balancers, APIRecords to those of the API.
	Records, APIRecords []*dnsrecords.RecordMove
	// Etcd is nil if the control plane stays, or cannot be reached.
	Etcd *etcd.Client
	// Events is the second etcd; nil, if there is none that moves, or it cannot be reached.
	Events  *etcd.Client
	Agents  *lossguard.Agents
	Remains []engine.Group
}

func (p *Planner) Apply() *engine.Plan {
	plan := commands().Apply.Plan(p, p.Migration, hook.Apply)
	if p.Follows() {
		return withoutEnd(plan)
	}
	return plan
}

func (p *Planner) Rollback() *engine.Plan {
	return commands().Rollback.Plan(p, p.Migration, hook.Rollback)
}

func (p *Planner) Finish() *engine.Plan { return commands().Finish.Plan(p, p.Migration, hook.Finish) }

// ApplyPhases are the names of the phases of apply, in order.
func ApplyPhases() []string { return commands().Apply.Names() }

// phaseNames are the names of the phases of all commands, which hooks can name.
func phaseNames() []string { return commands().Names() }

// Outlines are the phases of all commands, for people.
func Outlines() []migration.Outline { return []migration.Outline{commands().Outline("")} }

func (p *Planner) spec() Spec { return p.Inventory.Spec }

func (p *Planner) live() live { return live{p.Tools, p.spec()} }

func (p *Planner) secure() []engine.Group {
	var old []v1alpha1.NodeStatus
	for _, n := range p.Inventory.OldNodes() {
		if n.Node != nil {
			old = append(old, statusOf(n.Node, v1alpha1.RoleWorker))
		}
	}
	return p.Secure(migration.Securing{
		Recorded:  []engine.Step{p.live().record().addStep("secure/nodes", "Record the old nodes", old)},
		Originals: p.originals(),
	})
}

// originals are the objects that are about to be changed for the first time.
func (p *Planner) originals() []client.Object {
	var all []client.Object
	for _, n := range p.Inventory.OldNodes() {
		if n.Node != nil && taintOf(n.Node) == nil {
			all = append(all, n.Node)
		}
	}
	for _, svc := range p.Inventory.Ingress().Affected() {
		if svc.Annotations[v1alpha1.AnnotationTrafficPolicy] == "" {
			all = append(all, svc)
		}
	}
	return all
}

// join waits for the wanted number of new nodes, all in the new network, and tests them.
func (p *Planner) join() []engine.Group {
	if len(p.Inventory.outstanding(false)) == 0 {
		return nil
	}
	l := p.live()
	steps := []engine.Step{l.join(p.Inventory.Wanted())}
	for _, n := range p.Inventory.NewNodes() {
		if taintOf(n) != nil { // of a migration that was rolled back
			steps = append(steps, l.openNode(n.Name))
		}
	}
	if p.spec().Join.Room == v1alpha1.RoomRequired {
		steps = append(steps, l.hasRoom())
	}
	steps = append(steps, l.fits())
	if p.spec().Canary.Mode == v1alpha1.PodCanaryRun && !p.underWay() {
		steps = append(steps, l.connectivityStep())
	}
	return engine.InOrder(steps...)
}

func switchPolicies(p *Planner) []engine.Group {
	return ingress{p.live()}.switchPolicies(p.Inventory.Ingress().toSwitch())
}

func switchPoliciesForReturn(p *Planner) []engine.Group {
	if !p.Whole() {
		return nil
	}
	return ingress{p.live()}.switchPolicies(p.Inventory.Ingress().toSwitchForReturn())
}

// restorePolicies restores what was switched and not restored early.
func restorePolicies(p *Planner) []engine.Group {
	early := p.Inventory.Ingress().early()
	return ingress{p.live()}.restorePolicies(slices.DeleteFunc(p.Inventory.Ingress().toRestore(), func(key types.NamespacedName) bool {
		return slices.Contains(early, key)
	}))
}

func restorePoliciesAfterReturn(p *Planner) []engine.Group {
	keys := p.Inventory.Ingress().switched()
	if p.Whole() {
		keys = append(keys, p.Inventory.Ingress().toSwitchForReturn()...)
	}
	return ingress{p.live()}.restorePolicies(keys)
}

// taint keeps new pods off old nodes: all or, while there may not be room, those with a choice.
func (p *Planner) taint() []engine.Group {
	effect := corev1.TaintEffectNoSchedule
	if p.spec().Join.Room == v1alpha1.RoomPartial {
		effect = corev1.TaintEffectPreferNoSchedule
	}
	var steps []engine.Step
	for _, n := range p.Inventory.outstanding(true) {
		steps = append(steps, p.live().closeNode(n.Name, effect))
	}
	return engine.AtOnce(parallel, "", steps...)
}

// prepare scales up what must not pause, as long as old nodes are to be emptied.
func (p *Planner) prepare() []engine.Group {
	if len(p.Inventory.outstanding(false)) == 0 {
		return nil
	}
	return engine.AtOnce(parallel, "", p.Inventory.Spares.Up(p.Tools.Cluster)...)
}

func (p *Planner) terminatesEach() bool { return p.spec().Terminate.When == v1alpha1.TerminateEach }

// drainOldNodes drains, or waits for, batches of nodes, and terminates each when it is empty.
func (p *Planner) drainOldNodes() []engine.Group {
	size := max(1, p.Inventory.Spec.parallel(len(p.Inventory.OldNodes())))
	d := newDrainer(p.live())
	groups := p.moveIngress(d)
	number := min(len(groups), 1) // it is a batch of its own
	for batch := range slices.Chunk(p.toDrain(), size) {
		number++
		groups = append(groups, p.batch(d, number, batch)...)
	}
	return append(groups, p.vacancy(d)...)
}

// batch waits for a window and drains some nodes. Each node goes through, in order:
func (p *Planner) batch(d *drainer, number int, batch []OldNode) []engine.Group {
	title := titleOf(batch)
	var groups []engine.Group
	if windows := p.Migration.Spec.Windows; len(windows) > 0 {
		groups = append(groups, engine.AtOnce(1, title, window.NewStep("window/"+title, windows, p.Tools.Now))...)
	}
	o := hook.Occasion{Run: hook.Apply, Moment: v1alpha1.BeforeBatch, Phase: phaseDrain, Batch: number}
	for _, n := range batch {
		o.Nodes = append(o.Nodes, n.Name)
	}
	groups = append(groups, p.Hooks(o)...)
	add := func(step func(*OldNode) engine.Step) {
		var steps []engine.Step
		for i := range batch {
			steps = append(steps, step(&batch[i]))
		}
		groups = append(groups, engine.AtOnce(len(batch), title, steps...)...)
	}
	if p.spec().Join.Room == v1alpha1.RoomPartial {
		add(func(n *OldNode) engine.Step { return d.closeNode(n.Name, corev1.TaintEffectNoSchedule) })
	}
	add(func(n *OldNode) engine.Step { return d.markDrained(n.Name) })
	if p.Inventory.Spec.waits() {
		add(func(n *OldNode) engine.Step { return d.emptied(n.Name) })
	} else {
		add(func(n *OldNode) engine.Step { return d.drain(n.Name) })
	}
	add(func(n *OldNode) engine.Step { return d.settled(n.Name) })
	if p.terminatesEach() {
		groups = append(groups, p.end(title, batch)...)
	}
	groups = append(groups, p.Agents.Steady(title)...)
	groups = append(groups, engine.AtOnce(1, title, d.recordCounts(title))...)
	o.Moment = v1alpha1.AfterBatch
	return append(groups, p.Hooks(o)...)
}

func titleOf(batch []OldNode) string {
	if len(batch) == 1 {
		return batch[0].Name
	}
	return fmt.Sprintf("%s and %d more", batch[0].Name, len(batch)-1)
}

func (p *Planner) terminateOldNodes() []engine.Group {
	var groups []engine.Group
	for batch := range slices.Chunk(p.Inventory.outstanding(true), parallel) {
		groups = append(groups, p.end(titleOf(batch), batch)...)
	}
	return groups
}

// moveControlPlane moves one node after the other; names of the API go with the first. RP3401 says
// why, if etcd could not be asked.
func (p *Planner) moveControlPlane() []engine.Group {
	if p.blind() {
		return nil
	}
	c := &controlPlane{drainer: newDrainer(p.live()), etcd: p.Etcd, survey: p.Inventory}
	if p.Inventory.Events != nil {
		c.events = p.Events
	}
	return append(p.dismiss(), c.groups(p.APIRecords)...)
}

// blind reports whether the control plane stays, or an etcd that moves could not be looked at.
func (p *Planner) blind() bool {
	return p.Etcd == nil || p.Inventory.Etcd == nil || p.spec().ControlPlane.EtcdEvents != nil && p.Inventory.Events == nil
}

func (p *Planner) verify() []engine.Group {
	steps := []engine.Step{p.live().oldNodesEmpty()}
	if p.Etcd != nil {
		steps = append(steps, p.live().controlPlaneMoved(p.Etcd, p.Events))
	}
	return engine.InOrder(steps...)
}

// Whole reports whether every old node is still there to go back to.
func (p *Planner) Whole() bool {
	return p.controlPlaneWhole() && !slices.ContainsFunc(p.Inventory.OldNodes(), func(n OldNode) bool { return !n.Reversible() })
}

func (p *Planner) controlPlaneWhole() bool {
	return !slices.ContainsFunc(p.Inventory.ControlPlane().Old(), func(c ControlPlaneNode) bool { return !c.Reversible() })
}

// reopen lets pods onto remaining old nodes, and back into their Services.
func (p *Planner) reopen() []engine.Group {
	var returns, opens []engine.Step
	for _, n := range p.Inventory.OldNodes() {
		if n.Reversible() {
			returns = append(returns, p.live().comeBack(n.Name))
			opens = append(opens, p.live().openNode(n.Name))
		}
	}
	return append(engine.AtOnce(parallel, "", returns...), engine.AtOnce(parallel, "", opens...)...)
}

// drainNewNodes drains them if everything has somewhere to go back to, and leaves them closed.
func (p *Planner) drainNewNodes() []engine.Group {
	if !p.Whole() {
		return nil
	}
	d := newDrainer(p.live())
	var groups []engine.Group
	for _, n := range p.Inventory.NewNodes() {
		groups = append(groups, engine.AtOnce(1, n.Name, d.empty(n.Name)...)...)
		groups = append(groups, p.steadyBack(n.Name)...)
	}
	return groups
}

func (p *Planner) tidy() []engine.Group { return append(restoreTTL(p), p.cleanUp()...) }

func (p *Planner) tidyBack() []engine.Group { return append(leaveRecords(p), p.cleanUp()...) }

func (p *Planner) cleanUp() []engine.Group {
	back := engine.InOrder(spare.Back(p.Tools.Cluster, p.Migration.Name))
	return slices.Concat(back, p.Agents.Dismiss(), p.Remains,
		engine.InOrder(append(p.Thaw(), p.Forget(migration.Sweep{})...)...))
}

func (l live) image() pull.Image {
	return l.ImageOf(&l.spec.Common)
}

// watch puts agents on every node, unless there is nothing left to do that they could see.
func watch(p *Planner) []engine.Group {
	if len(p.Inventory.outstanding(p.terminatesEach())) == 0 {
		return nil
	}
	return p.Agents.Install()
}

// watchFinish puts agents on every node, if nodes are still to end.
func watchFinish(p *Planner) []engine.Group {
	if len(p.Inventory.outstanding(true)) == 0 {
		return nil
	}
	return p.Agents.Install()
}

func watchBack(p *Planner) []engine.Group {
	if !p.Whole() {
		return nil
	}
	return p.Agents.InstallIfPossible()
}

func (p *Planner) steadyBack(after string) []engine.Group {
	return p.Agents.BestEffort(p.Agents.Steady(after))
}

// dismiss removes agents before API servers move, whose addresses they read at their start.
func (p *Planner) dismiss() []engine.Group {
	if p.Agents == nil || p.spec().ControlPlane == nil {
		return nil
	}
	return p.Agents.Dismiss()
}
