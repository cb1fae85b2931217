// Package switchover has what all ways to replace the network of pods have in common: the inventory
// of a cluster, its checks, and the steps around the switch itself. Packages drained, inplace and
// proxy are the ways.
package switchover

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec/hook"
)

// Strategy is one way to replace the network of a cluster that was looked at.
type Strategy interface {
	// Shared is what every strategy goes by.
	Shared() *Inventory
	// Unsupported says why one network is not replaced by another this way; nothing, if it is.
	Unsupported(from, to v1alpha1.CNIName) string
	// Stale are the pods that are to get a network, and do not have it.
	Stale(network v1alpha1.CNIName) []corev1.Pod
	// Stages of all nodes.
	Stages() []NodeProgress
	// LeftOfSwitch says what of the switch itself apply has not done yet; nothing, if it is
	// through.
	LeftOfSwitch() string
	// Removes says what is removed from every node.
	Removes() []string
	// Plans makes the plans.
	Plans(p *Planner) Plans
}

// LeftOf says what apply has not done yet; nothing, if it is through.
func LeftOf(s Strategy) string {
	if left := s.LeftOfSwitch(); left != "" {
		return left
	}
	return s.Shared().leftAgain()
}

// CountsOf are pods: those that have the new network, and all.
func CountsOf(s Strategy) v1alpha1.Counts {
	all := 0
	for i := range s.Shared().Pods {
		if Concerned(&s.Shared().Pods[i]) {
			all++
		}
	}
	return v1alpha1.Counts{Total: all, Moved: all - len(s.Stale(s.Shared().Spec.To))}
}

// Stage is where a node stands.
type Stage string

// The stages of a node.
const (
	StageOld      Stage = "Old"
	StageNone     Stage = "None"
	StageNew      Stage = "New"
	StageSwitched Stage = "Switched"
)

// NodeProgress is where a node stands, and how many of its pods are to be recreated.
type NodeProgress struct {
	Name  string
	Stage Stage
	Pods  int
}

// NodeStatuses are those of all nodes whose stage is given by a function of the node and of its
// stale pods.
func NodeStatuses(s Strategy, stage func(n *corev1.Node, stale int) Stage) []NodeProgress {
	stale := map[string]int{}
	for _, p := range s.Stale(s.Shared().Spec.To) {
		stale[p.Spec.NodeName]++
	}
	var out []NodeProgress
	for i := range s.Shared().Nodes {
		n := &s.Shared().Nodes[i]
		out = append(out, NodeProgress{Name: n.Name, Pods: stale[n.Name], Stage: stage(n, stale[n.Name])})
	}
	return out
}

// Plans are the plans of one look at the cluster.
type Plans interface {
	migration.Plans
	// Shared is what planners of all strategies have.
	Shared() *Planner
	// Details say what is removed from every node, and what stays.
	Details() []string
	// Stays says what of the old network the migration leaves where it is.
	Stays() []string
}

// plansOf are the plans of a planner P by its commands.
type plansOf[P any] struct {
	*Planner
	planner  P
	commands migration.Commands[P]
}

// NewPlans are the plans of a planner by its commands.
func NewPlans[P any](shared *Planner, planner P, commands migration.Commands[P]) Plans {
	return plansOf[P]{shared, planner, commands}
}

func (p plansOf[P]) Apply() *engine.Plan {
	return p.commands.Apply.Plan(p.planner, p.Migration, hook.Apply)
}

func (p plansOf[P]) Rollback() *engine.Plan {
	return p.commands.Rollback.Plan(p.planner, p.Migration, hook.Rollback)
}

func (p plansOf[P]) Finish() *engine.Plan {
	return p.commands.Finish.Plan(p.planner, p.Migration, hook.Finish)
}

// Once are all names, each where it first comes.
func Once(lists ...[]string) []string {
	var all []string
	for _, name := range slices.Concat(lists...) {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}
