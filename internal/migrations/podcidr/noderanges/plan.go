package noderanges

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

const (
	forward  = engine.Forward
	backward = engine.Backward
)

// Planner makes the plans of a migration of Nodes that carry the ranges.
type Planner struct {
	*podmove.Planner
	nodes *Inventory
	// agentWait is how long agents may take to start; zero is agentTime.
	agentWait time.Duration
}

func (s *Inventory) Plans(p *podmove.Planner) podmove.Plans { return &Planner{Planner: p, nodes: s} }

// opening are the first phases of apply, whatever carries the ranges.
func opening() migration.Phases[*Planner] {
	return migration.Phases[*Planner]{
		migration.CheckPhase[*Planner]("Check the cluster"),
		{
			Name: "secure", Title: "Record the migration and back up what it changes", Own: true, Recheck: true,
			Groups: (*Planner).secure,
		},
		lossguard.Phase("", (*Planner).watch),
		{Name: "prepare", Title: "Add one pod to workloads that must keep serving", Recheck: true, Groups: (*Planner).prepare},
	}
}

// The order of phases: a controller manager that allocates does not start while any Node has a
// range outside of its --cluster-cidr (NewCIDRRangeAllocator in k8s.io/kubernetes
// pkg/controller/nodeipam/ipam/range_allocator.go), and a running one gives any Node without a
// range one of its own. So none may allocate while Nodes move.

// apply is the way to the point where every Node has a range of the target.
func apply() migration.Phases[*Planner] {
	return append(opening(), migration.Phases[*Planner]{
		{
			Name: "range", Title: "Stop controller managers from assigning ranges to nodes",
			Groups: func(p *Planner) []engine.Group { return p.pauseRanges(forward) },
		},
		{
			Name: "nodes", Title: "Move nodes to the target, one after the other",
			Groups: func(p *Planner) []engine.Group { return p.moveNodes(forward) },
		},
		{Name: "repoint", Title: "Have controller managers assign ranges of the target", Groups: (*Planner).repointRanges},
		{
			Name:   "verify",
			Title:  "Verify that old addresses are unused",
			Groups: func(p *Planner) []engine.Group { return p.verify(forward) },
		},
	}...)
}

func rollback() migration.Phases[*Planner] {
	return migration.Phases[*Planner]{
		lossguard.Phase("", (*Planner).WatchBack),
		{
			Name: "range", Title: "Stop controller managers from assigning ranges to nodes",
			Groups: func(p *Planner) []engine.Group { return p.pauseRanges(backward) },
		},
		{
			Name: "nodes", Title: "Move nodes back, one after the other",
			Groups: func(p *Planner) []engine.Group { return p.moveNodes(backward) },
		},
		{Name: "repoint", Title: "Have controller managers assign the former ranges", Groups: (*Planner).restoreRanges},
		{
			Name:   "verify",
			Title:  "Verify that new addresses are unused",
			Groups: func(p *Planner) []engine.Group { return p.verify(backward) },
		},
		{Name: "tidy", Title: "Clean up", Groups: (*Planner).tidy},
	}
}

// finish forgets the old ranges. Its phase "final" is the point of no return.
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
		{Name: "tidy", Title: "Clean up", Groups: (*Planner).tidy},
	}
}

// Commands are the phases of every command where Nodes carry the ranges.
func Commands() migration.Commands[*Planner] {
	return migration.Commands[*Planner]{Apply: apply(), Rollback: rollback(), Finish: finish()}
}

func (p *Planner) Apply() *engine.Plan { return p.commands().Apply.Plan(p, p.Migration, hook.Apply) }

func (p *Planner) Rollback() *engine.Plan {
	return p.commands().Rollback.Plan(p, p.Migration, hook.Rollback)
}

func (p *Planner) Finish() *engine.Plan { return p.commands().Finish.Plan(p, p.Migration, hook.Finish) }

func (p *Planner) Left() string { return podmove.StillOld(names(p.nodes.Outstanding(forward))) }

func (p *Planner) Early() string {
	if unsettled := p.nodes.Outstanding(forward); len(unsettled) > 0 {
		return fmt.Sprintf("%d nodes are not settled in the target, the first is %s", len(unsettled), unsettled[0].Node.Name)
	}
	if pods := p.Inventory.OldPods(); pods != "" {
		return pods
	}
	return p.Inventory.OldTunnels()
}

func (*Planner) Kept() []rollout.Reported { return nil }

func (p *Planner) secure() []engine.Group {
	originals := p.originals()
	if p.nodes.holdsAddress() {
		return p.Secure(migration.Securing{Originals: originals, Privileged: true})
	}
	if g := p.gates(); g != nil {
		return append(p.Secure(migration.Securing{Originals: originals, Privileged: true}), p.lookAtNodes(g)...)
	}
	return p.Record(originals)
}

// originals are the objects that have not been changed yet, and carry ranges.
func (p *Planner) originals() (all []client.Object) {
	for i := range p.nodes.NodeRanges {
		r := &p.nodes.NodeRanges[i]
		if r.Kept || !slices.Equal(r.Has, r.Original) || r.there(forward) {
			continue
		}
		if !p.nodes.pooled() {
			all = append(all, r.Node)
		} else if c := p.nodes.Cilium.Nodes[r.Node.Name]; c != nil {
			all = append(all, c.Object())
		}
	}
	if len(all) > 0 && p.nodes.pooled() {
		all = append(all, p.nodes.Cilium.unnoted()...)
	}
	return all
}

func (p *Planner) watch() []engine.Group { return p.Watch(p.Left() == "") }

func (p *Planner) prepare() []engine.Group { return p.Prepare(p.nodes.Switched()) }

func (p *Planner) pauseRanges(d engine.Direction) []engine.Group {
	if !p.nodes.away(d) {
		return nil
	}
	return p.pass(p.rangeGate("ranges-paused", pausedGuide(p.origin()), gatePaused))
}

func (p *Planner) repointRanges() []engine.Group {
	guide := repointedGuide(p.origin(), p.Inventory.Spec.To[0], targetBits(p.nodes.NodeRanges))
	return append(engine.InOrder(p.latecomers(forward)), p.pass(p.rangeGate("ranges-given", guide, gateRepointed))...)
}

func (p *Planner) restoreRanges() []engine.Group {
	guide := restoredGuide(p.origin(), p.Inventory.Spec.From)
	return append(engine.InOrder(p.latecomers(backward)), p.pass(p.rangeGate("ranges-given", guide, gateRestored))...)
}

func (p *Planner) installer() []engine.Group { return p.BeforeFinal() }

func (p *Planner) origin() inventory.Origin { return p.Origin() }

// targetBits is the prefix length of each node's range in the target.
func targetBits(all []NodeRange) int {
	for i := range all {
		return nodeipam.Range(all[i].Target).Bits()
	}
	return usualBits
}

// moveNodes moves those that are not settled, so many at once.
func (p *Planner) moveNodes(d engine.Direction) []engine.Group {
	var groups []engine.Group
	for round := range slices.Chunk(p.nodes.Outstanding(d), max(1, p.Inventory.Spec.Nodes.Parallel)) {
		groups = append(groups, p.moveRound(round, d)...)
	}
	return groups
}

// moveRound is what is done to the nodes of one round, in this order.
func (p *Planner) moveRound(round []*NodeRange, d engine.Direction) []engine.Group {
	title := round[0].Node.Name
	if len(round) > 1 {
		title = fmt.Sprintf("%s and %d more", title, len(round)-1)
	}
	each := func(make func(node) engine.Step) []engine.Group {
		var steps []engine.Step
		for _, r := range round {
			steps = append(steps, make(p.node(r, d)))
		}
		return engine.AtOnce(len(round), title, steps...)
	}
	groups := slices.Concat(
		each(func(n node) engine.Step { return n.cordon().Close() }),
		each(p.drain),
	)
	if p.Agents != nil {
		groups = append(groups, each(func(n node) engine.Step { return p.Agents.Vacated(n.name) })...)
	}
	groups = append(groups, slices.Concat(
		each(p.give),
		p.holdAddresses(each),
		each(p.restartAgents),
		each(func(n node) engine.Step { return p.renew(n, d) }),
	)...)
	if p.Tries() {
		groups = append(groups, engine.InOrder(p.trial(round, d))...)
	}
	groups = append(groups, p.settle(each)...)
	groups = append(groups, each(func(n node) engine.Step { return n.cordon().Open() })...)
	groups = append(groups, p.Steady(d, title)...)
	return append(groups, engine.Group{Title: title, Steps: []engine.Step{p.Note(title)}})
}

// node makes the steps of one on its way in a direction.
func (p *Planner) node(r *NodeRange, d engine.Direction) node {
	return node{
		cluster: p.Tools.Cluster, migration: p.Inventory.Spec.Name, name: r.Node.Name, ranges: r.at(d), watched: p.Agents != nil,
		former: nodeipam.Range(r.at(d.Opposite())), agents: ciliumOf(p.Inventory), goBack: p.goBack(r, d), wait: p.agentWait,
		pool: p.nodes.Cilium.poolName(), left: p.Inventory.Spec.Left(d), holds: p.nodes.holdsAddress(),
	}
}

// eachNode makes a step for each node of a round.
type eachNode func(func(node) engine.Step) []engine.Group

// holdAddresses has nodes keep their own address of the former range while their agent restarts.
func (p *Planner) holdAddresses(each eachNode) []engine.Group {
	if !p.nodes.holdsAddress() {
		return nil
	}
	return slices.Concat(
		each(func(n node) engine.Step { return n.hold(p.Image()) }),
		each(node.ignore),
		each(node.lead),
	)
}

// settle gives up what nodes kept of their former range.
func (p *Planner) settle(each eachNode) (groups []engine.Group) {
	if p.nodes.holdsAddress() {
		groups = each(node.letGo)
	}
	if p.nodes.pooled() {
		groups = append(groups, each(node.settle)...)
	}
	return groups
}

// give gives a node its next range, where nodes have them.
func (p *Planner) give(n node) engine.Step {
	if p.nodes.pooled() {
		return n.give()
	}
	return n.recreate()
}

func (p *Planner) restartAgents(n node) engine.Step {
	if p.nodes.pooled() {
		return n.restartCilium()
	}
	return n.restartAgents(p.Inventory.Spec.Agents)
}

func (p *Planner) drain(n node) engine.Step {
	return p.Rollout().Drain(rollout.Leaving{
		Node: n.name, Taint: cordon.Taint(p.Inventory.Spec.Name), Bare: p.Inventory.Spec.Roll.BarePods,
		Patience: p.Inventory.Spec.Roll.JobWait.Duration,
		Stays: func(pod *corev1.Pod) bool {
			return pod.Labels[connectivity.Label] != "" || len(calico.PodAddresses(pod)) > 0 && !n.away(pod)
		},
	})
}

func (p *Planner) renew(n node, d engine.Direction) engine.Step {
	return p.Rollout().Renew(rollout.Renewal{Node: n.name, Left: p.Inventory.Spec.Left(d), Stale: n.away})
}

// trial has pods prove that the nodes give addresses of their ranges, and that those are routed.
func (p *Planner) trial(round []*NodeRange, d engine.Direction) engine.Step {
	name := round[0].Node.Name
	step := p.Trial("canary/"+name, fmt.Sprintf("Verify that pods on node %s get new addresses and reach others", name))
	if len(round) > 1 {
		step.About = fmt.Sprintf("Verify that pods on node %s and %d more get new addresses and reach others", name, len(round)-1)
	}
	step.Unfenced, step.WithinOn = true, map[string][]netip.Prefix{}
	for _, r := range round {
		step.Only = append(step.Only, r.Node.Name)
		step.WithinOn[r.Node.Name] = []netip.Prefix{nodeipam.Range(r.at(d))}
		if p.nodes.Cilium.poolName() != "" { // of which the node can have got a further range
			step.WithinOn[r.Node.Name] = p.Inventory.Spec.Left(d.Opposite())
		}
	}
	return step
}

func (p *Planner) verify(d engine.Direction) []engine.Group {
	return p.VerifyVacant(p.Inventory.Spec.Left(d))
}

func (p *Planner) tidy() []engine.Group {
	further := []engine.Step{p.ScaleBack(), clearNotes(p.Tools, p.Inventory.Spec.Name)}
	g := p.gates()
	if g == nil {
		return p.Tidy(further...)
	}
	if p.Agents == nil && len(p.Remains) == 0 { // else it goes with agents
		further = append(further, p.Unprivilege())
	}
	return append(g.Forget(false), p.Tidy(further...)...)
}
