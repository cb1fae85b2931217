package podcidr

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/safety/backup"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// The phases of a migration on a cluster whose Nodes carry the ranges. What decides their order: a controller manager that
// allocates refuses to start as long as any Node has a range outside of its --cluster-cidr (NewCIDRRangeAllocator in
// k8s.io/kubernetes pkg/controller/nodeipam/ipam/range_allocator.go), and one that runs takes any Node without a range for
// one that needs one of its own. So from before the first Node has a range of the target until after the last one has, none
// may allocate at all.

func (p *Planner) applyOnNodes() *engine.Plan {
	return p.plan(
		hook.Apply,
		engine.Phase{Name: "check", Own: true, Title: "Check the cluster", Groups: inOrder(&migration.CheckStep{Findings: p.Findings})},
		engine.Phase{Name: "secure", Own: true, Recheck: true, Title: "Record the migration and back up what it changes", Groups: p.secure()},
		p.Agents.Phase(p.watched()),
		engine.Phase{Name: "prepare", Recheck: true, Title: "Give what must not pause one more pod", Groups: p.prepare()},
		engine.Phase{Name: "range", Title: "Have controller managers give nodes no ranges", Groups: p.pauseRanges(forth)},
		engine.Phase{Name: phaseNodes, Title: "Move nodes to the target, one after the other", Groups: p.nodes(forth)},
		engine.Phase{Name: "repoint", Title: "Have controller managers give ranges of the target", Groups: p.repointRanges(forth)},
		engine.Phase{Name: "verify", Title: "See that nothing has an old address", Groups: p.verify(p.spec().From)},
	)
}

func (p *Planner) finishOnNodes() *engine.Plan {
	return p.plan(
		hook.Finish,
		p.Agents.Phase(p.Agents.Install()),
		engine.Phase{Name: "verify", Title: "See that nothing has an old address", Groups: p.verify(p.spec().From)},
		engine.Phase{
			Name: "final", Title: "Pass the point of no return",
			Groups: inOrder(migration.FinalStep(p.Tools.client(), p.spec().Name)),
		},
		engine.Phase{Name: "tidy", Title: "Remove what is left", Groups: p.tidyOnNodes()},
	)
}

func (p *Planner) rollbackOnNodes() *engine.Plan {
	return p.plan(
		hook.Rollback,
		p.Agents.Phase(p.Agents.InstallIfPossible()),
		engine.Phase{Name: "range", Title: "Have controller managers give nodes no ranges", Groups: p.pauseRanges(back)},
		engine.Phase{Name: phaseNodes, Title: "Move nodes back, one after the other", Groups: p.nodes(back)},
		engine.Phase{Name: "repoint", Title: "Have controller managers give the ranges they gave before", Groups: p.repointRanges(back)},
		engine.Phase{Name: "verify", Title: "See that nothing has a new address", Groups: p.verify(p.spec().To)},
		engine.Phase{Name: "tidy", Title: "Remove what is left", Groups: p.tidyOnNodes()},
	)
}

// homesToBackUp are the Nodes that are about to be made anew for the first time.
func (p *Planner) homesToBackUp() []client.Object {
	var all []client.Object
	for i := range p.Survey.Homes {
		h := &p.Survey.Homes[i]
		if !h.Kept && slices.Equal(h.Has, h.Original) && !h.there(forth) {
			all = append(all, h.Node)
		}
	}
	return all
}

func (p *Planner) pauseRanges(d direction) []engine.Group {
	if !p.Survey.away(d) {
		return nil
	}
	return inOrder(p.rangeGate("ranges-paused", pausedGuide(cluster.DistributionOf(p.Survey.Nodes)), gatePaused))
}

func (p *Planner) repointRanges(d direction) []engine.Group {
	if !p.Survey.OnNodes() {
		return nil
	}
	guide := repointedGuide(cluster.DistributionOf(p.Survey.Nodes), p.spec().To[0], p.bits())
	mode := gateRepointed
	if d == back {
		guide, mode = restoredGuide(cluster.DistributionOf(p.Survey.Nodes), p.spec().From), gateRestored
	}
	return inOrder(&lateStep{tools: p.Tools, spec: p.spec(), direction: d}, p.rangeGate("ranges-given", guide, mode))
}

func (p *Planner) bits() int {
	for i := range p.Survey.Homes {
		return nodeipam.Range(p.Survey.Homes[i].Target).Bits()
	}
	return 24
}

// nodes moves those that are not settled, so many at once. What is done to a node, in this order:
func (p *Planner) nodes(d direction) []engine.Group {
	var groups []engine.Group
	for round := range slices.Chunk(p.Survey.Unsettled(d), max(1, p.spec().Nodes.Parallel)) {
		title := round[0].Node.Name
		if len(round) > 1 {
			title = fmt.Sprintf("%s and %d more", title, len(round)-1)
		}
		add := func(make func(*Home) engine.Step) {
			g := engine.Group{Title: title, Parallel: len(round)}
			for _, h := range round {
				if s := make(h); s != nil {
					g.Steps = append(g.Steps, s)
				}
			}
			if len(g.Steps) > 0 {
				groups = append(groups, g)
			}
		}
		on := func(h *Home) nodeStep {
			return nodeStep{tools: p.Tools, spec: p.spec(), home: h, direction: d, watched: p.Agents != nil}
		}
		add(func(h *Home) engine.Step { return &cordonStep{on(h)} })
		add(func(h *Home) engine.Step { return p.drain(h, d) })
		add(p.vacate)
		add(func(h *Home) engine.Step { return &switchNodeStep{on(h)} })
		add(func(h *Home) engine.Step { return &agentStep{on(h)} })
		add(func(h *Home) engine.Step { return &renewStep{on(h)} })
		if trial := p.homeTrial(round, d); trial != nil {
			groups = append(groups, inOrder(trial)...)
		}
		add(func(h *Home) engine.Step { return &uncordonStep{on(h)} })
		groups = append(groups, p.settled(d, title)...)
		groups = append(groups, engine.Group{Title: title, Steps: []engine.Step{p.note(title)}})
	}
	return groups
}

// drain makes pods leave a node but for those that have an address of its next range already.
func (p *Planner) drain(h *Home, d direction) engine.Step {
	keeps := nodeipam.Range(h.at(d))
	tools := rollout.Tools{Client: p.Tools.client(), Timeout: p.spec().Roll.Timeout.Duration, Now: p.Tools.Now}
	return tools.Drain(rollout.Leaving{
		Node: h.Node.Name, Taint: movingTaint(p.spec().Name), Bare: p.spec().Roll.BarePods,
		Patience: p.spec().Roll.JobWait.Duration,
		Stays: func(pod *corev1.Pod) bool {
			return pod.Labels[connectivity.Label] != "" || slices.ContainsFunc(calico.PodAddresses(pod), keeps.Contains)
		},
	})
}

func movingTaint(name string) corev1.Taint {
	return corev1.Taint{Key: v1alpha1.TaintMoving, Value: name, Effect: corev1.TaintEffectNoSchedule}
}

// homeTrial has pods prove that the nodes give addresses of their ranges, and that those are routed.
func (p *Planner) homeTrial(round []*Home, d direction) engine.Step {
	if p.spec().Canary.Mode != v1alpha1.PodCanaryRun {
		return nil
	}
	name := round[0].Node.Name
	step := p.trial("canary/"+name, fmt.Sprintf("See that pods on node %s get new addresses and reach others", name))
	if len(round) > 1 {
		step.About = fmt.Sprintf("See that pods on node %s and %d more get new addresses and reach others", name, len(round)-1)
	}
	step.Unfenced, step.Home = true, map[string]netip.Prefix{}
	for _, h := range round {
		step.Only = append(step.Only, h.Node.Name)
		step.Home[h.Node.Name] = nodeipam.Range(h.at(d))
	}
	return step
}

// tidyOnNodes leaves no trace on Nodes, and nothing of replumb's own.
func (p *Planner) tidyOnNodes() []engine.Group {
	steps := []engine.Step{&unscaleStep{tools: p.Tools}, &unmarkStep{tools: p.Tools, spec: p.spec()}}
	if p.spec().Common.Backups != v1alpha1.BackupsKeep {
		steps = append(steps, &backup.ForgetStep{Client: p.Tools.client(), Migration: p.spec().Name}, p.namespace().Undo())
	}
	return slices.Concat(p.Agents.Dismiss(), p.Remains, inOrder(steps...))
}
