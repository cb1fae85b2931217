package switchover

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec/hook"
)

// phaseAgain comes before the network is verified: it is for one that is not stable yet.
const phaseAgain = "again"

// AgainPhase recreates all pods once more. spec.cni.again counts how often, and status.cni.again
// says since when pods count as new.
func AgainPhase[P shared]() migration.Phase[P] {
	return migration.Phase[P]{
		Name: phaseAgain, Title: "Recreate all pods once more (spec.cni.again)",
		Groups: func(p P) []engine.Group { return p.Shared().again() },
	}
}

// owners reads who recreates pods, where all are to be recreated once more. A finding says that
// this is forbidden.
func (d Deps) owners(ctx context.Context, s *Inventory) (err error) {
	if s.Spec.Again == 0 {
		return nil
	}
	if s.Owners, err = rollout.Load(ctx, d.Cluster); apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return err
	}
	m, err := migration.Get(ctx, d.Cluster, s.Spec.Name)
	if err == nil && m != nil {
		s.Owners.KnowTakenBack(m.Status.TakenBack)
	}
	return err
}

// wantsAgain reports whether pods are still to be recreated once more.
func (s *Inventory) wantsAgain() bool { return s.leftAgain() != "" }

// OnlyAgain reports whether nothing but that is left to do.
func OnlyAgain(s Strategy) bool { return s.Shared().wantsAgain() && s.LeftOfSwitch() == "" }

// begunAgain reports whether the last time has begun.
func (s *Inventory) begunAgain() bool {
	return s.Status.Again != nil && s.Status.Again.Number >= s.Spec.Again
}

// leftAgain says what is left of it; nothing, if nothing is.
func (s *Inventory) leftAgain() string {
	if s.Spec.Again == 0 {
		return ""
	}
	if !s.begunAgain() {
		return fmt.Sprintf("all pods are to be recreated once more (spec.cni.again: %d)", s.Spec.Again)
	}
	for _, name := range s.NodeNames() {
		if slices.Contains(s.Status.Again.Nodes, name) {
			return "node " + name + " is to be replaced once more"
		}
	}
	due := s.renewals(s.Status.Again.Since.Time)
	// Owners who take restarts back may keep their pods for good, and a note has named them.
	due.Restarts = slices.DeleteFunc(due.Restarts, func(w rollout.Workload) bool { return w.TakenBack })
	if n := len(due.Restarts) + len(due.Evictions); n > 0 {
		return fmt.Sprintf("%s to be recreated once more, the first is %s", english.Plural(n, "workload is", "workloads are"), firstOf(due))
	}
	return ""
}

func firstOf(p rollout.RestartPlan) string {
	if len(p.Restarts) > 0 {
		return p.Restarts[0].String()
	}
	return "Pod " + p.Evictions[0].Namespace + "/" + p.Evictions[0].Name
}

// renewals recreate the pods that were made before: by rollouts where there is one, else by
// evictions. Pods without an owner, and those of Jobs, whose work would start over, stay.
func (s *Inventory) renewals(before time.Time) rollout.RestartPlan {
	if s.Owners == nil || s.Spec.Nodes.Mode == v1alpha1.CNINodesReplace {
		return rollout.RestartPlan{}
	}
	plan := s.Owners.Plan(madeBefore(before), v1alpha1.BarePodsEvict)
	plan.Evictions = slices.DeleteFunc(plan.Evictions, func(p corev1.Pod) bool { return stays(&p) })
	return plan
}

func madeBefore(t time.Time) rollout.Changes {
	return rollout.Changes{MadeBefore: t.Truncate(time.Second)}
}

func stays(p *corev1.Pod) bool {
	ref := metav1.GetControllerOfNoCopy(p)
	return ref == nil || ref.Kind == "Job"
}

// again is planned once the switch itself is through: all pods are known then.
func (p *Planner) again() []engine.Group {
	if !OnlyAgain(p.Strategy) {
		return nil
	}
	since := p.Deps.Now().Truncate(time.Second)
	if p.Inventory.begunAgain() {
		since = p.Inventory.Status.Again.Since.Time
	}
	begin := p.Status().again(p.Spec(), p.Inventory.NodeNames(), since)
	if p.Spec().Nodes.Mode == v1alpha1.CNINodesReplace {
		return engine.InOrder(begin, replaceNodesAgain(p.Deps, p.Spec()),
			AwaitRollout(p.Deps, "again/rollout", p.Spec().To, p.Inventory.NewSets()))
	}
	return append(engine.InOrder(begin), p.renewAll(since)...)
}

// renewAll has the cluster's DNS first and alone, since all others ask it as they start, and then
// batches.
func (p *Planner) renewAll(since time.Time) []engine.Group {
	due, changes, tools := p.Inventory.renewals(since), madeBefore(since), p.Rollout()
	var forDNS, others []renewal
	for _, w := range due.Restarts {
		r := renewal{w.String(), tools.Restart(w, changes)}
		if label := w.PodLabels["k8s-app"]; label == "kube-dns" || label == "coredns" {
			forDNS = append(forDNS, r)
		} else {
			others = append(others, r)
		}
	}
	var groups []engine.Group
	number := 0
	add := func(all []renewal) {
		for batch := range slices.Chunk(all, max(1, p.Spec().Common.Batch.Size)) {
			number++
			groups = append(groups, p.renewBatch(number, batch)...)
		}
	}
	add(forDNS)
	add(others)
	for _, round := range rollout.Rounds(due.Evictions) { // no two pods of one owner at once
		var evictions []renewal
		for i := range round {
			pod := &round[i]
			evictions = append(evictions, renewal{"Pod " + pod.Namespace + "/" + pod.Name, tools.Evict(pod, changes)})
		}
		add(evictions)
	}
	return groups
}

type renewal struct {
	name string
	step engine.Step
}

func (p *Planner) renewBatch(number int, batch []renewal) []engine.Group {
	title := fmt.Sprintf("again/%d", number)
	o := hook.Occasion{Run: hook.Apply, Phase: phaseAgain, Batch: number}
	var steps []engine.Step
	for _, r := range batch {
		o.Workloads, steps = append(o.Workloads, r.name), append(steps, r.step)
	}
	groups := engine.AtOnce(max(1, p.Spec().InPlace.Workloads), title, steps...)
	if pause := p.Spec().Common.Batch.Settle; pause != nil && pause.Duration > 0 {
		groups = append(groups, engine.AtOnce(1, title, &migration.PauseStep{
			Name: "settle/" + title, About: fmt.Sprintf("Let %s settle for %s", title, pause.Duration), Length: pause.Duration, Now: p.Deps.Now,
		})...)
	}
	return p.Around(title, o, groups)
}

func (p *Planner) Rollout() rollout.Deps {
	return rollout.Deps{
		Client: p.Deps.Client(), Timeout: p.Spec().InPlace.Timeout.Duration, Now: p.Deps.Now,
		TakenBack: p.Deps.NoteTakenBack(p.Spec().Name),
	}
}

// again records since when pods count as new, or which nodes are to be replaced.
func (m StatusSteps) again(s Spec, nodes []string, since time.Time) engine.Step {
	now := v1alpha1.CNIAgainStatus{Number: s.Again, Since: metav1.NewTime(since)}
	about := "Record that all pods are recreated once more"
	if s.Nodes.Mode == v1alpha1.CNINodesReplace {
		now.Nodes, about = nodes, "Record that all nodes are replaced once more"
	}
	return m.step("again/begin", about, map[string]any{"again": map[string]any{"number": now.Number, "since": "now", "nodes": now.Nodes}},
		func(ctx context.Context) error {
			return m.deps.updateStatus(ctx, m.migration, func(st *v1alpha1.CNIStatus) {
				if st.Again == nil || st.Again.Number < now.Number {
					st.Again = now.DeepCopy()
				}
			})
		},
		func(st v1alpha1.CNIStatus) bool { return st.Again != nil && st.Again.Number >= now.Number })
}

func checkStaysAgain(in Input) []findings.Result {
	s := in.Inventory
	if !s.wantsAgain() {
		return findings.Skip("spec.cni.again is not set")
	}
	var out []findings.Result
	for i := range s.Pods {
		p := &s.Pods[i]
		fresh := s.begunAgain() && !p.CreationTimestamp.Before(&s.Status.Again.Since)
		ends := p.DeletionTimestamp != nil // and need not be recreated
		if Concerned(p) && stays(p) && !fresh && !ends && p.Namespace != v1alpha1.SystemNamespace {
			name := p.Namespace + "/" + p.Name
			out = append(out, findings.Failed("Pod "+name, "pod %s, of %s, is not recreated", name, ownerIn(p)))
		}
	}
	return out
}

func ownerIn(p *corev1.Pod) string {
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		return ref.Kind + " " + ref.Name
	}
	return "no one"
}
