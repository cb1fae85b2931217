package kubeproxy

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/daemonset"
	"github.com/replumb/replumb/internal/network/proxyrules"
	"github.com/replumb/replumb/internal/network/servicetrial"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

const (
	phaseNodes  = "nodes"
	phaseReturn = "return"
)

// commands are the phases of a change of kube-proxy's mode, in order.
//
// All pods of a DaemonSet read one configuration, and end when it changes. So a second DaemonSet
// has the other mode, and nodes go to it one after the other by a label. On a node both run until
// the new one leads to every Service, and a copy of the rules leads meanwhile, since either removes
// those of the other when it starts. When no pod reads the configuration any more it is changed,
// and nodes go back to the DaemonSet that the cluster's installer knows.
//
// A program of a node reads a configuration of its own, so phase nodes is all: its owner restarts
// it in the other mode, while a copy of the rules leads.
//
// Out of mode ipvs, and back, the way is the same without a copy (ipvs.go).
func commands() migration.Commands[*Planner] {
	type phases = migration.Phases[*Planner]
	way := func(d engine.Direction, groups func(*Planner, engine.Direction) []engine.Group) func(*Planner) []engine.Group {
		return func(p *Planner) []engine.Group {
			if !p.Inventory.known() || d == engine.Backward && p.elsewhere() {
				return nil
			}
			return groups(p, d)
		}
	}
	pods := func(d engine.Direction, groups func(*Planner, engine.Direction) []engine.Group) func(*Planner) []engine.Group {
		return func(p *Planner) []engine.Group {
			if p.spec().Program != nil {
				return nil
			}
			return way(d, groups)(p)
		}
	}
	there, back := engine.Forward, engine.Backward
	return migration.Commands[*Planner]{
		Apply: phases{
			migration.CheckPhase[*Planner]("Check the cluster"),
			{Name: "secure", Title: "Record the migration and back up what it changes", Own: true, Recheck: true, Groups: (*Planner).secure},
			lossguard.Phase("", (*Planner).watch),
			{Name: "prepare", Title: "Prepare a second DaemonSet with the new mode", Recheck: true, Groups: pods(there, (*Planner).prepare)},
			{Name: phaseNodes, Title: "Change nodes to the new mode, one after the other", Recheck: true, Groups: way(there, (*Planner).changeNodes)},
			{Name: "configure", Title: "Set the mode in kube-proxy's own configuration", Recheck: true, Groups: pods(there, (*Planner).configured)},
			{
				Name: phaseReturn, Title: "Give nodes back to kube-proxy's own DaemonSet, one after the other", Recheck: true,
				Groups: pods(there, (*Planner).giveBack),
			},
		},
		Rollback: phases{
			lossguard.Phase("", (*Planner).watchBack),
			{
				Name: "resume", Title: "Give nodes back to kube-proxy's own DaemonSet before they go the other way",
				Groups: (*Planner).giveBackFirst, Replan: (*Planner).elsewhere,
			},
			{Name: "prepare", Title: "Prepare a second DaemonSet with the former mode", Groups: pods(back, (*Planner).prepare)},
			{Name: phaseNodes, Title: "Change nodes back to the former mode, one after the other", Groups: way(back, (*Planner).changeNodes)},
			{Name: "configure", Title: "Set the former mode in kube-proxy's own configuration", Groups: pods(back, (*Planner).configured)},
			{
				Name: phaseReturn, Title: "Give nodes back to kube-proxy's own DaemonSet, one after the other",
				Groups: pods(back, (*Planner).giveBack),
			},
			{Name: "tidy", Title: "Clean up", Groups: (*Planner).tidyBack},
		},
		Finish: phases{
			{Name: "leave", Title: "Wait until nothing uses what mode ipvs has left", Groups: (*Planner).leaveIPVS},
			migration.FinalPhase[*Planner](),
			{Name: "remove", Title: "Remove what mode ipvs has left", Groups: (*Planner).removeIPVS},
			{Name: "tidy", Title: "Clean up", Groups: (*Planner).tidy},
		},
	}
}

// Planner makes plans of what was found.
type Planner struct {
	migration.Base
	Inventory *Inventory
	// Image is replumb's, for what it runs on nodes.
	Image  pull.Image
	Agents *lossguard.Agents
	// Remains takes away what an earlier run has left of agents.
	Remains []engine.Group
}

func (p *Planner) Apply() *engine.Plan { return commands().Apply.Plan(p, p.Migration, hook.Apply) }

func (p *Planner) Rollback() *engine.Plan {
	return commands().Rollback.Plan(p, p.Migration, hook.Rollback)
}

func (p *Planner) Finish() *engine.Plan { return commands().Finish.Plan(p, p.Migration, hook.Finish) }

func (p *Planner) Counts() v1alpha1.Counts { return p.Inventory.counts() }
func (p *Planner) Left() string            { return p.Inventory.left() }
func (p *Planner) Early() string           { return p.Left() }
func (p *Planner) spec() Spec              { return p.Inventory.Spec }

// ApplyPhases are the names of the phases of apply, in order.
func ApplyPhases() []string { return commands().Apply.Names() }

// phaseNames are the names of the phases of all commands, which hooks can name.
func phaseNames() []string { return commands().Names() }

// Outlines are the phases of all commands, for people.
func Outlines() []migration.Outline { return []migration.Outline{commands().Outline("")} }

func (p *Planner) secure() []engine.Group {
	secure := migration.Securing{Privileged: true}
	if p.Inventory.Status.From == "" && p.Inventory.known() {
		secure.Then = []engine.Step{p.record()}
		if p.Inventory.Config != nil {
			secure.Originals = append(secure.Originals, p.Inventory.Config)
		}
		if own := p.Inventory.own(); own != nil {
			secure.Originals = append(secure.Originals, own)
		}
	}
	return p.Secure(secure)
}

func (p *Planner) watch() []engine.Group {
	if p.Migration.Status.Phase == v1alpha1.PhaseMoved && p.Left() == "" {
		return nil
	}
	return p.Agents.Install()
}

func (p *Planner) watchBack() []engine.Group {
	if p.Inventory.Status.From == "" {
		return nil
	}
	return p.Agents.InstallIfPossible()
}

// elsewhere reports whether nodes have to be given back before they go the way of rollback: both
// DaemonSets have the mode that is to go.
func (p *Planner) elsewhere() bool {
	s := p.Inventory
	mode, _ := s.toward(engine.Backward)
	return s.known() && s.Second != nil && s.mode() != mode && s.secondMode() == s.mode()
}

// giveBackFirst is all that can be planned then.
func (p *Planner) giveBackFirst() []engine.Group {
	if !p.elsewhere() {
		return nil
	}
	return p.returnNodes(engine.Backward, p.Inventory.mode())
}

// prepare makes the second DaemonSet, unless the own one has the mode already.
func (p *Planner) prepare(d engine.Direction) []engine.Group {
	s := p.Inventory
	mode, _ := s.toward(d)
	if s.mode() == mode {
		return nil
	}
	was, err := s.affinity()
	if err != nil {
		return nil
	}
	var steps []engine.Step
	if s.At.configMap != "" {
		cm, err := secondConfig(s.Config, s.At, mode, s.Spec.Name)
		if err != nil {
			return nil
		}
		steps = append(steps, p.create(cm, "ConfigMap", "second/config"))
	}
	steps = append(steps,
		p.create(second(s.own(), was, s.At, mode, s.Spec.Name), "DaemonSet", "second/daemonset"),
		daemonset.KeepOff(p.Tools.Cluster, s.own(), "keep-off", "Have "+daemonset.Name(s.own())+" leave nodes that are changed", kept),
		daemonset.Settled(p.Tools.Cluster, s.own(), "kept-off", "kube-proxy"),
	)
	return engine.InOrder(steps...)
}

// changeNodes changes the nodes that do not have the mode: by the second DaemonSet, or, on the way
// back from half of the nodes, by the own one.
func (p *Planner) changeNodes(d engine.Direction) []engine.Group {
	s := p.Inventory
	mode, _ := s.toward(d)
	switch {
	case s.Spec.Program != nil:
		return p.restartNodes(d, mode)
	case s.mode() != mode:
		nodes := s.names(notSwitched)
		return p.rounds(phaseNodes, d, nodes, func(node string) []engine.Step { return p.handOver(node, mode, d) })
	case s.Second != nil && s.secondMode() != mode:
		nodes := s.names(marked)
		slices.Reverse(nodes)
		groups := p.rounds(phaseNodes, d, nodes, func(node string) []engine.Step { return p.takeBack(node, mode) })
		return append(groups, p.dismissSecond(s.secondMode())...)
	}
	return nil
}

// handOver has the second DaemonSet's kube-proxy lead on a node, and then ends the own one's.
func (p *Planner) handOver(node string, mode v1alpha1.KubeProxyMode, d engine.Direction) []engine.Step {
	own := p.Inventory.own()
	to := second(own, nil, p.Inventory.At, mode, p.spec().Name)
	m := modes{p.Inventory.mode(), mode}
	steps := append(p.before(node, m),
		p.mark(node, v1alpha1.ModeBeside, "Start kube-proxy in mode "+string(mode), v1alpha1.ModeLeaving),
		daemonset.There(p.Tools.Cluster, "there", "kube-proxy in mode "+string(mode), node, *to),
		p.compareRules(node, m, proxyrules.ByTurns),
	)
	for _, g := range p.steady("rules of mode "+string(mode)+" on "+node, d) { // a loss ends the run while both run
		steps = append(steps, g.Steps...)
	}
	return slices.Concat(steps, []engine.Step{
		p.mark(node, v1alpha1.ModeLeaving, "End kube-proxy of the former mode"),
		daemonset.Gone(p.Tools.Cluster, "gone", "kube-proxy of the former mode", node, *own),
		p.trial(node, "services", mode),
	}, p.alone(node, m), p.after(node, m), []engine.Step{
		p.mark(node, v1alpha1.ModeSwitched, "Record that kube-proxy has mode "+string(mode)),
	})
}

// takeBack has the own kube-proxy, whose configuration was not changed yet, lead on a node again.
func (p *Planner) takeBack(node string, mode v1alpha1.KubeProxyMode) []engine.Step {
	own, m := p.Inventory.own(), modes{p.Inventory.secondMode(), mode}
	return slices.Concat(p.before(node, m), []engine.Step{
		p.mark(node, v1alpha1.ModeBeside, "Start kube-proxy in mode "+string(mode), v1alpha1.ModeRestored),
		daemonset.There(p.Tools.Cluster, "back", "kube-proxy in mode "+string(mode), node, *own),
		p.compareRules(node, m, proxyrules.ByTurns),
		p.mark(node, v1alpha1.ModeRestored, "End kube-proxy of the other mode"),
		daemonset.Gone(p.Tools.Cluster, "gone", "kube-proxy of the other mode", node, *p.Inventory.Second),
		p.trial(node, "services", mode),
	}, p.alone(node, m), p.after(node, m), []engine.Step{p.mark(node, "", "Forget whose kube-proxy runs")})
}

func other(mode v1alpha1.KubeProxyMode) v1alpha1.KubeProxyMode {
	if mode == v1alpha1.KubeProxyNFTables {
		return v1alpha1.KubeProxyIPTables
	}
	return v1alpha1.KubeProxyNFTables
}

// configured sets the mode for the own DaemonSet, none of whose pods runs then.
func (p *Planner) configured(d engine.Direction) []engine.Group {
	s := p.Inventory
	mode, configures := s.toward(d)
	if s.mode() == mode {
		return nil
	}
	return engine.InOrder(p.nobody(s.own()), p.configure(mode, configures))
}

// giveBack returns nodes to the own DaemonSet, once that has the mode.
func (p *Planner) giveBack(d engine.Direction) []engine.Group {
	s := p.Inventory
	mode, _ := s.toward(d)
	left := s.Second == nil && (s.own().Annotations[v1alpha1.AnnotationAffinity] != "" || len(s.names(marked)) > 0)
	if s.mode() == mode && s.secondMode() != mode && !left {
		return nil
	}
	return p.returnNodes(d, mode)
}

// returnNodes has the own DaemonSet's pods, of the same mode, take over from the second one's:
// rules stay as they are.
func (p *Planner) returnNodes(d engine.Direction, mode v1alpha1.KubeProxyMode) []engine.Group {
	s := p.Inventory
	own, from := s.own(), second(s.own(), nil, s.At, mode, s.Spec.Name)
	nodes := s.names(func(mark string) bool { return mark != "" || s.mode() != mode })
	groups := p.rounds(phaseReturn, d, nodes, func(node string) []engine.Step {
		return []engine.Step{
			p.mark(node, v1alpha1.ModeReturning, "Start kube-proxy of "+daemonset.Name(own)),
			daemonset.There(p.Tools.Cluster, "returned", "kube-proxy of "+daemonset.Name(own), node, *own),
			p.mark(node, "", "End kube-proxy of "+daemonset.Name(from)),
			daemonset.Gone(p.Tools.Cluster, "left", "kube-proxy of "+daemonset.Name(from), node, *from),
			p.trial(node, "returned-services", mode),
		}
	})
	return append(groups, p.dismissSecond(mode)...)
}

// dismissSecond removes the second DaemonSet, which has no pods any more.
func (p *Planner) dismissSecond(mode v1alpha1.KubeProxyMode) []engine.Group {
	s := p.Inventory
	from := second(s.own(), nil, s.At, mode, s.Spec.Name)
	groups := engine.InOrder(p.remove(from, "DaemonSet", "dismiss/daemonset"))
	if s.At.configMap != "" {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: from.Namespace, Name: secondName(s.At.configMap, mode)}}
		groups = append(groups, engine.InOrder(p.remove(cm, "ConfigMap", "dismiss/config"))...)
	}
	return append(groups, p.letOn()...)
}

func (p *Planner) letOn() []engine.Group {
	own := p.Inventory.own()
	return engine.InOrder(
		daemonset.LetOn(p.Tools.Cluster, own, "let-on", "Let "+daemonset.Name(own)+" on nodes as before"),
		daemonset.Settled(p.Tools.Cluster, own, "settled", "kube-proxy"),
	)
}

// rounds change nodes: the first of a cluster alone, then so many at once.
func (p *Planner) rounds(phase string, d engine.Direction, nodes []string, steps func(node string) []engine.Step) (groups []engine.Group) {
	if len(nodes) == 0 {
		return nil
	}
	rounds := [][]string{nodes[:1]}
	rounds = slices.AppendSeq(rounds, slices.Chunk(nodes[1:], p.spec().Parallel))
	for i, round := range rounds {
		title := round[0]
		if len(round) > 1 {
			title = fmt.Sprintf("%s and %d more", round[0], len(round)-1)
		}
		groups = append(groups, p.around(title, phase, i+1, round, d, steps)...)
	}
	return groups
}

// around has the window, the hooks and a look at every probe around a round. The steps of its nodes
// go side by side.
func (p *Planner) around(
	title, phase string, number int, round []string, d engine.Direction, steps func(node string) []engine.Step,
) (groups []engine.Group) {
	run := hook.Apply
	if d == engine.Backward {
		run = hook.Rollback
	} else if windows := p.spec().Common.Windows; len(windows) > 0 {
		groups = engine.AtOnce(1, title, window.NewStep("window/"+phase+"/"+title, windows, p.Tools.Now))
	}
	o := hook.Occasion{Run: run, Phase: phase, Batch: number, Nodes: round}
	before, after := o, o
	before.Moment, after.Moment = v1alpha1.BeforeBatch, v1alpha1.AfterBatch
	groups = append(groups, p.Hooks(before)...)
	of := make([][]engine.Step, len(round))
	for i, node := range round {
		of[i] = steps(node)
	}
	for k := range of[0] {
		var at []engine.Step
		for i := range of {
			at = append(at, of[i][k])
		}
		groups = append(groups, engine.AtOnce(sideBySide(at), title, at...)...)
	}
	return slices.Concat(groups, p.steady(phase+" "+title, d), p.Hooks(after))
}

// sideBySide is how many of the same step may go at once: there is one trial of Services.
func sideBySide(steps []engine.Step) int {
	if _, one := steps[0].(*servicetrial.Step); one {
		return 1
	}
	return len(steps)
}

// steady has every probe answered. The way back does not wait for agents for ever.
func (p *Planner) steady(after string, d engine.Direction) []engine.Group {
	if d == engine.Backward {
		return p.Agents.BestEffort(p.Agents.Steady(after))
	}
	return p.Agents.Steady(after)
}

func (p *Planner) tidyBack() []engine.Group {
	if p.Inventory.known() && p.elsewhere() {
		return nil
	}
	return slices.Concat(p.Agents.Dismiss(), p.Remains,
		engine.InOrder(slices.Concat(p.Thaw(), p.unprivilege(), p.ForgetAll(migration.Sweep{}), []engine.Step{p.forget()})...))
}

func (p *Planner) tidy() []engine.Group {
	return slices.Concat(p.Agents.Dismiss(), p.Remains,
		engine.InOrder(slices.Concat(p.Thaw(), p.forgetNodes(), p.unprivilege(), p.Forget(migration.Sweep{}))...))
}

// unprivilege restores Pod Security, unless that is part of taking agents away.
func (p *Planner) unprivilege() []engine.Step {
	if p.Agents != nil || len(p.Remains) > 0 {
		return nil
	}
	return []engine.Step{p.Unprivilege()}
}
