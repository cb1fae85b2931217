// Package drained replaces the network of all nodes at once, in a cluster that serves no one:
// plan.go lists the phases in order.
package drained

import (
	"context"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// Strategy replaces the network of all nodes at once, in a cluster that serves no one.
type Strategy struct{ *switchover.Inventory }

// New is the strategy for a cluster that was looked at.
func New(s *switchover.Inventory) Strategy { return Strategy{s} }

// Load looks at nothing further.
func Load(_ context.Context, _ switchover.Deps, s *switchover.Inventory) (Strategy, error) {
	return New(s), nil
}

// Unsupported refuses Cilium and host-local: what they leave on nodes is removed by mode InPlace
// alone.
func (Strategy) Unsupported(from, to v1alpha1.CNIName) string {
	switch {
	case from == v1alpha1.HostLocal:
		if why := switchover.UnsupportedHostLocal(to); why != "" {
			return why
		}
		return fmt.Sprintf("from host-local to %s is for mode InPlace: mode Drained removes the files of nodes first, "+
			"and no object of the cluster could bring them back", to)
	case from == v1alpha1.Weave && switchover.Overlay(to), switchover.Overlay(from) && switchover.Overlay(to) && from != to:
		return ""
	}
	return switchover.Unsupported(from, to)
}

// Stale are the pods made before the network was there.
func (s Strategy) Stale(network v1alpha1.CNIName) []corev1.Pod {
	var out []corev1.Pod
	for i := range s.Pods {
		if p := &s.Pods[i]; switchover.Concerned(p) && (s.Status.Network != network || !switchover.MadeSince(p, s.Status.Since)) {
			out = append(out, *p)
		}
	}
	return out
}

func (s Strategy) Stages() []switchover.NodeProgress {
	return switchover.NodeStatuses(s, func(n *corev1.Node, stale int) switchover.Stage {
		fresh := slices.ContainsFunc(s.Networks, func(f manifests.Network) bool { return f.Name == s.Spec.To && s.runsOn(f, n.Name) })
		old := s.OldSet()
		switch {
		case fresh && stale == 0 && s.Status.Network == s.Spec.To:
			return switchover.StageSwitched
		case fresh:
			return switchover.StageNew
		case old != nil && s.runsOn(*old, n.Name):
			return switchover.StageOld
		}
		return switchover.StageNone
	})
}

func (s Strategy) runsOn(n manifests.Network, node string) bool {
	return slices.ContainsFunc(s.Pods, func(p corev1.Pod) bool {
		ref := metav1.GetControllerOfNoCopy(&p)
		return p.Spec.NodeName == node && ref != nil && ref.UID == n.Set.UID && connectivity.Ready(&p)
	})
}

func (s Strategy) LeftOfSwitch() string {
	if s.Status.Network != s.Spec.To || s.Status.Since == nil {
		return fmt.Sprintf("%s is not on every node", s.Spec.To)
	}
	if len(s.Old) > 0 {
		return manifests.KeyOf(s.Old[0]).String() + " is still there"
	}
	if stale := s.Stale(s.Spec.To); len(stale) > 0 {
		return fmt.Sprintf("%s without the new network, the first is %s/%s",
			english.Plural(len(stale), "pod", ""), stale[0].Namespace, stale[0].Name)
	}
	return ""
}

func (s Strategy) Plans(p *switchover.Planner) switchover.Plans {
	return switchover.NewPlans(p, &planner{p}, Commands())
}

// planner makes the plans of a switch of a drained cluster.
type planner struct{ *switchover.Planner }

// Commands are the phases of a switch of the network, in order.
//
// Pods keep their sandboxes until the new network is there: a kubelet ends a sandbox by the CNI
// configuration it has at that time and, while it has none, not at all. The new plugin does not
// know it and lets it go; what the old one had on the node is gone by then.
func Commands() migration.Commands[*planner] {
	type phases = migration.Phases[*planner]
	return migration.Commands[*planner]{
		Apply: phases{
			migration.CheckPhase[*planner]("Check the cluster"),
			switchover.RecordPhase[*planner](),
			switchover.BaselinePhase[*planner](),
			{Name: "quiet", Title: "Verify that there is no client traffic", Groups: (*planner).quiet},
			{Name: switchover.PhaseRemove, Title: "Remove the old network", Recheck: true, Groups: (*planner).remove},
			{Name: "install", Title: "Install the new network", Recheck: true, Groups: (*planner).install},
			{Name: "pods", Title: "Recreate all pods", Groups: (*planner).pods},
			switchover.AgainPhase[*planner](),
			{
				Name: "verify", Title: "Verify that every pod has the new network, and every node is clean of the old one",
				Groups: (*planner).verify,
			},
		},
		Rollback: phases{
			{Name: "withdraw", Title: "Remove the new network", Groups: (*planner).withdraw},
			{Name: "restore", Title: "Restore the old network", Groups: (*planner).restore},
			{Name: "pods", Title: "Recreate all pods", Groups: (*planner).podsBack},
			switchover.VerifyBackPhase[*planner](),
			{Name: "tidy", Title: "Clean up", Groups: func(p *planner) []engine.Group { return p.TidyAll(p.Unprivilege()) }},
		},
		Finish: phases{
			migration.FinalPhase[*planner](),
			{Name: "tidy", Title: "Clean up", Groups: func(p *planner) []engine.Group { return p.Tidy(p.Unprivilege()) }},
		},
	}
}

func (p *planner) remove() []engine.Group {
	if p.Inventory.Status.Since != nil && len(p.Inventory.Old) == 0 {
		return nil
	}
	groups := append(p.Begin("Record that pods lose their network"), p.RemoveOld()...)
	if p.Spec().Nodes.Mode == v1alpha1.CNINodesReplace {
		return groups
	}
	return append(groups, p.Clean(p.Inventory.From(), "clean")...)
}

func (p *planner) install() []engine.Group {
	to := p.Spec().To
	if p.Inventory.Manifests == nil || p.Inventory.Status.Network == to && p.Inventory.Status.Since != nil {
		return nil
	}
	groups := p.ApplyAll(p.Inventory.Manifests.Objects)
	if p.Spec().Nodes.Mode == v1alpha1.CNINodesReplace {
		groups = append(groups, engine.InOrder(switchover.ReplaceNodes(p.Deps, p.Spec()))...)
	}
	return append(groups, engine.InOrder(
		switchover.AwaitRollout(p.Deps, "rollout", to, p.Inventory.NewSets()), p.Status().Since(to))...)
}

func (p *planner) pods() []engine.Group {
	if p.Switched() {
		return nil
	}
	return p.recreate(p.Spec().To)
}

func (p *planner) recreate(network v1alpha1.CNIName) []engine.Group {
	r := recreation{deps: p.Deps, spec: p.Spec(), network: network}
	var bare []engine.Step
	for i := range p.Inventory.Bare {
		bare = append(bare, r.bare(&p.Inventory.Bare[i]))
	}
	return append(engine.InOrder(r.dns(), r.others()), engine.AtOnce(manifests.Parallel, "Pods without an owner", bare...)...)
}

func (p *planner) verify() []engine.Group {
	if p.Over() {
		return nil
	}
	groups := engine.InOrder(switchover.AwaitPods(p.Deps, p.Spec(), p.Inventory.Target()))
	if p.Spec().Nodes.Mode == v1alpha1.CNINodesInPlace { // other nodes have never had it
		groups = append(groups, p.Residues(p.Inventory.From())...)
	}
	return append(groups, p.Matrix("matrix", "Test connectivity with the new network", p.Inventory.Enforced())...)
}

func (p *planner) withdraw() []engine.Group {
	if !p.Inventory.Begun() || p.Inventory.Manifests == nil {
		return nil
	}
	groups := p.Unapply()
	if p.Inventory.Status.Network == p.Inventory.From() && p.Inventory.Status.Since != nil { // this far an earlier run has got
		return groups
	}
	return append(groups, p.Clean(p.Spec().To, "withdraw/clean")...)
}

func (p *planner) restore() []engine.Group {
	if !p.Inventory.Begun() {
		return nil
	}
	from := p.Inventory.From()
	return append(p.RestoreAll(), engine.InOrder(
		switchover.AwaitRollout(p.Deps, "restore/rollout", from, switchover.SetsOf(p.Inventory.Stored)), p.Status().Since(from))...)
}

func (p *planner) podsBack() []engine.Group {
	if !p.Inventory.Begun() {
		return nil
	}
	return p.recreate(p.Inventory.From())
}
