package cni

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

const (
	forward  = engine.Forward
	backward = engine.Backward

	phaseNodes = "nodes"
	phaseProxy = "kube-proxy"
)

// commandsInPlace are the phases of a switch of the network under traffic, in order.
//
// Both networks run on every node, and a node changes from one to the other while none of its pods serve: what it changes is which CNI
// configuration its runtime reads. The old network stays complete until finish, so that every node can go back.
func commandsInPlace() migration.Commands[*Planner] {
	type phases = migration.Phases[*Planner]
	return migration.Commands[*Planner]{
		Apply: phases{
			migration.CheckPhase[*Planner]("Check the cluster"),
			{
				Name: "secure", Title: "Record the migration and back up what it changes", Own: true, Recheck: true,
				Groups: (*Planner).secure,
			},
			{Name: agentset.Phase, Title: "Watch from every node", Groups: (*Planner).watch},
			{Name: "baseline", Title: "Test connectivity with the old network", Recheck: true, Groups: (*Planner).baseline},
			{Name: "install", Title: "Install the new network beside the old one", Recheck: true, Groups: (*Planner).park},
			{Name: "prepare", Title: "Add one pod to workloads that must keep serving", Recheck: true, Groups: (*Planner).prepare},
			{
				Name: phaseNodes, Title: "Switch nodes to the new network, one after the other", Recheck: true,
				Groups: func(p *Planner) []engine.Group { return p.switchNodes(forward) },
			},
			{
				Name: phaseProxy, Title: "Have Cilium lead to Services in place of kube-proxy, one node after the other", Recheck: true,
				Groups: (*Planner).replaceProxy,
			},
			againPhase(),
			{Name: "verify", Title: "Verify that every pod has the new network", Groups: (*Planner).verifyServing},
		},
		Rollback: phases{
			{Name: agentset.Phase, Title: "Watch from every node", Groups: (*Planner).watchBack},
			{Name: phaseProxy, Title: "Have kube-proxy lead to Services again, one node after the other", Groups: (*Planner).restoreProxy},
			{
				Name: phaseNodes, Title: "Switch nodes back to the old network, one after the other",
				Groups: func(p *Planner) []engine.Group { return p.switchNodes(backward) },
			},
			{Name: "withdraw", Title: "Remove the new network", Groups: (*Planner).withdrawServing},
			{Name: "verify", Title: "Verify that everything is as it was", Groups: (*Planner).verifyBack},
			{Name: "tidy", Title: "Clean up", Groups: (*Planner).tidyBack},
		},
		Finish: phases{
			{Name: agentset.Phase, Title: "Watch from every node", Groups: (*Planner).watchFinish},
			migration.FinalPhase[*Planner](),
			{Name: "adopt", Title: "Have the new network run as its manifests say", Groups: (*Planner).adopt},
			{Name: phaseProxy, Title: "Remove kube-proxy", Groups: (*Planner).removeProxy},
			{Name: phaseRemove, Title: "Remove the old network", Groups: (*Planner).removeServing},
			{Name: "tidy", Title: "Clean up", Groups: (*Planner).tidyFinished},
		},
	}
}

// watch puts agents on every node, unless nothing is left that they could see.
func (p *Planner) watch() []engine.Group {
	if p.over() {
		return nil
	}
	return p.Agents.Install()
}

func (p *Planner) watchBack() []engine.Group {
	if !p.Survey.begun() {
		return nil
	}
	return p.Agents.InstallIfPossible()
}

func (p *Planner) watchFinish() []engine.Group { return p.Agents.Install() }

// hides reports whether pods of one network see an address of a node in place of those of pods of the other: what leads packets between Cilium
// and others gives them one, and would answer another way than it was asked if it did not.
func (s *Survey) hides() bool { return s.Spec.To == v1alpha1.Cilium }

// enforcedBeside reports whether NetworkPolicies hold on switched nodes while both networks run.
func (s *Survey) enforcedBeside() bool { return s.enforced() && !s.hides() }

// prepare gives what must not pause one more pod, as long as nodes have to be emptied.
func (p *Planner) prepare() []engine.Group {
	if len(p.Survey.unsettled(forward)) == 0 {
		return nil
	}
	return engine.AtOnce(parallel, "", p.Survey.Spares.Up(p.Tools.Client())...)
}

func (p *Planner) scaleBack() []engine.Group {
	return engine.InOrder(spare.Back(p.Tools.Client(), p.spec().Name))
}

// switchNodes switches the nodes that are not where a direction goes: the first one alone, the others so many at once.
func (p *Planner) switchNodes(d engine.Direction) []engine.Group {
	if d == backward && !p.Survey.begun() {
		return nil
	}
	nodes := p.Survey.unsettled(d)
	if len(nodes) == 0 {
		return nil
	}
	var groups []engine.Group
	if d == backward { // the way back goes through the same mixture of networks
		groups = p.cross()
	}
	rounds := slices.Collect(slices.Chunk(nodes, p.parallel()))
	if d == forward {
		rounds = p.rounds(nodes)
	}
	for i, round := range rounds {
		groups = append(groups, p.switchRound(i+1, round, d)...)
	}
	return groups
}

func (p *Planner) parallel() int { return max(1, p.spec().InPlace.Parallel) }

// rounds are nodes as they are taken, so many at once. The first of a cluster is alone.
func (p *Planner) rounds(nodes []string) [][]string {
	var rounds [][]string
	if len(nodes) > 0 && len(nodes) == len(p.Survey.Nodes) {
		rounds, nodes = [][]string{nodes[:1]}, nodes[1:]
	}
	return slices.AppendSeq(rounds, slices.Chunk(nodes, p.parallel()))
}

// startRound has the programs of the new network start on some nodes, and a loss that they cause end the run before they start on others.
func (p *Planner) startRound(round []string, sets []client.ObjectKey) []engine.Group {
	title := "the new network's start on " + round[0]
	if len(round) > 1 {
		title = fmt.Sprintf("%s and %d more", title, len(round)-1)
	}
	var marks []engine.Step
	for _, name := range round {
		marks = append(marks, p.beside(name, forward))
	}
	groups := engine.AtOnce(len(round), title, marks...)
	groups = append(groups, engine.AtOnce(1, title, p.started(round, sets))...)
	return append(groups, p.Agents.Steady(title)...)
}

// switchRound is what is done to the nodes of one round, in this order.
func (p *Planner) switchRound(number int, round []string, d engine.Direction) []engine.Group {
	title := round[0]
	if len(round) > 1 {
		title = fmt.Sprintf("%s and %d more", title, len(round)-1)
	}
	o := hook.Occasion{Run: hook.Apply, Moment: v1alpha1.BeforeBatch, Phase: phaseNodes, Batch: number, Nodes: round}
	var groups []engine.Group
	if d == backward {
		o.Run = hook.Rollback
	} else if windows := p.spec().Common.Windows; len(windows) > 0 {
		groups = append(groups, engine.AtOnce(1, title, window.NewStep("window/"+title, windows, p.Tools.Now))...)
	}
	groups = append(groups, p.Hooks(o)...)
	each := func(make func(name string) engine.Step) {
		var steps []engine.Step
		for _, name := range round {
			steps = append(steps, make(name))
		}
		groups = append(groups, engine.AtOnce(len(round), title, steps...)...)
	}
	of := func(name string) cordon.Node {
		return cordon.Node{Client: p.Tools.Client(), Migration: p.spec().Name, Name: name, Watched: p.Agents != nil}
	}
	each(func(name string) engine.Step { return of(name).Close() })
	each(func(name string) engine.Step { return p.drain(name, d) })
	if p.Agents != nil {
		each(p.Agents.Vacated)
	}
	each(func(name string) engine.Step { return p.prefer(name, d) })
	each(func(name string) engine.Step { return p.label(name, d) })
	each(p.ready)
	each(func(name string) engine.Step { return p.renew(name, d) })
	if p.tries() {
		groups = append(groups, engine.InOrder(p.trial(round, d))...)
	}
	each(func(name string) engine.Step { return of(name).Open() })
	steady := p.Agents.Steady(title)
	if d == backward {
		steady = p.Agents.BestEffort(steady)
	}
	groups = append(groups, steady...)
	groups = append(groups, engine.AtOnce(1, title, p.counted(title))...)
	o.Moment = v1alpha1.AfterBatch
	return append(groups, p.Hooks(o)...)
}

// going are the ranges that pods have where a direction goes, and leaving those that they leave.
func (p *Planner) going(d engine.Direction) (going, leaving []netip.Prefix) {
	if d == backward {
		return p.Survey.Ranges, p.Survey.target()
	}
	return p.Survey.target(), p.Survey.Ranges
}

// home are the ranges that new pods on a node get addresses of where a direction goes.
func (p *Planner) home(node string, d engine.Direction) []netip.Prefix {
	if d == backward && p.Survey.from() == v1alpha1.HostLocal {
		return p.Survey.ownRanges(node)
	}
	going, _ := p.going(d)
	return going
}

func (p *Planner) rollout() rollout.Deps {
	return rollout.Deps{Client: p.Tools.Client(), Timeout: p.spec().InPlace.Timeout.Duration, Now: p.Tools.Now}
}

// drain makes pods leave a node but for those that have an address of the network it goes to.
func (p *Planner) drain(name string, d engine.Direction) engine.Step {
	_, leaving := p.going(d)
	return p.rollout().Drain(rollout.Leaving{
		Node: name, Taint: cordon.Taint(p.spec().Name), Bare: p.spec().InPlace.BarePods, Patience: p.spec().InPlace.JobWait.Duration,
		AtOnce: p.spec().InPlace.Workloads,
		Stays:  func(pod *corev1.Pod) bool { return pod.Labels[connectivity.Label] != "" || arrived(pod, leaving) },
	})
}

// renew evicts what is still on a node with an address that is left.
func (p *Planner) renew(name string, d engine.Direction) engine.Step {
	_, leaving := p.going(d)
	return p.rollout().Renew(rollout.Renewal{
		Node: name, Left: leaving,
		Stale: func(pod *corev1.Pod) bool { return concerned(pod) && has(pod, leaving) },
	})
}

// witnessesBeside is how many nodes that are not switched now test the connections of those that are.
const witnessesBeside = 3

// trial has pods on the nodes of a round, and on others of both networks, reach each other. It is the first thing that runs on a switched
// node beside DaemonSets.
func (p *Planner) trial(round []string, d engine.Direction) engine.Step {
	title := fmt.Sprintf("Verify that pods on node %s have the other network and reach both", round[0])
	if len(round) > 1 {
		title = fmt.Sprintf("Verify that pods on node %s and %d more have the other network and reach both", round[0], len(round)-1)
	}
	step := &connectivity.Step{
		Cluster:   p.Tools.Cluster,
		Migration: p.spec().Name,
		Name:      "canary/" + round[0],
		About:     title,
		Image:     p.image(),
		Targets:   p.spec().Canary.Targets,
		Only:      slices.Clone(round),
		Others:    p.Survey.NodeNames(),
		WithinOn:  map[string][]netip.Prefix{},
		Unfenced:  true,
		Anyone:    p.Survey.hides(),
	}
	for _, name := range round {
		step.WithinOn[name] = p.home(name, d)
	}
	if d == forward && p.Survey.enforcedBeside() { // where policies hold, they do on switched nodes
		step.FencedOn = slices.Clone(round)
	}
	for _, name := range p.Survey.NodeNames() {
		if !slices.Contains(round, name) && len(step.Only) < len(round)+witnessesBeside {
			step.Only = append(step.Only, name)
		}
	}
	return step
}

// verifyServing proves that every pod has the new network, from pods on the nodes.
func (p *Planner) verifyServing() []engine.Group {
	if p.over() {
		return nil
	}
	groups := engine.InOrder(p.everyNode(), awaitPods(occupancy{p.Tools, p.spec(), p.spec().To}, p.Survey.target()))
	if p.tries() {
		groups = append(
			groups,
			engine.InOrder(p.matrix("matrix", "Test connectivity with the new network", false, p.Survey.enforcedBeside()))...)
	}
	return groups
}

// withdrawServing removes the new network once no node has it.
func (p *Planner) withdrawServing() []engine.Group {
	if !p.Survey.begun() || p.Survey.Manifests == nil {
		return nil
	}
	groups := append(p.unapply(), p.restoreAll()...)
	groups = append(groups, p.uncross()...)
	groups = append(groups, p.clean(p.spec().To, "withdraw/clean")...)
	return append(groups, p.unmarked()...)
}

// unmarked are the nodes without what let the new network start on them.
func (p *Planner) unmarked() []engine.Group {
	var steps []engine.Step
	for _, node := range p.Survey.NodeNames() {
		steps = append(steps, p.beside(node, backward))
	}
	return engine.AtOnce(parallel, "Nodes", steps...)
}

func (p *Planner) tidyBack() []engine.Group {
	return slices.Concat(p.scaleBack(), p.Agents.Dismiss(), p.Remains, p.tidy(true))
}

// adopt has the new network run as its manifests say: it writes its configuration where runtimes read it. The nodes go by replumb's copy
// until the old network's is gone.
func (p *Planner) adopt() []engine.Group {
	held := p.Survey.held()
	if len(held) == 0 {
		return nil
	}
	return append(p.applyAll(held), engine.InOrder(awaitRollout(p.Tools, "adopt/rollout", p.spec().To, setsOf(held)))...)
}

// removeServing removes the old network from the cluster and from every node, while pods have the new one.
func (p *Planner) removeServing() []engine.Group {
	groups := append(p.removeOld(), p.cleanServing(p.Survey.from(), "clean")...)
	var own []engine.Step
	for _, node := range p.Survey.NodeNames() {
		own = append(own, p.adoptNode(node))
	}
	groups = append(groups, engine.AtOnce(parallel, "Nodes", own...)...)
	groups = append(groups, p.uncross()...)
	groups = append(groups, p.residues(p.Survey.from())...)
	if p.tries() {
		groups = append(
			groups,
			engine.InOrder(p.matrix("matrix/final", "Test connectivity without the old network", false, p.Survey.enforced()))...)
	}
	var plain []engine.Step
	for _, node := range p.Survey.NodeNames() {
		plain = append(plain, p.label(node, backward))
	}
	groups = append(groups, engine.AtOnce(parallel, "Nodes", plain...)...)
	return append(groups, p.unmarked()...)
}

// cleanServing removes from nodes what a network, or kube-proxy, has left there: as many nodes at once as are switched at once, the first one
// alone. A loss that it causes ends the run before it is done to others.
func (p *Planner) cleanServing(what v1alpha1.CNIName, id string) []engine.Group {
	var groups []engine.Group
	for _, round := range p.rounds(p.Survey.NodeNames()) {
		var steps []engine.Step
		for _, name := range round {
			steps = append(steps, p.cleaner(what, id, name))
		}
		groups = append(groups, engine.AtOnce(len(round), "Nodes", steps...)...)
		groups = append(groups, p.Agents.Steady(fmt.Sprintf("%s being gone from %s", what, round[0]))...)
	}
	return groups
}

func (p *Planner) tidyFinished() []engine.Group {
	return slices.Concat(p.scaleBack(), p.Agents.Dismiss(), p.Remains, p.tidy(false))
}
