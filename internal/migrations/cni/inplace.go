package cni

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cordon"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/kube/spare"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

const (
	phaseNodes = "nodes"
	phaseProxy = "kube-proxy"
)

// inPlacePlanner makes the plans of a switch under traffic.
type inPlacePlanner struct {
	*Planner
	inPlace   *inPlaceStrategy
	kubeProxy KubeProxy
}

// KubeProxy is what becomes of kube-proxy once every node has the new network.
type KubeProxy interface {
	Replace(p *inPlacePlanner) []engine.Group
	Restore(p *inPlacePlanner) []engine.Group
	Remove(p *inPlacePlanner) []engine.Group
}

// kubeProxyStays is a migration that leaves kube-proxy alone.
type kubeProxyStays struct{}

func (kubeProxyStays) Replace(*inPlacePlanner) []engine.Group { return nil }
func (kubeProxyStays) Restore(*inPlacePlanner) []engine.Group { return nil }
func (kubeProxyStays) Remove(*inPlacePlanner) []engine.Group  { return nil }

func (s *inPlaceStrategy) Plans(p *Planner) Plans { return s.PlansWith(p, kubeProxyStays{}) }

// PlansWith makes plans that do something with kube-proxy as well.
func (s *inPlaceStrategy) PlansWith(p *Planner, k KubeProxy) Plans {
	return newPlans(p, &inPlacePlanner{p, s, k}, inPlaceCommands())
}

// inPlaceCommands are the phases of a switch of the network under traffic, in order.
//
// Both networks run on every node, and a node changes from one to the other while none of its pods serve, by which CNI
// configuration its runtime reads. The old network stays complete until finish, so that every node can go back.
func inPlaceCommands() migration.Commands[*inPlacePlanner] {
	type phases = migration.Phases[*inPlacePlanner]
	return migration.Commands[*inPlacePlanner]{
		Apply: phases{
			migration.CheckPhase[*inPlacePlanner]("Check the cluster"),
			recordPhase[*inPlacePlanner](),
			watchPhase((*inPlacePlanner).watch),
			baselinePhase[*inPlacePlanner](),
			{Name: "install", Title: "Install the new network beside the old one", Recheck: true, Groups: (*inPlacePlanner).stage},
			{Name: "prepare", Title: "Add one pod to workloads that must keep serving", Recheck: true, Groups: (*inPlacePlanner).prepare},
			{
				Name: phaseNodes, Title: "Switch nodes to the new network, one after the other", Recheck: true,
				Groups: (*inPlacePlanner).switchNodes,
			},
			{
				Name: phaseProxy, Title: "Have Cilium lead to Services in place of kube-proxy, one node after the other", Recheck: true,
				Groups: func(p *inPlacePlanner) []engine.Group { return p.kubeProxy.Replace(p) },
			},
			againPhase[*inPlacePlanner](),
			{Name: "verify", Title: "Verify that every pod has the new network", Groups: (*inPlacePlanner).verify},
		},
		Rollback: phases{
			watchPhase((*inPlacePlanner).watchBack),
			{
				Name: phaseProxy, Title: "Have kube-proxy lead to Services again, one node after the other",
				Groups: func(p *inPlacePlanner) []engine.Group { return p.kubeProxy.Restore(p) },
			},
			{Name: phaseNodes, Title: "Switch nodes back to the old network, one after the other", Groups: (*inPlacePlanner).switchBack},
			{Name: "withdraw", Title: "Remove the new network", Groups: (*inPlacePlanner).withdraw},
			verifyBackPhase[*inPlacePlanner](),
			{Name: "tidy", Title: "Clean up", Groups: (*inPlacePlanner).tidyBack},
		},
		Finish: phases{
			watchPhase(func(p *inPlacePlanner) []engine.Group { return p.Agents.Install() }),
			migration.FinalPhase[*inPlacePlanner](),
			{Name: "adopt", Title: "Have the new network run as its manifests say", Groups: (*inPlacePlanner).unstage},
			{
				Name: phaseProxy, Title: "Remove kube-proxy",
				Groups: func(p *inPlacePlanner) []engine.Group { return p.kubeProxy.Remove(p) },
			},
			{Name: phaseRemove, Title: "Remove the old network", Groups: (*inPlacePlanner).remove},
			{Name: "tidy", Title: "Clean up", Groups: (*inPlacePlanner).tidyFinished},
		},
	}
}

func watchPhase(groups func(*inPlacePlanner) []engine.Group) migration.Phase[*inPlacePlanner] {
	return migration.Phase[*inPlacePlanner]{Name: agentset.Phase, Title: "Watch from every node", Groups: groups}
}

// watch puts agents on every node, unless nothing is left that they could see.
func (p *inPlacePlanner) watch() []engine.Group {
	if p.over() {
		return nil
	}
	return p.Agents.Install()
}

func (p *inPlacePlanner) watchBack() []engine.Group {
	if !p.Inventory.begun() {
		return nil
	}
	return p.Agents.InstallIfPossible()
}

// prepare gives what must not pause one more pod, as long as nodes have to be emptied.
func (p *inPlacePlanner) prepare() []engine.Group {
	if len(p.inPlace.toSwitch(forward)) == 0 {
		return nil
	}
	return engine.AtOnce(parallel, "", p.inPlace.Spares.Up(p.Deps.Client())...)
}

// switchNodes switches the nodes that do not have the new network: the first one alone, the others so many at once.
func (p *inPlacePlanner) switchNodes() []engine.Group {
	var groups []engine.Group
	for i, round := range p.rounds(p.inPlace.toSwitch(forward)) {
		groups = append(groups, p.switchRound(i+1, round, forward)...)
	}
	return groups
}

// switchBack goes through the same mixture of networks.
func (p *inPlacePlanner) switchBack() []engine.Group {
	nodes := p.inPlace.toSwitch(backward)
	if !p.Inventory.begun() || len(nodes) == 0 {
		return nil
	}
	groups := p.preserveSources()
	for i, round := range slices.Collect(slices.Chunk(nodes, p.parallel())) {
		groups = append(groups, p.switchRound(i+1, round, backward)...)
	}
	return groups
}

func (p *inPlacePlanner) parallel() int { return max(1, p.spec().InPlace.Parallel) }

// rounds are nodes as they are taken, so many at once. The first of a cluster is alone.
func (p *inPlacePlanner) rounds(nodes []string) [][]string {
	var rounds [][]string
	if len(nodes) > 0 && len(nodes) == len(p.Inventory.Nodes) {
		rounds, nodes = [][]string{nodes[:1]}, nodes[1:]
	}
	return slices.AppendSeq(rounds, slices.Chunk(nodes, p.parallel()))
}

// andMore names the first of some nodes, and how many there are beside it.
func andMore(nodes []string) string {
	if len(nodes) == 1 {
		return nodes[0]
	}
	return fmt.Sprintf("%s and %d more", nodes[0], len(nodes)-1)
}

// occasion is the one of hooks around a round.
func occasion(phase string, number int, nodes []string, d engine.Direction) hook.Occasion {
	run := hook.Apply
	if d == backward {
		run = hook.Rollback
	}
	return hook.Occasion{Run: run, Phase: phase, Batch: number, Nodes: nodes}
}

// switchRound is what is done to the nodes of one round, in this order.
func (p *inPlacePlanner) switchRound(number int, round []string, d engine.Direction) []engine.Group {
	title := andMore(round)
	var groups []engine.Group
	each := func(make func(name string) engine.Step) {
		var steps []engine.Step
		for _, name := range round {
			steps = append(steps, make(name))
		}
		groups = append(groups, engine.AtOnce(len(round), title, steps...)...)
	}
	of := func(name string) cordon.Node {
		return cordon.Node{Client: p.Deps.Client(), Migration: p.spec().Name, Name: name, Watched: p.Agents != nil}
	}
	each(func(name string) engine.Step { return of(name).Close() })
	each(func(name string) engine.Step { return p.drain(name, d) })
	if p.Agents != nil {
		each(func(name string) engine.Step {
			return &lossguard.Vacated{Watch: p.Agents.Watch, Node: name, Limit: p.Agents.Wait}
		})
	}
	each(func(name string) engine.Step { return p.activate(name, d) })
	each(func(name string) engine.Step { return p.annotate(name, d) })
	each(p.ready)
	each(func(name string) engine.Step { return p.renew(name, d) })
	if p.tries() {
		groups = append(groups, engine.InOrder(p.canary(round, d))...)
	}
	each(func(name string) engine.Step { return of(name).Open() })
	return p.around(title, occasion(phaseNodes, number, round, d), groups, p.recordCounts(title))
}

// drain makes pods leave a node but for those that have an address of the network it goes to.
func (p *inPlacePlanner) drain(name string, d engine.Direction) engine.Step {
	left := p.inPlace.left(d)
	return p.rollout().Drain(rollout.Leaving{
		Node: name, Taint: cordon.Taint(p.spec().Name), Bare: p.spec().InPlace.BarePods, Patience: p.spec().InPlace.JobWait.Duration,
		AtOnce: p.spec().InPlace.Workloads,
		Stays: func(pod *corev1.Pod) bool {
			return pod.Labels[connectivity.Label] != "" || len(calico.PodAddresses(pod)) > 0 && !hasAddressIn(pod, left)
		},
	})
}

// renew evicts what is still on a node with an address that is left.
func (p *inPlacePlanner) renew(name string, d engine.Direction) engine.Step {
	left := p.inPlace.left(d)
	return p.rollout().Renew(rollout.Renewal{
		Node: name, Left: left,
		Stale: func(pod *corev1.Pod) bool { return concerned(pod) && hasAddressIn(pod, left) },
	})
}

// witnessesBeside is how many nodes that are not switched now test the connections of those that are.
const witnessesBeside = 3

// canary has pods on the nodes of a round, and on others of both networks, reach each other. They are the first that run on a
// switched node beside DaemonSets.
func (p *inPlacePlanner) canary(round []string, d engine.Direction) engine.Step {
	step := &connectivity.Step{
		Cluster: p.Deps.Cluster, Migration: p.spec().Name, Image: p.image(), Targets: p.spec().Canary.Targets,
		Name:  "canary/" + round[0],
		About: fmt.Sprintf("Verify that pods on node %s have the other network and reach both", andMore(round)),
		Only:  slices.Clone(round), Others: p.Inventory.NodeNames(), WithinOn: map[string][]netip.Prefix{},
		Unfenced: true, Anyone: p.inPlace.masquerades(),
	}
	for _, name := range round {
		step.WithinOn[name] = p.inPlace.given(name, d)
	}
	if d == forward && p.inPlace.enforcedBeside() { // where policies hold, they do on switched nodes
		step.FencedOn = slices.Clone(round)
	}
	for _, name := range p.Inventory.NodeNames() {
		if !slices.Contains(round, name) && len(step.Only) < len(round)+witnessesBeside {
			step.Only = append(step.Only, name)
		}
	}
	return step
}

// verify proves that every pod has the new network, from pods on the nodes.
func (p *inPlacePlanner) verify() []engine.Group {
	if p.over() {
		return nil
	}
	return append(engine.InOrder(p.everyNode(), awaitPods(p.Deps, p.spec(), p.Inventory.target())),
		p.matrix("matrix", "Test connectivity with the new network", p.inPlace.enforcedBeside())...)
}

// withdraw removes the new network once no node has it.
func (p *inPlacePlanner) withdraw() []engine.Group {
	if !p.Inventory.begun() || p.Inventory.Manifests == nil {
		return nil
	}
	return slices.Concat(p.unapply(), p.restoreAll(), p.forgetSources(), p.clean(p.spec().To, "withdraw/clean"), p.unmark())
}

// unmark takes from nodes what let the new network start on them.
func (p *inPlacePlanner) unmark() []engine.Group {
	return p.eachNode(func(node string) engine.Step { return p.markBeside(node, backward) })
}

// remove removes the old network from the cluster and from every node, while pods have the new one.
func (p *inPlacePlanner) remove() []engine.Group {
	from := p.Inventory.from()
	return slices.Concat(
		p.removeOld(), p.cleanInRounds(from, "clean"), p.eachNode(p.adopt), p.forgetSources(), p.residues(from),
		p.matrix("matrix/final", "Test connectivity without the old network", p.Inventory.enforced()),
		p.eachNode(func(node string) engine.Step { return p.annotate(node, backward) }), p.unmark(),
	)
}

// cleanInRounds removes from nodes what a network, or kube-proxy, has left there, round by round. A loss that it causes ends
// the run before it is done to others.
func (p *inPlacePlanner) cleanInRounds(what v1alpha1.CNIName, prefix string) []engine.Group {
	var groups []engine.Group
	for _, round := range p.rounds(p.Inventory.NodeNames()) {
		var steps []engine.Step
		for _, name := range round {
			steps = append(steps, p.cleaner(what, prefix, name))
		}
		groups = append(groups, engine.AtOnce(len(round), "Nodes", steps...)...)
		groups = append(groups, p.Agents.Steady(fmt.Sprintf("%s being gone from %s", what, round[0]))...)
	}
	return groups
}

func (p *inPlacePlanner) tidyBack() []engine.Group {
	return append(p.dismiss(), p.tidyAll(p.unprivilege()...)...)
}

func (p *inPlacePlanner) tidyFinished() []engine.Group {
	return append(p.dismiss(), p.tidy(p.unprivilege()...)...)
}

// dismiss gives Deployments back how many pods they had, and takes agents away.
func (p *inPlacePlanner) dismiss() []engine.Group {
	return slices.Concat(engine.InOrder(spare.Back(p.Deps.Client(), p.spec().Name)), p.Agents.Dismiss(), p.Remains)
}

// unprivilege restores Pod Security, unless that is part of taking agents away.
func (p *inPlacePlanner) unprivilege() []engine.Step {
	if p.Agents != nil || len(p.Remains) > 0 {
		return nil
	}
	return []engine.Step{p.Unprivilege()}
}
