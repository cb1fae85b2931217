package servicecidr

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/spec/tier"
)

// slack covers clocks that differ and kubelets that hear of a move a moment later.
const slack = 2 * time.Second

// Refresh is what has to be renewed for pods to lose addresses, and what is left to people.
type Refresh struct {
	// Tiers in order, each with the steps that may run beside each other.
	Tiers []RefreshTier
	Left  []rollout.Reported

	parallel  int
	due       int
	originals []client.Object
}

// RefreshTier is what is renewed of one tier.
type RefreshTier struct {
	Name   string
	Groups [][]engine.Step
}

func (r Refresh) Due() int { return r.due }

func (r Refresh) Originals() []client.Object { return r.originals }

func (r Refresh) groups() []engine.Group {
	var groups []engine.Group
	for _, t := range r.Tiers {
		for _, steps := range t.Groups {
			groups = append(groups, engine.Group{Title: "tier " + t.Name, Parallel: r.parallel, Steps: steps})
		}
	}
	return groups
}

// changes are the moments from which pods get the addresses of a direction; Services yet to move
// count as of now. Only the API server says since when a Service is there.
func changes(s *services.Inventory, m *v1alpha1.Migration, to engine.Direction, now time.Time, counts func(*services.Entry) bool) rollout.Changes {
	c := rollout.Changes{Services: map[string][]rollout.Span{}, Migration: m.Name, Slack: slack}
	for _, e := range s.Moves {
		at, concerns := arrival(e, to, now)
		if !concerns || !counts(e) {
			continue
		}
		if first := awaySince(e); to == engine.Backward && !first.IsZero() && (c.Since.IsZero() || first.Before(c.Since)) {
			c.Since = later(first, m.CreationTimestamp.Time) // the Service says so itself
		}
		if e.IsKubernetes() {
			c.KubernetesMovedAt = at
		}
		of := e.Service.Namespace
		c.Services[of] = append(c.Services[of], rollout.Span{From: e.Service.CreationTimestamp.Time, Until: at})
		if s.DNS[e.Key()] {
			c.DNSSince = now
			if at := m.Status.NodesRepointedAt; at != nil {
				c.DNSSince = at.Time
			}
		}
	}
	for namespace, spans := range c.Services {
		c.Services[namespace] = rollout.Spans(spans)
	}
	return c
}

// arrival is when a Service got to a direction's address; now, if it has yet to. Services that
// never left, or do not return, do not count.
func arrival(e *services.Entry, to engine.Direction, now time.Time) (at time.Time, counts bool) {
	if to == engine.Backward && (!e.Touched() || e.CannotReturn()) {
		return time.Time{}, false
	}
	_, target := e.Ends(to)
	if !services.IsAt(e.Service, target) {
		return now, true
	}
	src, _ := e.Ends(to)
	left, reserved := e.Reserved[src]
	if !reserved {
		return now, to == engine.Forward || e.Service.Annotations[v1alpha1.AnnotationOriginalSpec] != ""
	}
	return services.MovedAt(e.Service, left.Since), true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func awaySince(e *services.Entry) time.Time {
	for _, key := range []string{v1alpha1.AnnotationAwaySince, v1alpha1.AnnotationMovedAt} {
		if at, err := time.Parse(time.RFC3339Nano, e.Service.Annotations[key]); err == nil {
			return at
		}
	}
	return time.Time{}
}

// patience is how long a workload may take to become complete before its restart.
const patience = time.Minute

type refresher struct {
	tools     migration.Deps
	inventory *services.Inventory
	rules     tier.Rules
	of        *v1alpha1.Migration
	to        engine.Direction
	workloads *rollout.State
	departure *rollout.Departure
	// beside rolls what agents call, beside others; nil, if there is nothing such.
	beside func(context.Context) error
	before *services.ByWorkload
}

// plan leaves incomplete workloads alone, after a little wait, unless replumb made them so.
func (r refresher) plan() (Refresh, []rollout.Workload) {
	spec, now := r.inventory.Spec.Refresh, r.tools.Now()
	c := changes(r.inventory, r.of, r.to, now, func(*services.Entry) bool { return true })
	out := Refresh{parallel: spec.Parallel}
	if r.workloads == nil || len(c.Services) == 0 && !r.workloads.AnyLeaving(c) {
		return out, nil
	}
	if spec.Mode == v1alpha1.RefreshReport {
		out.Left = r.workloads.Left(c)
		return out, nil
	}
	plan := r.workloads.Plan(c, spec.BarePods)
	r.before = services.NewByWorkload(r.inventory, r.workloads)
	out.Left = slices.Concat(plan.Reported, plan.Unfinished(c, r.workloads))
	out.due = r.due(now)
	tools := rollout.Deps{Client: r.tools.Client(), Timeout: spec.Timeout.Duration, Patience: patience, Now: r.tools.Now, TakenBack: r.tools.NoteTakenBack(r.of.Name)}
	out.Tiers = r.tiers(tools, plan, c)
	out.originals = workloads(r.workloads, plan.Restarts)
	return out, plan.Restarts
}

func (r refresher) due(now time.Time) (n int) {
	plan := r.workloads.Plan(changes(r.inventory, r.of, r.to, now, func(e *services.Entry) bool {
		_, there := e.Ends(r.to)
		return services.IsAt(e.Service, there) && !endless(r.inventory, e)
	}), r.inventory.Spec.Refresh.BarePods)
	for i := range plan.Restarts {
		if !plan.Restarts[i].Unsure() {
			n++
		}
	}
	return n + len(plan.Evictions)
}

func (r refresher) tiers(tools rollout.Deps, plan rollout.RestartPlan, c rollout.Changes) []RefreshTier {
	restarts, alone := map[string][]engine.Step{}, map[string][]engine.Step{}
	rolling := tools
	rolling.Beside = r.beside
	for i := range plan.Restarts {
		w := &plan.Restarts[i]
		t := r.tierOf(w.Namespace, w.Name, w.PodLabels)
		// Others beside cluster DNS would ask it for names, and nodes whose data plane is restarted
		// do not learn which pods end.
		if r.before.ServesDNS(w) || w.DataPlane {
			alone[t] = append(alone[t], r.renew(tools, w, c))
			continue
		}
		restarts[t] = append(restarts[t], r.renew(rolling, w, c))
	}
	evictions := map[string][]corev1.Pod{}
	for _, p := range plan.Evictions {
		t := r.tierOf(p.Namespace, p.Name, p.Labels)
		evictions[t] = append(evictions[t], p)
	}
	var all []RefreshTier
	for _, name := range r.inventory.Tiers {
		t := RefreshTier{Name: name}
		for _, step := range alone[name] {
			t.Groups = append(t.Groups, []engine.Step{step})
		}
		if len(restarts[name]) > 0 {
			t.Groups = append(t.Groups, restarts[name])
		}
		for _, round := range rollout.Rounds(evictions[name]) {
			var steps []engine.Step
			for i := range round {
				steps = append(steps, rolling.Evict(&round[i], c))
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
func (r refresher) tierOf(namespace, name string, pods map[string]string) string {
	as := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: pods}}
	assigned := tier.Assign([]*corev1.Service{as}, r.rules, nil)
	return assigned.Of[types.NamespacedName{Namespace: namespace, Name: name}]
}

func workloads(state *rollout.State, restarts []rollout.Workload) []client.Object {
	var all []client.Object
	of := sets.Set[types.UID]{}
	for i := range restarts {
		of.Insert(restarts[i].UID)
	}
	wanted := func(o client.Object) bool { return of.Has(o.GetUID()) }
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
