// Package inplace replaces the network of one node after the other, in a cluster that serves:
// plan.go lists the phases in order.
package inplace

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

const (
	phaseNodes = "nodes"
	// PhaseProxy is that of kube-proxy in each command.
	PhaseProxy = "kube-proxy"
)

// Planner makes the plans of a switch under traffic.
type Planner struct {
	*switchover.Planner
	inPlace   *Strategy
	kubeProxy KubeProxy
}

// KubeProxy is what becomes of kube-proxy once every node has the new network.
type KubeProxy interface {
	Replace(p *Planner) []engine.Group
	Restore(p *Planner) []engine.Group
	Remove(p *Planner) []engine.Group
}

// kubeProxyStays is a migration that leaves kube-proxy alone.
type kubeProxyStays struct{}

func (kubeProxyStays) Replace(*Planner) []engine.Group { return nil }
func (kubeProxyStays) Restore(*Planner) []engine.Group { return nil }
func (kubeProxyStays) Remove(*Planner) []engine.Group  { return nil }

func (s *Strategy) Plans(p *switchover.Planner) switchover.Plans {
	return s.PlansWith(p, kubeProxyStays{})
}

// PlansWith makes plans that do something with kube-proxy as well.
func (s *Strategy) PlansWith(p *switchover.Planner, k KubeProxy) switchover.Plans {
	return switchover.NewPlans(p, &Planner{p, s, k}, Commands())
}

// Commands are the phases of a switch of the network under traffic, in order.
//
// Both networks run on every node, and a node changes from one to the other while none of its pods
// serve, by which CNI configuration its runtime reads. The old network stays complete until finish,
// so that every node can go back.
func Commands() migration.Commands[*Planner] {
	type phases = migration.Phases[*Planner]
	return migration.Commands[*Planner]{
		Apply: phases{
			migration.CheckPhase[*Planner]("Check the cluster"),
			switchover.RecordPhase[*Planner](),
			watchPhase((*Planner).watch),
			switchover.BaselinePhase[*Planner](),
			{Name: "install", Title: "Install the new network beside the old one", Recheck: true, Groups: (*Planner).stage},
			{Name: "prepare", Title: "Add one pod to workloads that must keep serving", Recheck: true, Groups: (*Planner).prepare},
			{
				Name: phaseNodes, Title: "Switch nodes to the new network, one after the other", Recheck: true,
				Groups: (*Planner).switchNodes,
			},
			{
				Name: PhaseProxy, Title: "Have Cilium lead to Services in place of kube-proxy, one node after the other", Recheck: true,
				Groups: func(p *Planner) []engine.Group { return p.kubeProxy.Replace(p) },
			},
			switchover.AgainPhase[*Planner](),
			{Name: "verify", Title: "Verify that every pod has the new network", Groups: (*Planner).verify},
		},
		Rollback: phases{
			watchPhase((*Planner).watchBack),
			{
				Name: PhaseProxy, Title: "Have kube-proxy lead to Services again, one node after the other",
				Groups: func(p *Planner) []engine.Group { return p.kubeProxy.Restore(p) },
			},
			{Name: phaseNodes, Title: "Switch nodes back to the old network, one after the other", Groups: (*Planner).switchBack},
			{Name: "withdraw", Title: "Remove the new network", Groups: (*Planner).withdraw},
			switchover.VerifyBackPhase[*Planner](),
			{Name: "tidy", Title: "Clean up", Groups: (*Planner).tidyBack},
		},
		Finish: phases{
			watchPhase(func(p *Planner) []engine.Group { return p.Agents.Install() }),
			migration.FinalPhase[*Planner](),
			{Name: "adopt", Title: "Have the new network run as its manifests say", Groups: (*Planner).unstage},
			{
				Name: PhaseProxy, Title: "Remove kube-proxy",
				Groups: func(p *Planner) []engine.Group { return p.kubeProxy.Remove(p) },
			},
			{Name: switchover.PhaseRemove, Title: "Remove the old network", Groups: (*Planner).remove},
			{Name: "tidy", Title: "Clean up", Groups: (*Planner).tidyFinished},
		},
	}
}

func watchPhase(groups func(*Planner) []engine.Group) migration.Phase[*Planner] {
	return migration.Phase[*Planner]{Name: agentset.Phase, Title: "Watch from every node", Groups: groups}
}

func (p *Planner) watch() []engine.Group {
	if p.Over() {
		return nil
	}
	return p.Agents.Install()
}

func (p *Planner) watchBack() []engine.Group {
	if !p.Inventory.Begun() {
		return nil
	}
	return p.Agents.InstallIfPossible()
}

// prepare gives what must not pause one more pod, as long as nodes have to be emptied.
func (p *Planner) prepare() []engine.Group {
	if len(p.inPlace.toSwitch(engine.Forward)) == 0 {
		return nil
	}
	return engine.AtOnce(manifests.Parallel, "", p.inPlace.Spares.Up(p.Deps.Client())...)
}

// switchNodes switches the nodes that do not have the new network: the first one alone, the others
// so many at once.
func (p *Planner) switchNodes() []engine.Group {
	var groups []engine.Group
	for i, round := range p.rounds(p.inPlace.toSwitch(engine.Forward)) {
		groups = append(groups, p.switchRound(i+1, round, engine.Forward)...)
	}
	return groups
}

// switchBack goes through the same mixture of networks.
func (p *Planner) switchBack() []engine.Group {
	nodes := p.inPlace.toSwitch(engine.Backward)
	if !p.Inventory.Begun() || len(nodes) == 0 {
		return nil
	}
	groups := p.preserveSources()
	for i, round := range slices.Collect(slices.Chunk(nodes, p.parallel())) {
		groups = append(groups, p.switchRound(i+1, round, engine.Backward)...)
	}
	return groups
}

func (p *Planner) parallel() int { return max(1, p.Spec().InPlace.Parallel) }

// rounds are nodes as they are taken, so many at once. The first of a cluster is alone.
func (p *Planner) rounds(nodes []string) [][]string {
	var rounds [][]string
	if len(nodes) > 0 && len(nodes) == len(p.Inventory.Nodes) {
		rounds, nodes = [][]string{nodes[:1]}, nodes[1:]
	}
	return slices.AppendSeq(rounds, slices.Chunk(nodes, p.parallel()))
}

func andMore(nodes []string) string {
	if len(nodes) == 1 {
		return nodes[0]
	}
	return fmt.Sprintf("%s and %d more", nodes[0], len(nodes)-1)
}

// Occasion is the one of hooks around a round.
func Occasion(phase string, number int, nodes []string, d engine.Direction) hook.Occasion {
	run := hook.Apply
	if d == engine.Backward {
		run = hook.Rollback
	}
	return hook.Occasion{Run: run, Phase: phase, Batch: number, Nodes: nodes}
}

func (p *Planner) switchRound(number int, round []string, d engine.Direction) []engine.Group {
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
		return cordon.Node{Client: p.Deps.Client(), Migration: p.Spec().Name, Name: name, Watched: p.Agents != nil}
	}
	each(func(name string) engine.Step { return of(name).Close() })
	each(func(name string) engine.Step { return p.drain(name, d) })
	if p.Agents != nil {
		each(p.Agents.Vacated)
	}
	each(func(name string) engine.Step { return p.activate(name, d) })
	each(func(name string) engine.Step { return p.annotate(name, d) })
	each(p.ready)
	each(func(name string) engine.Step { return p.renew(name, d) })
	if p.Tries() {
		groups = append(groups, engine.InOrder(p.canary(round, d))...)
	}
	each(func(name string) engine.Step { return of(name).Open() })
	return p.Around(title, Occasion(phaseNodes, number, round, d), groups, p.recordCounts(title))
}

func (p *Planner) drain(name string, d engine.Direction) engine.Step {
	left := p.inPlace.left(d)
	return p.Rollout().Drain(rollout.Leaving{
		Node: name, Taint: cordon.Taint(p.Spec().Name), Bare: p.Spec().InPlace.BarePods, Patience: p.Spec().InPlace.JobWait.Duration,
		AtOnce: p.Spec().InPlace.Workloads,
		Stays: func(pod *corev1.Pod) bool {
			return pod.Labels[connectivity.Label] != "" || len(calico.PodAddresses(pod)) > 0 && !hasAddressIn(pod, left)
		},
	})
}

func (p *Planner) renew(name string, d engine.Direction) engine.Step {
	left := p.inPlace.left(d)
	return p.Rollout().Renew(rollout.Renewal{
		Node: name, Left: left,
		Stale: func(pod *corev1.Pod) bool { return switchover.Concerned(pod) && hasAddressIn(pod, left) },
	})
}

// witnessesBeside is how many nodes that are not switched now test the connections of those that
// are.
const witnessesBeside = 3

// canary has pods on the nodes of a round, and on others of both networks, reach each other. They
// are the first that run on a switched node beside DaemonSets.
func (p *Planner) canary(round []string, d engine.Direction) engine.Step {
	step := &connectivity.Step{
		Cluster: p.Deps.Cluster, Migration: p.Spec().Name, Image: p.Image(), Targets: p.Spec().Canary.Targets,
		Name:  "canary/" + round[0],
		About: fmt.Sprintf("Verify that pods on node %s have the other network and reach both", andMore(round)),
		Only:  slices.Clone(round), Others: p.Inventory.NodeNames(), WithinOn: map[string][]netip.Prefix{},
		Unfenced: true, Anyone: p.inPlace.masquerades(),
	}
	for _, name := range round {
		step.WithinOn[name] = p.inPlace.given(name, d)
	}
	if d == engine.Forward && p.inPlace.enforcedBeside() { // where policies hold, they do on switched nodes
		step.FencedOn = slices.Clone(round)
	}
	for _, name := range p.Inventory.NodeNames() {
		if !slices.Contains(round, name) && len(step.Only) < len(round)+witnessesBeside {
			step.Only = append(step.Only, name)
		}
	}
	return step
}

func (p *Planner) verify() []engine.Group {
	if p.Over() {
		return nil
	}
	return append(engine.InOrder(p.everyNode(), switchover.AwaitPods(p.Deps, p.Spec(), p.Inventory.Target())),
		p.Matrix("matrix", "Test connectivity with the new network", p.inPlace.enforcedBeside())...)
}

func (p *Planner) withdraw() []engine.Group {
	if !p.Inventory.Begun() || p.Inventory.Manifests == nil {
		return nil
	}
	return slices.Concat(p.Unapply(), p.RestoreAll(), p.forgetSources(), p.Clean(p.Spec().To, "withdraw/clean"), p.unmark())
}

func (p *Planner) unmark() []engine.Group {
	return p.EachNode(func(node string) engine.Step { return p.markBeside(node, engine.Backward) })
}

func (p *Planner) remove() []engine.Group {
	from := p.Inventory.From()
	return slices.Concat(
		p.RemoveOld(), p.CleanInRounds(from, "clean"), p.EachNode(p.adopt), p.forgetSources(), p.Residues(from),
		p.Matrix("matrix/final", "Test connectivity without the old network", p.Inventory.Enforced()),
		p.EachNode(func(node string) engine.Step { return p.annotate(node, engine.Backward) }), p.unmark(),
	)
}

// CleanInRounds removes from nodes what a network, or kube-proxy, has left there, round by round. A
// loss that it causes ends the run before it is done to others.
func (p *Planner) CleanInRounds(what v1alpha1.CNIName, prefix string) []engine.Group {
	var groups []engine.Group
	for _, round := range p.rounds(p.Inventory.NodeNames()) {
		var steps []engine.Step
		for _, name := range round {
			steps = append(steps, p.Cleaner(what, prefix, name))
		}
		groups = append(groups, engine.AtOnce(len(round), "Nodes", steps...)...)
		groups = append(groups, p.Agents.Steady(fmt.Sprintf("%s being gone from %s", what, round[0]))...)
	}
	return groups
}

func (p *Planner) tidyBack() []engine.Group {
	return append(p.dismiss(), p.TidyAll(p.unprivilege()...)...)
}

func (p *Planner) tidyFinished() []engine.Group {
	return append(p.dismiss(), p.Tidy(p.unprivilege()...)...)
}

func (p *Planner) dismiss() []engine.Group {
	return slices.Concat(engine.InOrder(spare.Back(p.Deps.Client(), p.Spec().Name)), p.Agents.Dismiss(), p.Remains)
}

// unprivilege restores Pod Security, unless that is part of taking agents away.
func (p *Planner) unprivilege() []engine.Step {
	if p.Agents != nil || len(p.Remains) > 0 {
		return nil
	}
	return []engine.Step{p.Unprivilege()}
}
