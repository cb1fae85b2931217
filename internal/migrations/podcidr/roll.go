package podcidr

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/spec/window"
)

// kindJob owns pods that are waited for: to restart them would be to do their work twice.
const kindJob = "Job"

// fates says what becomes of the pods that a direction leaves behind.
type fates struct {
	rollout.Plan
	// Jobs are pods that end by themselves.
	Jobs []rollout.Reported
}

// fates of the pods with addresses that direction d leaves.
func (s *Survey) fates(d direction, now time.Time) fates {
	f := fates{Plan: s.Workloads.Plan(s.changes(d, now), s.Spec.Roll.BarePods)}
	ofJob := func(pod corev1.Pod) bool {
		ref := metav1.GetControllerOf(&pod)
		return ref != nil && ref.Kind == kindJob
	}
	for i := range f.Evictions {
		if pod := &f.Evictions[i]; ofJob(*pod) {
			f.Jobs = append(f.Jobs, rollout.Reported{
				Pod:  types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
				Node: pod.Spec.NodeName, Owner: kindJob + " " + metav1.GetControllerOf(pod).Name,
			})
		}
	}
	f.Evictions = slices.DeleteFunc(f.Evictions, ofJob)
	for _, r := range f.Reported {
		if strings.HasPrefix(r.Owner, kindJob+" ") {
			f.Jobs = append(f.Jobs, r)
		}
	}
	f.Reported = slices.DeleteFunc(f.Reported, func(r rollout.Reported) bool { return strings.HasPrefix(r.Owner, kindJob+" ") })
	return f
}

// restartable names the workloads and pods that direction d restarts.
func (s *Survey) restartable(d direction, now time.Time) []string {
	var all []string
	if s.OnNodes() {
		for _, h := range s.Unsettled(d) {
			all = append(all, "Node "+h.Node.Name)
		}
		return all
	}
	f := s.fates(d, now)
	for _, w := range f.Restarts {
		all = append(all, w.String())
	}
	for i := range f.Evictions {
		all = append(all, "Pod "+f.Evictions[i].Namespace+"/"+f.Evictions[i].Name)
	}
	return all
}

// batch is what is restarted together.
type batch struct {
	tier   string
	number int
	// names say what is in it, steps restart it.
	names []string
	steps []engine.Step
}

func (b *batch) String() string { return fmt.Sprintf("%s/%d", b.tier, b.number) }

// roll restarts what has addresses of the range that is left: tier by tier, the least critical first, in batches of
// workloads, and then waits for Jobs.
func (p *Planner) roll(run hook.Run, d direction) []engine.Group {
	if len(p.Survey.Moves) == 0 {
		return nil
	}
	batches := p.batches(d)
	groups := p.restartProbedPods(d)
	for _, name := range p.Rules.Names() {
		var inside []engine.Group
		for i := range batches {
			if b := &batches[i]; b.tier == name {
				inside = append(inside, p.rollBatch(run, b)...)
			}
		}
		groups = append(groups, p.around(run, name, inside)...)
	}
	if len(p.Survey.fates(d, p.Tools.now()).Jobs) > 0 {
		groups = append(groups, inOrder(&jobsStep{tools: p.Tools, spec: p.spec(), direction: d, length: p.spec().Roll.JobWait.Duration})...)
	}
	return groups
}

// batches of all tiers. No two pods of one controller are evicted in the same batch.
func (p *Planner) batches(d direction) []batch {
	changes := p.Survey.changes(d, p.Tools.now())
	f := p.Survey.fates(d, p.Tools.now())
	tools := rollout.Tools{Client: p.Tools.client(), Timeout: p.spec().Roll.Timeout.Duration, Now: p.Tools.Now}
	numbers := map[string]int{}
	open := map[string]*batch{}
	var all []*batch
	add := func(tier, name string, s engine.Step) {
		b := open[tier]
		if b == nil || len(b.steps) == p.spec().Common.Batch.Size {
			numbers[tier]++
			b = &batch{tier: tier, number: numbers[tier]}
			open[tier], all = b, append(all, b)
		}
		b.names, b.steps = append(b.names, name), append(b.steps, s)
	}
	for _, w := range f.Restarts {
		if isAgents(&w) {
			continue // they go before
		}
		add(p.tierOf(w.Namespace, w.Name, w.PodLabels), w.String(), p.renew(tools.Restart(w, changes), d))
	}
	for _, round := range rollout.Rounds(f.Evictions) {
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
func (p *Planner) rollBatch(run hook.Run, b *batch) []engine.Group {
	var groups []engine.Group
	if windows := p.spec().Common.Windows; len(windows) > 0 {
		groups = append(groups, engine.Group{
			Title: b.String(), Steps: []engine.Step{window.NewStep("window/"+b.String(), windows, p.Tools.now)},
		})
	}
	o := hook.Occasion{Run: run, Moment: v1alpha1.BeforeBatch, Phase: phaseRoll, Tier: b.tier, Batch: b.number, Workloads: b.names}
	groups = append(groups, p.hooks(o)...)
	groups = append(groups, engine.Group{Title: b.String(), Parallel: p.spec().Roll.Parallel, Steps: b.steps})
	groups = append(groups, engine.Group{Title: b.String(), Steps: []engine.Step{p.note(b.String())}})
	if settle := p.spec().Common.Batch.Settle.Duration; settle > 0 {
		groups = append(groups, engine.Group{Title: b.String(), Steps: []engine.Step{&migration.PauseStep{
			Name: "settle/" + b.String(), About: fmt.Sprintf("Let %s settle for %s", b, settle), Length: settle, Now: p.Tools.Now,
		}}})
	}
	o.Moment = v1alpha1.AfterBatch
	return append(groups, p.hooks(o)...)
}

// noteStep writes on the Migration how many pods have moved by now.
type noteStep struct {
	tools Tools
	spec  Spec
	after string
}

func (p *Planner) note(after string) engine.Step {
	return &noteStep{tools: p.Tools, spec: p.spec(), after: after}
}

func (s *noteStep) ID() string    { return "note/" + s.after }
func (s *noteStep) Title() string { return "Record that " + s.after + " has moved" }

// State implements engine.Step: an earlier note says nothing of now.
func (*noteStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (s *noteStep) Do(ctx context.Context) error {
	now, err := s.tools.occupants(ctx)
	if err != nil {
		return err
	}
	now.Spec = s.spec
	return migration.UpdateStatus(ctx, s.tools.Cluster, s.spec.Name, func(st *v1alpha1.MigrationStatus) { st.Counts = now.Counts() })
}

func (*noteStep) Verify(context.Context) error { return nil }

// around puts hooks and the pause of a tier around its batches.
func (p *Planner) around(run hook.Run, tier string, inside []engine.Group) []engine.Group {
	if len(inside) == 0 {
		return nil
	}
	o := hook.Occasion{Run: run, Phase: phaseRoll, Tier: tier, Moment: v1alpha1.BeforeTier}
	before := p.hooks(o)
	o.Moment = v1alpha1.AfterTier
	after := p.hooks(o)
	for _, t := range p.spec().Common.Tiers {
		if t.Name == tier && t.Pause != nil && t.Pause.Duration > 0 {
			after = append(after, engine.Group{Title: tier, Steps: []engine.Step{&migration.PauseStep{
				Name: "pause/" + tier, Length: t.Pause.Duration, Now: p.Tools.Now,
				About: fmt.Sprintf("Wait %s after tier %s", t.Pause.Duration, tier),
			}}})
		}
	}
	return slices.Concat(before, inside, after)
}

func (p *Planner) hooks(o hook.Occasion) []engine.Group {
	o.Migration = p.spec().Name
	return hook.Groups(p.spec().Common.Hooks, o)
}

// tierOf sorts a workload as a Service of the same namespace, name and labels would be.
func (p *Planner) tierOf(namespace, name string, labels map[string]string) string {
	as := &corev1.Service{}
	as.Namespace, as.Name, as.Labels = namespace, name, labels
	return tier.Assign([]*corev1.Service{as}, p.Rules, nil).Of[types.NamespacedName{Namespace: namespace, Name: name}]
}

// Kept are pods that keep old addresses until somebody deals with them.
func (p *Planner) Kept() []rollout.Reported {
	if p.Survey.OnNodes() {
		return nil // whatever is on a node leaves it
	}
	return p.Survey.fates(forth, p.Tools.now()).Reported
}

// jobsStep waits until no Job has a pod with an address of the range that is left.
type jobsStep struct {
	tools     Tools
	spec      Spec
	direction direction
	length    time.Duration
}

var _ engine.Waiter = (*jobsStep)(nil)

func (*jobsStep) ID() string                { return "jobs" }
func (*jobsStep) Title() string             { return "Wait until Jobs with old addresses have ended" }
func (*jobsStep) Waits()                    {}
func (s *jobsStep) Deadline() time.Duration { return s.length }

func (s *jobsStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }
func (*jobsStep) Do(context.Context) error                          { return nil }

func (s *jobsStep) Verify(ctx context.Context) error {
	survey, err := s.tools.occupants(ctx)
	if err != nil {
		return err
	}
	survey.Spec = s.spec
	if left := survey.fates(s.direction, s.tools.now()).Jobs; len(left) > 0 {
		return engine.NotYet("%s has pod %s on node %s (%d such pods)", left[0].Owner, left[0].Pod, left[0].Node, len(left))
	}
	return nil
}
