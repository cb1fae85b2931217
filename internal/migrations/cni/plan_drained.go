package cni

import (
	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec/window"
)

// commands are the phases of a switch of the network, in order.
//
// Pods keep their sandboxes until the new network is there: a kubelet ends a sandbox by the CNI configuration it has at that time
// and, while it has none, not at all. The new plugin does not know it and lets it go; what the old one had on the node is gone by then.
func commands() migration.Commands[*Planner] {
	type phases = migration.Phases[*Planner]
	return migration.Commands[*Planner]{
		Apply: phases{
			migration.CheckPhase[*Planner]("Check the cluster"),
			{
				Name:    "secure",
				Title:   "Record the migration and back up what it changes",
				Own:     true,
				Recheck: true,
				Groups:  (*Planner).secure,
			},
			{Name: "baseline", Title: "Test connectivity with the old network", Recheck: true, Groups: (*Planner).baseline},
			{Name: "quiet", Title: "Verify that there is no client traffic", Groups: (*Planner).quiet},
			{Name: phaseRemove, Title: "Remove the old network", Recheck: true, Groups: (*Planner).remove},
			{Name: "install", Title: "Install the new network", Recheck: true, Groups: (*Planner).install},
			{Name: "pods", Title: "Recreate all pods", Groups: func(p *Planner) []engine.Group { return p.pods(p.spec().To) }},
			againPhase(),
			{
				Name: "verify", Title: "Verify that every pod has the new network, and every node is clean of the old one",
				Groups: (*Planner).verify,
			},
		},
		Rollback: phases{
			{Name: "withdraw", Title: "Remove the new network", Groups: (*Planner).withdraw},
			{Name: "restore", Title: "Restore the old network", Groups: (*Planner).restore},
			{Name: "pods", Title: "Recreate all pods", Groups: (*Planner).podsBack},
			{Name: "verify", Title: "Verify that everything is as it was", Groups: (*Planner).verifyBack},
			{Name: "tidy", Title: "Clean up", Groups: func(p *Planner) []engine.Group { return p.tidy(true) }},
		},
		Finish: phases{
			migration.FinalPhase[*Planner](),
			{Name: "tidy", Title: "Clean up", Groups: func(p *Planner) []engine.Group { return p.tidy(false) }},
		},
	}
}

func (p *Planner) quiet() []engine.Group {
	if p.Survey.begun() || !p.spec().Quiet {
		return nil
	}
	return []engine.Group{{Title: "Traffic", Parallel: max(1, len(p.Survey.Nodes)), Steps: p.watches()}}
}

func (p *Planner) remove() []engine.Group {
	if p.Survey.Status.Since != nil && len(p.Survey.Old) == 0 {
		return nil
	}
	var groups []engine.Group
	if windows := p.spec().Common.Windows; len(windows) > 0 && !p.Survey.begun() {
		groups = engine.InOrder(window.NewStep("window", windows, p.Tools.Now))
	}
	groups = append(groups, engine.InOrder(p.status().begin("Record that pods lose their network"))...)
	groups = append(groups, p.removeOld()...)
	if p.spec().Nodes.Mode == v1alpha1.CNINodesReplace {
		return groups
	}
	return append(groups, p.clean(p.Survey.from(), "clean")...)
}

func (p *Planner) install() []engine.Group {
	if p.Survey.Manifests == nil || p.Survey.Status.Network == p.spec().To && p.Survey.Status.Since != nil {
		return nil
	}
	groups := p.applyAll(p.Survey.Manifests.Objects)
	if p.spec().Nodes.Mode == v1alpha1.CNINodesReplace {
		groups = append(groups, engine.InOrder(replaceNodes(p.Tools, p.spec()))...)
	}
	return append(groups, engine.InOrder(
		awaitRollout(p.Tools, "rollout", p.spec().To, setsOf(p.Survey.Manifests.Objects)),
		p.status().since(p.spec().To),
	)...)
}

// pods recreates the cluster's DNS first: all others ask it as they start.
func (p *Planner) pods(network v1alpha1.CNIName) []engine.Group {
	if network == p.spec().To && p.switched() {
		return nil
	}
	of := occupancy{tools: p.Tools, spec: p.spec(), network: network}
	steps := []engine.Step{of.recreate(true), of.recreate(false)}
	var bare []engine.Step
	for i := range p.Survey.Bare {
		bare = append(bare, of.recreateBare(&p.Survey.Bare[i]))
	}
	return append(engine.InOrder(steps...), engine.AtOnce(parallel, "Pods without an owner", bare...)...)
}

func (p *Planner) verify() []engine.Group {
	if p.over() {
		return nil
	}
	groups := engine.InOrder(awaitPods(occupancy{p.Tools, p.spec(), p.spec().To}, p.Survey.target()))
	if p.spec().Nodes.Mode == v1alpha1.CNINodesInPlace { // other nodes have never had it
		groups = append(groups, p.residues(p.Survey.from())...)
	}
	if p.tries() {
		groups = append(groups, engine.InOrder(p.matrix("matrix", "Test connectivity with the new network", false, p.Survey.enforced()))...)
	}
	return groups
}

// withdraw deletes what was applied, last things first, and cleans the nodes. What was there before stays.
func (p *Planner) withdraw() []engine.Group {
	if !p.Survey.begun() || p.Survey.Manifests == nil {
		return nil
	}
	groups := p.unapply()
	if p.Survey.Status.Network == p.Survey.from() && p.Survey.Status.Since != nil { // this far an earlier run has got
		return groups
	}
	return append(groups, p.clean(p.spec().To, "withdraw/clean")...)
}

func (p *Planner) restore() []engine.Group {
	if !p.Survey.begun() {
		return nil
	}
	return append(p.restoreAll(), engine.InOrder(
		awaitRollout(p.Tools, "restore/rollout", p.Survey.from(), setsOf(p.Survey.Stored)),
		p.status().since(p.Survey.from()),
	)...)
}

func (p *Planner) podsBack() []engine.Group {
	if !p.Survey.begun() {
		return nil
	}
	return p.pods(p.Survey.from())
}

func (p *Planner) verifyBack() []engine.Group {
	if !p.Survey.begun() {
		return nil
	}
	groups := engine.InOrder(awaitPods(occupancy{p.Tools, p.spec(), p.Survey.from()}, p.Survey.Ranges))
	groups = append(groups, p.residues(p.spec().To)...)
	if p.tries() {
		groups = append(groups, engine.InOrder(p.matrix("matrix", "Test connectivity", false, p.Survey.enforcing()))...)
	}
	return groups
}
