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
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/spec/hook"
)

// waits reports whether releases empty nodes, and not this migration.
func (s *Spec) waits() bool { return s.Drain.Mode == v1alpha1.DrainWait }

// Follows implements migration.Plans: in which order nodes become empty is for others to say, so each round of apply removes those that
// are, and ends when there are more.
func (p *Planner) Follows() bool {
	return p.Survey.Spec.waits() && len(p.Survey.outstanding(false)) > 0
}

// underWay reports whether an earlier round, or run, of a migration that waits has got to where nodes are closed: what phase join has proven by
// then is not asked again with canaries for each node that becomes empty.
func (p *Planner) underWay() bool {
	return p.Survey.Spec.waits() && slices.ContainsFunc(p.Survey.OldNodes(), func(n OldNode) bool {
		return n.Node != nil && taintOf(n.Node) != nil && taintOf(n.Node).Value == p.spec().Name
	})
}

// toDrain are the nodes that batches are made of: those that are to be emptied or, where that is waited for, that are empty.
func (p *Planner) toDrain() []OldNode {
	if p.Survey.Spec.waits() {
		return p.Survey.vacated(p.terminatesEach())
	}
	return p.Survey.outstanding(p.terminatesEach())
}

// vacated are the closed nodes that are empty, and of which that has not been taken up: with end until they have ended.
func (s *Survey) vacated(end bool) []OldNode {
	return slices.DeleteFunc(s.outstanding(true), func(n OldNode) bool {
		stage := n.Stage()
		return len(n.Pods) > 0 || stage != StageEmpty && stage != StageEnding ||
			!end && n.Node.Annotations[v1alpha1.AnnotationDrainedSince] != ""
	})
}

// emptied waits until a node is empty that was when its turn was planned.
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
		Name: "vacancy", About: "Wait until releases have emptied another old node", Leaves: leaves, Turns: d.turns, Say: p.Survey.remains,
	}
	for _, n := range p.Survey.outstanding(false) {
		v.Nodes = append(v.Nodes, n.Name)
	}
	if services := p.Survey.stillOnOld(); len(services) > 0 {
		v.Also = func(left map[string][]*corev1.Pod) bool { return p.Survey.anyLeft(services, left) }
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

// later is what is done to the nodes that are not empty yet.
func (p *Planner) later(d *drainer) (groups []engine.Group) {
	number := 0
	for batch := range slices.Chunk(p.Survey.outstanding(false), 1) {
		number++
		groups = append(groups, p.batch(d, number, batch)...)
	}
	return groups
}

// stillOnOld are the Services whose policy is restored once their pods have left old nodes, which all of them do.
func (s *Survey) stillOnOld() []types.NamespacedName {
	if s.Spec.Join.Room == v1alpha1.RoomPartial {
		return nil
	}
	return slices.DeleteFunc(s.toRestore(), func(key types.NamespacedName) bool {
		var on []*corev1.Pod
		for i := range s.Services {
			if svc := &s.Services[i]; svc.Namespace == key.Namespace && svc.Name == key.Name {
				on = s.onOld(svc)
			}
		}
		return len(on) == 0 || slices.ContainsFunc(on, func(p *corev1.Pod) bool { return !leaves(p) })
	})
}

// anyLeft reports whether all pods of one of some Services have left.
func (s *Survey) anyLeft(services []types.NamespacedName, left map[string][]*corev1.Pod) bool {
	return slices.ContainsFunc(services, func(key types.NamespacedName) bool {
		for _, pods := range left {
			if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return s.isBehind([]types.NamespacedName{key}, p) }) {
				return false
			}
		}
		return true
	})
}

const (
	// nodesNamed and ownersNamed are how many a text about what is left names.
	nodesNamed, ownersNamed = 5, 3
)

// remains says how many pods are left, where, and whose: of the nodes with the fewest first, which are empty next.
func (s *Survey) remains(left map[string][]*corev1.Pod) string {
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
	return fmt.Sprintf(
		"%s left on %s: %s",
		english.Plural(all, "pod", ""),
		english.Plural(len(names), "old node", ""),
		strings.Join(parts, ", "),
	)
}

// ownersOf are the workloads of pods, with how many each has, those with most first.
func (s *Survey) ownersOf(pods []*corev1.Pod) string {
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

// withoutEnd is a plan whose phase drain goes on in the next round: hooks that are to be called after it are not, yet.
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
