package cni

import (
	"fmt"
	"slices"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// drainedStrategy replaces the network of all nodes at once, in a cluster that serves no one.
type drainedStrategy struct{ *Inventory }

// newDrained is the strategy for a cluster that was looked at.
func newDrained(s *Inventory) Strategy { return drainedStrategy{s} }

// Unsupported refuses Cilium and host-local: what they leave on nodes is removed by mode InPlace alone.
func (drainedStrategy) Unsupported(from, to v1alpha1.CNIName) string {
	switch {
	case from == v1alpha1.HostLocal:
		if why := unsupportedHostLocal(to); why != "" {
			return why
		}
		return fmt.Sprintf("from host-local to %s is for mode InPlace: mode Drained removes the files of nodes first, "+
			"and no object of the cluster could bring them back", to)
	case from == v1alpha1.Weave && overlay(to), overlay(from) && overlay(to) && from != to:
		return ""
	}
	return unsupported(from, to)
}

// Stale are the pods made before the network was there.
func (s drainedStrategy) Stale(network v1alpha1.CNIName) []corev1.Pod {
	var out []corev1.Pod
	for i := range s.Pods {
		if p := &s.Pods[i]; concerned(p) && (s.Status.Network != network || !madeSince(p, s.Status.Since)) {
			out = append(out, *p)
		}
	}
	return out
}

func (s drainedStrategy) Stages() []NodeStatus {
	return nodeStatuses(s, func(n *corev1.Node, stale int) Stage {
		fresh := slices.ContainsFunc(s.Networks, func(f Network) bool { return f.Name == s.Spec.To && s.runsOn(f, n.Name) })
		old := s.oldSet()
		switch {
		case fresh && stale == 0 && s.Status.Network == s.Spec.To:
			return StageSwitched
		case fresh:
			return StageNew
		case old != nil && s.runsOn(*old, n.Name):
			return StageOld
		}
		return StageNone
	})
}

// runsOn reports whether a network has a pod that is ready on a node.
func (s drainedStrategy) runsOn(n Network, node string) bool {
	return slices.ContainsFunc(s.Pods, func(p corev1.Pod) bool {
		ref := metav1.GetControllerOfNoCopy(&p)
		return p.Spec.NodeName == node && ref != nil && ref.UID == n.Set.UID && connectivity.Ready(&p)
	})
}

func (s drainedStrategy) LeftOfSwitch() string {
	if s.Status.Network != s.Spec.To || s.Status.Since == nil {
		return fmt.Sprintf("%s is not on every node", s.Spec.To)
	}
	if len(s.Old) > 0 {
		return keyOf(s.Old[0]).String() + " is still there"
	}
	if stale := s.Stale(s.Spec.To); len(stale) > 0 {
		return fmt.Sprintf("%s without the new network, the first is %s/%s",
			english.Plural(len(stale), "pod", ""), stale[0].Namespace, stale[0].Name)
	}
	return ""
}

func (s drainedStrategy) Plans(p *Planner) Plans {
	return newPlans(p, &drainedPlanner{p}, drainedCommands())
}

// drainedPlanner makes the plans of a switch of a drained cluster.
type drainedPlanner struct{ *Planner }

// drainedCommands are the phases of a switch of the network, in order.
//
// Pods keep their sandboxes until the new network is there: a kubelet ends a sandbox by the CNI configuration it has at that
// time and, while it has none, not at all. The new plugin does not know it and lets it go; what the old one had on the node
// is gone by then.
func drainedCommands() migration.Commands[*drainedPlanner] {
	type phases = migration.Phases[*drainedPlanner]
	return migration.Commands[*drainedPlanner]{
		Apply: phases{
			migration.CheckPhase[*drainedPlanner]("Check the cluster"),
			recordPhase[*drainedPlanner](),
			baselinePhase[*drainedPlanner](),
			{Name: "quiet", Title: "Verify that there is no client traffic", Groups: (*drainedPlanner).quiet},
			{Name: phaseRemove, Title: "Remove the old network", Recheck: true, Groups: (*drainedPlanner).remove},
			{Name: "install", Title: "Install the new network", Recheck: true, Groups: (*drainedPlanner).install},
			{Name: "pods", Title: "Recreate all pods", Groups: (*drainedPlanner).pods},
			againPhase[*drainedPlanner](),
			{
				Name: "verify", Title: "Verify that every pod has the new network, and every node is clean of the old one",
				Groups: (*drainedPlanner).verify,
			},
		},
		Rollback: phases{
			{Name: "withdraw", Title: "Remove the new network", Groups: (*drainedPlanner).withdraw},
			{Name: "restore", Title: "Restore the old network", Groups: (*drainedPlanner).restore},
			{Name: "pods", Title: "Recreate all pods", Groups: (*drainedPlanner).podsBack},
			verifyBackPhase[*drainedPlanner](),
			{Name: "tidy", Title: "Clean up", Groups: func(p *drainedPlanner) []engine.Group { return p.tidyAll(p.Unprivilege()) }},
		},
		Finish: phases{
			migration.FinalPhase[*drainedPlanner](),
			{Name: "tidy", Title: "Clean up", Groups: func(p *drainedPlanner) []engine.Group { return p.tidy(p.Unprivilege()) }},
		},
	}
}

func (p *drainedPlanner) remove() []engine.Group {
	if p.Inventory.Status.Since != nil && len(p.Inventory.Old) == 0 {
		return nil
	}
	groups := append(p.begin("Record that pods lose their network"), p.removeOld()...)
	if p.spec().Nodes.Mode == v1alpha1.CNINodesReplace {
		return groups
	}
	return append(groups, p.clean(p.Inventory.from(), "clean")...)
}

func (p *drainedPlanner) install() []engine.Group {
	to := p.spec().To
	if p.Inventory.Manifests == nil || p.Inventory.Status.Network == to && p.Inventory.Status.Since != nil {
		return nil
	}
	groups := p.applyAll(p.Inventory.Manifests.Objects)
	if p.spec().Nodes.Mode == v1alpha1.CNINodesReplace {
		groups = append(groups, engine.InOrder(replaceNodes(p.Deps, p.spec()))...)
	}
	return append(groups, engine.InOrder(
		awaitRollout(p.Deps, "rollout", to, p.Inventory.newSets()), p.status().since(to))...)
}

func (p *drainedPlanner) pods() []engine.Group {
	if p.switched() {
		return nil
	}
	return p.recreate(p.spec().To)
}

// recreate recreates the cluster's DNS first: all others ask it as they start.
func (p *drainedPlanner) recreate(network v1alpha1.CNIName) []engine.Group {
	r := recreation{deps: p.Deps, spec: p.spec(), network: network}
	var bare []engine.Step
	for i := range p.Inventory.Bare {
		bare = append(bare, r.bare(&p.Inventory.Bare[i]))
	}
	return append(engine.InOrder(r.dns(), r.others()), engine.AtOnce(parallel, "Pods without an owner", bare...)...)
}

func (p *drainedPlanner) verify() []engine.Group {
	if p.over() {
		return nil
	}
	groups := engine.InOrder(awaitPods(p.Deps, p.spec(), p.Inventory.target()))
	if p.spec().Nodes.Mode == v1alpha1.CNINodesInPlace { // other nodes have never had it
		groups = append(groups, p.residues(p.Inventory.from())...)
	}
	return append(groups, p.matrix("matrix", "Test connectivity with the new network", p.Inventory.enforced())...)
}

// withdraw deletes what was applied, last things first, and cleans the nodes. Objects that were there before stay.
func (p *drainedPlanner) withdraw() []engine.Group {
	if !p.Inventory.begun() || p.Inventory.Manifests == nil {
		return nil
	}
	groups := p.unapply()
	if p.Inventory.Status.Network == p.Inventory.from() && p.Inventory.Status.Since != nil { // this far an earlier run has got
		return groups
	}
	return append(groups, p.clean(p.spec().To, "withdraw/clean")...)
}

func (p *drainedPlanner) restore() []engine.Group {
	if !p.Inventory.begun() {
		return nil
	}
	from := p.Inventory.from()
	return append(p.restoreAll(), engine.InOrder(
		awaitRollout(p.Deps, "restore/rollout", from, setsOf(p.Inventory.Stored)), p.status().since(from))...)
}

func (p *drainedPlanner) podsBack() []engine.Group {
	if !p.Inventory.begun() {
		return nil
	}
	return p.recreate(p.Inventory.from())
}
