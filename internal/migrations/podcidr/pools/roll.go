package pools

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/spec/window"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// batch is what is restarted together.
type batch struct {
	tier   string
	number int
	// names say what is in it, steps restart it.
	names []string
	steps []engine.Step
}

func (b *batch) String() string { return fmt.Sprintf("%s/%d", b.tier, b.number) }

// roll restarts pods in batches, the least critical tier first, then waits for Jobs.
func (p *Planner) roll(run hook.RunPurpose, d engine.Direction) []engine.Group {
	batches := p.batches(d)
	groups := p.restartProbedPods(d)
	for _, name := range p.Rules.Names() {
		var inside []engine.Group
		for i := range batches {
			if b := &batches[i]; b.tier == name {
				inside = append(inside, p.rollBatch(run, b)...)
			}
		}
		groups = append(groups, p.rollTier(run, name, inside)...)
	}
	if len(p.fates(d).Jobs) > 0 {
		groups = append(groups, engine.InOrder(p.jobsEnded(d))...)
	}
	return groups
}

// batches of all tiers. No two pods of one controller are evicted in the same batch.
func (p *Planner) batches(d engine.Direction) []batch {
	changes, fates, tools := p.pools.Leaving(d, p.Tools.Now()), p.fates(d), p.Rollout()
	numbers := map[string]int{}
	open := map[string]*batch{}
	var all []*batch
	add := func(tier, name string, s engine.Step) {
		b := open[tier]
		if b == nil || len(b.steps) == p.Inventory.Spec.Common.Batch.Size {
			numbers[tier]++
			b = &batch{tier: tier, number: numbers[tier]}
			open[tier], all = b, append(all, b)
		}
		b.names, b.steps = append(b.names, name), append(b.steps, s)
	}
	for _, w := range fates.Restarts {
		if !isAgents(&w) { // they go before
			add(p.tierOf(w.Namespace, w.Name, w.PodLabels), w.String(), p.renew(tools.Restart(w, changes), d))
		}
	}
	for _, round := range rollout.Rounds(fates.Evictions) {
		clear(open)
		for i := range round {
			pod := &round[i]
			add(p.tierOf(pod.Namespace, pod.Name, pod.Labels), "Pod "+pod.Namespace+"/"+pod.Name, p.renew(tools.Evict(pod, changes), d))
		}
	}
	out := make([]batch, len(all))
	for i, b := range all {
		out[i] = *b
	}
	return out
}

// rollBatch waits for a window, restarts a batch, and lets it settle.
func (p *Planner) rollBatch(run hook.RunPurpose, b *batch) []engine.Group {
	common, title := &p.Inventory.Spec.Common, b.String()
	var groups []engine.Group
	if len(common.Windows) > 0 {
		groups = append(groups, engine.Group{
			Title: title, Steps: []engine.Step{window.NewStep("window/"+title, common.Windows, p.Tools.Now)},
		})
	}
	o := hook.Occasion{Run: run, Moment: v1alpha1.BeforeBatch, Phase: phaseRoll, Tier: b.tier, Batch: b.number, Workloads: b.names}
	groups = append(groups, p.Hooks(o)...)
	groups = append(groups, engine.Group{Title: title, Parallel: p.Inventory.Spec.Roll.Parallel, Steps: b.steps})
	groups = append(groups, engine.Group{Title: title, Steps: []engine.Step{p.Note(title)}})
	if settle := common.Batch.Settle.Duration; settle > 0 {
		groups = append(groups, engine.Group{Title: title, Steps: []engine.Step{&migration.PauseStep{
			Name: "settle/" + title, About: fmt.Sprintf("Let %s settle for %s", b, settle), Length: settle, Now: p.Tools.Now,
		}}})
	}
	o.Moment = v1alpha1.AfterBatch
	return append(groups, p.Hooks(o)...)
}

// rollTier puts the hooks and the pause of a tier around its batches.
func (p *Planner) rollTier(run hook.RunPurpose, name string, inside []engine.Group) []engine.Group {
	if len(inside) == 0 {
		return nil
	}
	o := hook.Occasion{Run: run, Phase: phaseRoll, Tier: name, Moment: v1alpha1.BeforeTier}
	before := p.Hooks(o)
	o.Moment = v1alpha1.AfterTier
	after := p.Hooks(o)
	for _, t := range p.Inventory.Spec.Common.Tiers {
		if t.Name == name && t.Pause != nil && t.Pause.Duration > 0 {
			after = append(after, engine.Group{Title: name, Steps: []engine.Step{&migration.PauseStep{
				Name: "pause/" + name, Length: t.Pause.Duration, Now: p.Tools.Now,
				About: fmt.Sprintf("Wait %s after tier %s", t.Pause.Duration, name),
			}}})
		}
	}
	return slices.Concat(before, inside, after)
}

// tierOf sorts a workload as a Service of the same namespace, name and labels would be.
func (p *Planner) tierOf(namespace, name string, labels map[string]string) string {
	as := &corev1.Service{}
	as.Namespace, as.Name, as.Labels = namespace, name, labels
	return tier.Assign([]*corev1.Service{as}, p.Rules, nil).Of[types.NamespacedName{Namespace: namespace, Name: name}]
}

// restartProbedPods restarts the pods that agents call first, so that they stay put later.
func (p *Planner) restartProbedPods(d engine.Direction) []engine.Group {
	all := p.fates(d).Restarts
	i := slices.IndexFunc(all, func(w rollout.Workload) bool { return isAgents(&w) })
	if i < 0 {
		return nil
	}
	const title = "the pods that agents call"
	restart := p.renew(p.Rollout().Restart(all[i], p.pools.Leaving(d, p.Tools.Now())), d)
	restart.own = true
	return append([]engine.Group{{Title: title, Steps: []engine.Step{restart}}}, p.Steady(d, title)...)
}

// isAgents reports whether a workload is the pods that agents call.
func isAgents(w *rollout.Workload) bool {
	return w.Kind == rollout.KindDaemonSet && w.Namespace == v1alpha1.SystemNamespace && w.Name == agentset.PodSet
}

// jobsEnded waits until no Job has a pod with an address of the range that is left.
func (p *Planner) jobsEnded(d engine.Direction) *engine.Wait {
	return &engine.Wait{
		Name: "jobs", About: "Wait until Jobs with old addresses have ended", Limit: p.Inventory.Spec.Roll.JobWait.Duration,
		For: func(ctx context.Context) error {
			now, err := podmove.Occupants(ctx, p.Tools.Cluster, p.Inventory.Spec)
			if err != nil {
				return err
			}
			if left := now.Fates(now.Leaving(d, p.Tools.Now())).Jobs; len(left) > 0 {
				return engine.NotYet("%s has pod %s on node %s (%d such pods)", left[0].Owner, left[0].Pod, left[0].Node, len(left))
			}
			return nil
		},
	}
}

// restarted proves that nothing has an old address that could be restarted.
func (p *Planner) restarted() *engine.Wait {
	tools, s := p.Tools, p.Inventory.Spec
	return &engine.Wait{
		Name: "verify", About: fmt.Sprintf("Verify that every workload is free of addresses of %v", s.From),
		For: func(ctx context.Context) error {
			now, err := podmove.Occupants(ctx, tools.Cluster, s)
			if err != nil {
				return err
			}
			fates := now.Fates(now.Leaving(forward, tools.Now()))
			if left := fates.Names(); len(left) > 0 {
				return engine.NotYet("%s has pods with addresses of %v", left[0], s.From)
			}
			return nil
		},
	}
}
