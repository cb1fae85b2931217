package nodes

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/spec/hook"
)

// waits reports whether releases empty nodes, and not this migration.
func (s *Spec) waits() bool { return s.Drain.Mode == v1alpha1.DrainWait }

// Follows reports that others decide the order: each round removes the nodes that are empty.
func (p *Planner) Follows() bool {
	return p.Inventory.Spec.waits() && len(p.Inventory.outstanding(false)) > 0
}

// underWay reports whether an earlier round has closed nodes: canaries need not run again.
func (p *Planner) underWay() bool {
	return p.Inventory.Spec.waits() && slices.ContainsFunc(p.Inventory.OldNodes(), func(n OldNode) bool {
		return n.Node != nil && taintOf(n.Node) != nil && taintOf(n.Node).Value == p.spec().Name
	})
}

// toDrain are the nodes that batches are made of: those to empty or, with mode Wait, empty ones.
func (p *Planner) toDrain() []OldNode {
	if p.Inventory.Spec.waits() {
		return p.Inventory.vacated(p.terminatesEach())
	}
	return p.Inventory.outstanding(p.terminatesEach())
}

// vacated are the closed and empty nodes not yet handled; with end, not yet terminated.
func (s *Inventory) vacated(end bool) []OldNode {
	return slices.DeleteFunc(s.outstanding(true), func(n OldNode) bool {
		stage := n.Stage()
		return len(n.Pods) > 0 || stage != StageEmpty && stage != StageEnding ||
			!end && n.Node.Annotations[v1alpha1.AnnotationDrainedSince] != ""
	})
}

func (d *drainer) emptied(name string) engine.Step {
	return &engine.Wait{
		Name: "emptied/" + name, About: "Verify that node " + name + " is empty", Limit: d.spec.GateWait,
		For: func(ctx context.Context) error {
			pods, err := d.pods(ctx, name)
			if err != nil {
				return err
			}
			for i := range pods {
				if leaves(&pods[i]) {
					return engine.NotYet("pod %s/%s is on node %s", pods[i].Namespace, pods[i].Name, name)
				}
			}
			return nil
		},
	}
}

// vacancy waits until another node is empty, or ingress has moved.
func (p *Planner) vacancy(d *drainer) []engine.Group {
	if !p.Follows() {
		return nil
	}
	v := rollout.Vacancy{
		Name: "vacancy", About: "Wait until releases have emptied another old node", Leaves: leaves, Turns: d.turns, Say: p.Inventory.remains,
	}
	for _, n := range p.Inventory.outstanding(false) {
		v.Nodes = append(v.Nodes, n.Name)
	}
	if services := p.Inventory.Ingress().stillOnOld(); len(services) > 0 {
		v.Also = func(left map[string][]*corev1.Pod) bool { return p.Inventory.Ingress().anyLeft(services, left) }
	}
	return engine.InOrder(&vacancyStep{rollout.Vacant(v), p.later(d)})
}

// vacancyStep shows what follows it in later rounds: in which order, others say.
type vacancyStep struct {
	*engine.Wait

	later []engine.Group
}

func (s *vacancyStep) Preview() (all []engine.Change, err error) {
	for _, g := range s.later {
		for _, step := range g.Steps {
			changes, err := engine.Preview(step)
			if err != nil {
				return nil, err
			}
			all = append(all, changes...)
		}
	}
	return all, nil
}

func (p *Planner) later(d *drainer) (groups []engine.Group) {
	number := 0
	for batch := range slices.Chunk(p.Inventory.outstanding(false), 1) {
		number++
		groups = append(groups, p.batch(d, number, batch)...)
	}
	return groups
}

const (
	// nodesNamed and ownersNamed are how many a text about what is left names.
	nodesNamed, ownersNamed = 5, 3
)

// remains says how many pods are left, where, and whose, the emptiest nodes first.
func (s *Inventory) remains(left map[string][]*corev1.Pod) string {
	names, all := slices.Collect(maps.Keys(left)), 0
	for _, pods := range left {
		all += len(pods)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(left[a]), len(left[b])), strings.Compare(a, b)) })
	var parts []string
	for _, name := range names[:min(len(names), nodesNamed)] {
		parts = append(parts, fmt.Sprintf("%s has %d (%s)", name, len(left[name]), s.ownersOf(left[name])))
	}
	if more := len(names) - len(parts); more > 0 {
		parts = append(parts, english.Plural(more, "node", "")+" more")
	}
	return fmt.Sprintf("%s left on %s: %s", english.Plural(all, "pod", ""),
		english.Plural(len(names), "old node", ""), strings.Join(parts, ", "))
}

// ownersOf are the workloads of pods, with how many each has, those with most first.
func (s *Inventory) ownersOf(pods []*corev1.Pod) string {
	counts := map[string]int{}
	for _, p := range pods {
		owner := s.workloadOf(p)
		if owner.Name == "" {
			owner = types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		}
		counts[owner.String()]++
	}
	names := slices.Collect(maps.Keys(counts))
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b)) })
	var parts []string
	for _, name := range names[:min(len(names), ownersNamed)] {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	if more := len(names) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

// withoutEnd drops hooks after phase drain, which goes on in the next round.
func withoutEnd(plan *engine.Plan) *engine.Plan {
	for i := range plan.Phases {
		if plan.Phases[i].Name != phaseDrain {
			continue
		}
		for n := range plan.Phases[i].Groups {
			g := &plan.Phases[i].Groups[n]
			g.Steps = slices.DeleteFunc(g.Steps, func(s engine.Step) bool {
				h, ok := s.(*hook.Step)
				return ok && h.Moment() == v1alpha1.AfterPhase
			})
		}
	}
	return plan
}
