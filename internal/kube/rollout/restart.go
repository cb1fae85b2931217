package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// Tools are what steps work with.
type Tools struct {
	Client client.Client
	// Timeout is how long one workload or pod may take to be ready again. Default: ten minutes.
	Timeout time.Duration
	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

func (t Tools) now() time.Time {
	if t.Now != nil {
		return t.Now()
	}
	return time.Now()
}

func (t Tools) timeout() time.Duration {
	if t.Timeout > 0 {
		return t.Timeout
	}
	return 10 * time.Minute
}

// Restart makes the step that restarts a workload by rollout, as `kubectl rollout restart` does. It is done when no pod
// that a rollout reaches is stale any more and the rollout is complete, or when the workload is gone.
//
// One set of Changes restarts a workload once: the template says since when, and a run that takes up where another was
// killed only waits. The step needs no taking back: a rollback has Changes of its own.
func (t Tools) Restart(w Workload, c Changes) engine.Step {
	return &restartStep{Tools: t, workload: w, changes: c}
}

type restartStep struct {
	Tools
	workload Workload
	changes  Changes
	// reported is true once what is outstanding has been reported. It matters for nothing but when people read what.
	reported bool
}

var (
	_ engine.Previewer = (*restartStep)(nil)
	_ engine.Timed     = (*restartStep)(nil)
	_ engine.Waiter    = (*restartStep)(nil)
)

func (s *restartStep) ID() string {
	return "restart/" + s.workload.Kind + "/" + s.workload.Namespace + "/" + s.workload.Name
}

func (s *restartStep) Title() string {
	title := fmt.Sprintf("Restart %s: pods with %s", s.workload, s.changes.what())
	if s.workload.AllAtOnce {
		title += " (all at once: its strategy is Recreate)"
	}
	return title
}

// Deadline implements engine.Timed.
func (s *restartStep) Deadline() time.Duration { return s.timeout() }

// Waits implements engine.Waiter: a user who interrupts a run shall not have to wait for a rollout. What the step writes is
// found again on the template.
func (s *restartStep) Waits() {}

func (s *restartStep) State(ctx context.Context) (engine.State, error) {
	found, err := s.look(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case found == nil:
		return engine.Done, nil
	case len(found.stale) > 0:
		return engine.Pending, nil
	}
	if restarted := s.changes.touched(s.workload.Namespace, restartedAt(found.adapter)); restarted && found.underWay() {
		return engine.Pending, nil // by an earlier run
	}
	return engine.Done, nil
}

func (s *restartStep) Do(ctx context.Context) error {
	found, err := s.look(ctx)
	if err != nil || found == nil {
		return err
	}
	until := found.newest()
	if until.IsZero() {
		return nil // whatever is stale is ending
	}
	if restartedAt(found.adapter).After(until) {
		return nil
	}
	if reason, _ := found.halted(); reason != "" {
		return engine.NotYet("%s", reason)
	}
	// Times in a pod's status have whole seconds. A pod of the second in which the change came could not be distinguished from an
	// older one.
	now := s.now()
	if !now.Truncate(time.Second).After(until) {
		return engine.NotYet("%s is restarted after %s, so that its new pods can be distinguished from old ones",
			s.workload, until.Add(time.Second).Local().Format(time.TimeOnly))
	}
	if err := s.withinBudgets(ctx, found); err != nil {
		return err
	}
	body, err := json.Marshal(restartPatch(now.UTC().Format(time.RFC3339Nano), found.object().GetResourceVersion()))
	if err != nil {
		return fmt.Errorf("restarting %s: %w", s.workload, err)
	}
	err = s.Client.Patch(ctx, found.object(), client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("restarting %s: %w", s.workload, err)
	}
	return nil
}

func (s *restartStep) Verify(ctx context.Context) error {
	found, err := s.find(ctx)
	if err != nil || found == nil {
		return err
	}
	if err := complete(found); err != nil {
		reported := s.reported
		s.reported = true
		if !reported { // people read what is outstanding at once, and only then is it waited for
			return err
		}
		if err := s.await(ctx, found, err); err != nil {
			return s.explain(ctx, found, err)
		}
	}
	if found, err = s.look(ctx); err != nil || found == nil {
		return err
	}
	if err := complete(found); err != nil {
		return err
	}
	if len(found.stale) > 0 {
		var all []string
		for _, p := range found.stale {
			all = append(all, p.Name)
		}
		return engine.NotYet("%s: pods with %s: %s", s.workload, s.changes.what(), strings.Join(all, ", "))
	}
	return nil
}

func (s *restartStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "patch", Object: s.workload.String(), Body: restartPatch("the time of the restart", "")}}, nil
}

// restartPatch changes the template, and nothing in it that matters. It carries the resourceVersion that the decision was
// made on: of two runs one restarts the workload.
func restartPatch(at, version string) map[string]any {
	patch := map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{v1alpha1.AnnotationRestartedAt: at},
	}}}}
	if version != "" {
		patch["metadata"] = map[string]any{"resourceVersion": version}
	}
	return patch
}

// finding is a workload as it is now.
type finding struct {
	adapter
	// pods are those that have not ended, stale those of them that are stale and that a rollout renews.
	pods, stale []corev1.Pod
	changes     Changes
}

func (f *finding) underWay() bool { return complete(f) != nil }

// newest is the last moment at which a stale pod was given something old; zero, if there is no such pod but ending ones.
func (f *finding) newest() time.Time {
	var newest time.Time
	for i := range f.stale {
		if !f.stale[i].DeletionTimestamp.IsZero() {
			continue
		}
		for _, b := range staleReferences(&f.stale[i], f.changes) {
			if b.until.After(newest) {
				newest = b.until
			}
		}
	}
	return newest
}

// look finds nothing if the workload is gone, or is another one of the same name.
func (s *restartStep) look(ctx context.Context) (*finding, error) {
	f, err := s.find(ctx)
	if err != nil || f == nil {
		return nil, err
	}
	if err := s.lookAtPods(ctx, f); err != nil {
		return nil, err
	}
	return f, nil
}

// find is look without the pods.
func (s *restartStep) find(ctx context.Context) (*finding, error) {
	f := &finding{adapter: newAdapter(s.workload.Kind), changes: s.changes}
	err := s.Client.Get(ctx, types.NamespacedName{Namespace: s.workload.Namespace, Name: s.workload.Name}, f.object())
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.workload, err)
	}
	if f.object().GetUID() != s.workload.UID || !f.object().GetDeletionTimestamp().IsZero() {
		return nil, nil
	}
	return f, nil
}

func (s *restartStep) lookAtPods(ctx context.Context, f *finding) error {
	selector, err := metav1.LabelSelectorAsSelector(f.selector())
	if err != nil {
		return fmt.Errorf("selector of %s: %w", s.workload, err)
	}
	scope := []client.ListOption{client.InNamespace(s.workload.Namespace), client.MatchingLabelsSelector{Selector: selector}}
	owners := map[types.UID]bool{s.workload.UID: true}
	if s.workload.Kind == KindDeployment {
		err := each(ctx, s.Client, replicaSetList(), func(rs *metav1.PartialObjectMetadata) {
			if metav1.IsControlledBy(rs, f.object()) {
				owners[rs.UID] = true
			}
		}, scope...)
		if err != nil {
			return fmt.Errorf("replicasets of %s: %w", s.workload, err)
		}
	}
	err = each(ctx, s.Client, &corev1.PodList{}, func(p *corev1.Pod) {
		if ref := metav1.GetControllerOf(p); ref == nil || !owners[ref.UID] || ended(p) {
			return
		}
		f.pods = append(f.pods, slimPod(p))
		if len(staleReferences(p, s.changes)) > 0 && f.renews(p) {
			f.stale = append(f.stale, slimPod(p))
		}
	}, scope...)
	if err != nil {
		return fmt.Errorf("pods of %s: %w", s.workload, err)
	}
	return nil
}

// withinBudgets returns nil if every PodDisruptionBudget that covers pods of the workload allows them to be disrupted
// now. Rollouts don't ask for that themselves.
func (s *restartStep) withinBudgets(ctx context.Context, f *finding) error {
	var budgets []policyv1.PodDisruptionBudget
	err := each(ctx, s.Client, &policyv1.PodDisruptionBudgetList{}, func(b *policyv1.PodDisruptionBudget) {
		budgets = append(budgets, *b)
	}, client.InNamespace(s.workload.Namespace))
	if err != nil {
		return fmt.Errorf("poddisruptionbudgets in %s: %w", s.workload.Namespace, err)
	}
	covered := map[string]int32{}
	for i := range f.pods {
		for _, b := range budgetsOf(budgets, &f.pods[i]) {
			covered[b.Name]++
		}
	}
	for i := range budgets {
		b := &budgets[i]
		need := min(1, covered[b.Name])
		if f.workload().AllAtOnce {
			need = covered[b.Name]
		}
		switch {
		case need == 0:
		case b.Status.ObservedGeneration < b.Generation:
			return engine.NotYet("pdb %s/%s: its controller has not seen it yet", b.Namespace, b.Name)
		case b.Status.DisruptionsAllowed == 0:
			return engine.NotYet("pdb %s/%s allows no disruption now; %s waits for it", b.Namespace, b.Name, s.workload)
		case b.Status.DisruptionsAllowed < need:
			return engine.NotYet("pdb %s/%s allows %d disruptions now, but %s stops %d pods at once",
				b.Namespace, b.Name, b.Status.DisruptionsAllowed, s.workload, need)
		}
	}
	return nil
}
