package servicecidr

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec/tier"
)

// slack covers that the clocks of nodes, and of the machine replumb runs on, differ a little, and that kubelets hear of a
// move a moment later.
const slack = 2 * time.Second

// Refresh is what has to be renewed for pods to get rid of addresses, and what is left to people.
type Refresh struct {
	// Tiers in order, each with the steps that may run beside each other.
	Tiers []RefreshTier
	// Left are pods that keep their addresses until people deal with them.
	Left []rollout.Reported

	parallel  int
	originals []client.Object
}

// RefreshTier is what is renewed of one tier.
type RefreshTier struct {
	Name   string
	Groups [][]engine.Step
}

// Steps counts what is to be renewed.
func (r Refresh) Steps() int {
	n := 0
	for _, t := range r.Tiers {
		for _, g := range t.Groups {
			n += len(g)
		}
	}
	return n
}

// Originals are the workloads that are about to be changed.
func (r Refresh) Originals() []client.Object { return r.originals }

// groups are the steps in order.
func (r Refresh) groups() []engine.Group {
	var groups []engine.Group
	for _, t := range r.Tiers {
		for _, steps := range t.Groups {
			groups = append(groups, engine.Group{Title: "tier " + t.Name, Parallel: r.parallel, Steps: steps})
		}
	}
	return groups
}

// changes are the moments from which pods get the addresses of a direction. Services that are still to move count as if
// they moved now: that is what a plan predicts.
func changes(s *Survey, m *v1alpha1.Migration, to engine.Direction, now time.Time) rollout.Changes {
	c := rollout.Changes{MovedAt: map[string]time.Time{}, Slack: slack}
	for _, e := range s.Moves {
		at, counts := arrival(e, to, now)
		if !counts {
			continue
		}
		if first := awaySince(e); to == engine.Backward && !first.IsZero() && (c.Since.IsZero() || first.Before(c.Since)) {
			c.Since = later(first, m.CreationTimestamp.Time) // the Service says so itself
		}
		if e.IsKubernetes() {
			c.KubernetesMovedAt = at
		}
		if at.After(c.MovedAt[e.Service.Namespace]) {
			c.MovedAt[e.Service.Namespace] = at
		}
		if s.DNS[e.Key()] {
			c.DNSSince = now
			if at := m.Status.NodesRepointedAt; at != nil {
				c.DNSSince = at.Time
			}
		}
	}
	return c
}

// arrival is when a Service got to where a direction leads; now, if it has yet to. On the way back, those that never left
// don't count.
func arrival(e *Entry, to engine.Direction, now time.Time) (at time.Time, counts bool) {
	if to == engine.Backward && !e.Touched() {
		return time.Time{}, false
	}
	_, target := e.ends(to)
	if !isAt(e.Service, target) {
		return now, true
	}
	src, _ := e.ends(to)
	left, reserved := e.reserved[src]
	if !reserved {
		return now, to == engine.Forward || e.Service.Annotations[v1alpha1.AnnotationOriginalSpec] != ""
	}
	return movedAt(e.Service, left.since), true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// awaySince is when a Service first got to its new address.
func awaySince(e *Entry) time.Time {
	for _, key := range []string{v1alpha1.AnnotationAwaySince, v1alpha1.AnnotationMovedAt} {
		if at, err := time.Parse(time.RFC3339Nano, e.Service.Annotations[key]); err == nil {
			return at
		}
	}
	return time.Time{}
}

// refresher plans what is to be renewed.
type refresher struct {
	tools  migration.Tools
	survey *Survey
	rules  tier.Rules
}

// plan looks at the pods of the cluster and says what becomes of those that carry addresses of before.
func (r refresher) plan(ctx context.Context, c rollout.Changes) (Refresh, error) {
	spec := r.survey.Spec.Refresh
	out := Refresh{parallel: spec.Parallel}
	if len(c.MovedAt) == 0 {
		return out, nil
	}
	state, err := rollout.Load(ctx, r.tools.Cluster)
	if err != nil {
		return out, err
	}
	plan := state.Plan(c, spec.BarePods)
	if spec.Mode == v1alpha1.RefreshReport {
		out.Left = state.Left(c)
		return out, nil
	}
	out.Left = plan.Reported
	tools := rollout.Tools{Client: r.tools.Cluster, Timeout: spec.Timeout.Duration, Now: r.tools.Now}
	out.Tiers = r.tiers(tools, plan, c)
	out.originals = workloads(state, plan.Restarts)
	return out, nil
}

// tiers sorts what is to be renewed into tiers.
func (r refresher) tiers(tools rollout.Tools, plan rollout.Plan, c rollout.Changes) []RefreshTier {
	restarts := map[string][]engine.Step{}
	for _, w := range plan.Restarts {
		t := r.tierOf(w.Namespace, w.Name, w.PodLabels)
		restarts[t] = append(restarts[t], tools.Restart(w, c))
	}
	evictions := map[string][]corev1.Pod{}
	for _, p := range plan.Evictions {
		t := r.tierOf(p.Namespace, p.Name, p.Labels)
		evictions[t] = append(evictions[t], p)
	}
	var all []RefreshTier
	for _, name := range r.survey.Tiers {
		t := RefreshTier{Name: name}
		if len(restarts[name]) > 0 {
			t.Groups = append(t.Groups, restarts[name])
		}
		for _, round := range rollout.Rounds(evictions[name]) {
			var steps []engine.Step
			for i := range round {
				steps = append(steps, tools.Evict(&round[i], c))
			}
			t.Groups = append(t.Groups, steps)
		}
		if len(t.Groups) > 0 {
			all = append(all, t)
		}
	}
	return all
}

// tierOf sorts a workload as a Service of the same namespace and labels would be.
func (r refresher) tierOf(namespace, name string, labels map[string]string) string {
	as := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	assigned := tier.Assign([]*corev1.Service{as}, r.rules, nil)
	return assigned.Of[types.NamespacedName{Namespace: namespace, Name: name}]
}

// workloads are the objects that restarts change.
func workloads(state *rollout.State, restarts []rollout.Workload) []client.Object {
	var all []client.Object
	wanted := func(o client.Object) bool {
		return slices.ContainsFunc(restarts, func(w rollout.Workload) bool { return w.UID == o.GetUID() })
	}
	for i := range state.Deployments {
		if o := &state.Deployments[i]; wanted(o) {
			all = append(all, o)
		}
	}
	for i := range state.StatefulSets {
		if o := &state.StatefulSets[i]; wanted(o) {
			all = append(all, o)
		}
	}
	for i := range state.DaemonSets {
		if o := &state.DaemonSets[i]; wanted(o) {
			all = append(all, o)
		}
	}
	return all
}
