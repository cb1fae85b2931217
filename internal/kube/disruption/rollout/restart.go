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
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
	"github.com/replumb/replumb/internal/kube/readiness"
)

// Deps are what steps work with.
type Deps struct {
	Client client.Client
	// Timeout is how long one workload or pod may take to be ready again. Default: ten minutes.
	Timeout time.Duration
	// Patience is how long a workload that was not complete before is waited for, and then left
	// alone. Zero restarts it all the same.
	Patience time.Duration
	// Beside, if set, is called before pods of a workload end with no proof that every node knows.
	// It rolls what shows whether nodes learn in time.
	Beside func(context.Context) error
	// Now is the clock. Default: time.Now.
	Now func() time.Time
	// TakenBack, if set, hears of restarts that somebody undid.
	TakenBack func(context.Context, v1alpha1.TakenBackStatus) error
}

func (t Deps) beside(ctx context.Context) error {
	if t.Beside == nil {
		return nil
	}
	return t.Beside(ctx)
}

func (t Deps) now() time.Time {
	if t.Now != nil {
		return t.Now()
	}
	return time.Now()
}

func (t Deps) timeout() time.Duration {
	if t.Timeout > 0 {
		return t.Timeout
	}
	return 10 * time.Minute
}

// Restart makes the step that restarts a workload by rollout. It is done when no pod that a rollout
// reaches is stale and the rollout is complete, or the workload is gone.
//
// One set of Changes restarts a workload once: the template says since when. Where somebody takes
// that back, its pods are replaced one by one.
func (t Deps) Restart(w Workload, c Changes) engine.Step {
	s := &restartStep{Deps: t, workload: w, changes: c}
	if w.Unfinished != "" {
		s.seen = t.now()
	}
	return s
}

type restartStep struct {
	Deps
	workload Workload
	changes  Changes
	reported bool
	// seen is when it was first found incomplete, left why it was left alone for that.
	seen time.Time
	left string
	// wrote is the restart that has to stay on the template.
	wrote time.Time
	// evicting says that the step itself has made the workload incomplete, outstanding how many
	// pods it has had to replace since.
	evicting    bool
	outstanding int
	since       time.Time
}

var (
	_ engine.Previewer = (*restartStep)(nil)
	_ engine.Timed     = (*restartStep)(nil)
	_ engine.Waiter    = (*restartStep)(nil)
	_ engine.Noter     = (*restartStep)(nil)
)

func (s *restartStep) ID() string {
	return "restart/" + s.workload.Kind + "/" + s.workload.Namespace + "/" + s.workload.Name
}

func (s *restartStep) Title() string {
	title := fmt.Sprintf("Restart %s: pods with %s", s.workload, s.changes.what())
	switch {
	case s.workload.ByPods != "":
		title += " (one by one: " + s.workload.ByPods + ")"
	case s.workload.AllAtOnce:
		title += " (all at once: its strategy is Recreate)"
	}
	return title
}

// Deadline implements engine.Timed. A rollout has the timeout, and each pod after it, which within
// sees to; here is more than all of that.
func (s *restartStep) Deadline() time.Duration {
	return s.timeout() * time.Duration(4+len(s.workload.Stale))
}

// Waits lets an interrupted run end at once. The restart is found again on the template.
func (s *restartStep) Waits() {}

func (s *restartStep) Note() string {
	switch {
	case s.left != "" && s.evicting && s.workload.TakenBack:
		return fmt.Sprintf("%s: %s; pods of it keep %s (%s): have its owner restart them",
			s.workload, s.workload.ByPods, s.changes.what(), s.left)
	case s.left == "" && s.evicting && s.workload.TakenBack:
		return fmt.Sprintf("%s: %s; its pods were replaced one by one", s.workload, s.workload.ByPods)
	case s.left == "":
		return ""
	}
	return fmt.Sprintf("%s is left alone, since it was not complete before: %s; its pods keep %s", s.workload, s.left, s.changes.what())
}

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

func (s *restartStep) Do(ctx context.Context) error { return s.within(s.renew(ctx)) }

func (s *restartStep) renew(ctx context.Context) error {
	found, err := s.look(ctx)
	if err != nil || found == nil {
		return err
	}
	if err := s.stands(ctx, found); err != nil {
		return err
	}
	until := found.newest()
	if until.IsZero() {
		return nil // whatever is stale is ending
	}
	if at := restartedAt(found.adapter); at.After(until) && s.workload.ByPods == "" {
		s.wrote = at
		return nil
	}
	if reason, _ := found.halted(); reason != "" {
		return engine.NotYet("%s", reason)
	}
	if err := s.whole(found); err != nil || s.left != "" {
		return err
	}
	// Times in a pod's status have whole seconds: a pod of this second may be an old one.
	now := s.now()
	if !now.Truncate(time.Second).After(until) {
		return engine.NotYet("%s is restarted after %s, so that its new pods can be distinguished from old ones",
			s.workload, until.Add(time.Second).Local().Format(time.TimeOnly))
	}
	if s.workload.ByPods != "" {
		return s.replaceNext(ctx, found)
	}
	if err := s.withinBudgets(ctx, found); err != nil {
		return err
	}
	if err := s.beside(ctx); err != nil {
		return err
	}
	return s.restart(ctx, found, now)
}

func (s *restartStep) restart(ctx context.Context, found *finding, now time.Time) error {
	body, err := json.Marshal(restartPatch(now.UTC().Format(time.RFC3339Nano), found.object().GetResourceVersion()))
	if err != nil {
		return fmt.Errorf("restarting %s: %w", s.workload, err)
	}
	err = s.Client.Patch(ctx, found.object(), client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("restarting %s: %w", s.workload, err)
	}
	s.wrote = now.UTC()
	return nil
}

// whole fails while an untouched workload lacks something, and leaves it alone after Patience.
func (s *restartStep) whole(f *finding) error {
	why := lacks(f.present())
	if why == "" || s.evicting || s.Patience == 0 || s.changes.touched(s.workload.Namespace, restartedAt(f.adapter)) {
		s.seen = time.Time{}
		return nil
	}
	if s.seen.IsZero() {
		s.seen = s.now()
	}
	for i := range f.pods {
		if blocked := readiness.Blocked(&f.pods[i]); blocked != "" {
			s.left = fmt.Sprintf("%s; pod %s: %s", why, f.pods[i].Name, blocked)
			return nil
		}
	}
	if s.now().Sub(s.seen) < s.Patience {
		return engine.NotYet("%s is not complete, and not by its restart: %s", s.workload, why)
	}
	s.left = why
	return nil
}

func (s *restartStep) Verify(ctx context.Context) error { return s.within(s.verify(ctx)) }

func (s *restartStep) verify(ctx context.Context) error {
	if s.left != "" {
		return nil
	}
	found, err := s.find(ctx)
	if err != nil || found == nil {
		return err
	}
	if err := s.stands(ctx, found); err != nil {
		return err
	}
	if err := s.completed(ctx, found); err != nil {
		return err
	}
	if found, err = s.look(ctx); err != nil || found == nil {
		return err
	}
	if err := complete(found.present()); err != nil {
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

// completed waits until the rollout is complete. The first call reports at once what is missing.
func (s *restartStep) completed(ctx context.Context, found *finding) error {
	err := complete(found)
	if err == nil {
		return nil
	}
	reported := s.reported
	s.reported = true
	if !reported {
		return err
	}
	if err := s.await(ctx, found, err); err != nil {
		now, lookErr := s.look(ctx)
		if lookErr != nil || now == nil || complete(now.present()) != nil {
			return s.explain(ctx, found, err)
		}
	}
	return nil
}

func (s *restartStep) Preview() ([]engine.Change, error) {
	evictions := engine.Change{Verb: "create", Object: "Eviction " + s.workload.Namespace + "/*, of pods of " + s.workload.String()}
	if s.workload.ByPods != "" {
		return []engine.Change{evictions}, nil
	}
	const undone = " (where somebody takes its restart back)"
	evictions.Object += undone
	changes := []engine.Change{
		{Verb: "patch", Object: s.workload.String(), Body: restartPatch("the time of the restart", "")}, evictions,
	}
	if s.TakenBack != nil {
		changes = append(changes, engine.Change{Verb: "update", Object: "Migration, its status" + undone})
	}
	return changes, nil
}

// restartPatch changes one annotation. With the resourceVersion, one of two runs wins.
func restartPatch(at, version string) map[string]any {
	patch := map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{v1alpha1.AnnotationRestartedAt: at},
	}}}}
	if version != "" {
		patch["metadata"] = map[string]any{"resourceVersion": version}
	}
	return patch
}

type finding struct {
	adapter
	// pods have not ended; stale are those of them that a rollout renews.
	pods, stale []corev1.Pod
	away        map[string]bool
	changes     Changes
}

func (f *finding) present() adapter { return present(f.adapter, f.pods, f.away) }

func (f *finding) underWay() bool { return complete(f.present()) != nil }

// newest is the last moment at which a stale pod was given something old; zero, if all are ending.
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
	f.pods, f.stale = nil, nil
	owners, err := s.owners(ctx, f, scope)
	if err != nil {
		return err
	}
	err = each(ctx, s.Client, &corev1.PodList{}, func(p *corev1.Pod) {
		if ref := metav1.GetControllerOf(p); ref == nil || !owners[ref.UID] || ended(p) || leaving.Marked(p, "") {
			return
		}
		f.pods = append(f.pods, slimPod(p))
	}, scope...)
	if err != nil {
		return fmt.Errorf("pods of %s: %w", s.workload, err)
	}
	if f.away, err = s.lost(ctx, f.pods); err != nil {
		return err
	}
	for i := range f.pods {
		p := &f.pods[i]
		if len(staleReferences(p, s.changes)) > 0 && f.renews(p) && !waitsForNode(s.workload.Kind, p, f.away) {
			f.stale = append(f.stale, *p)
		}
	}
	return nil
}

func (s *restartStep) owners(ctx context.Context, f *finding, scope []client.ListOption) (map[types.UID]bool, error) {
	owners := map[types.UID]bool{s.workload.UID: true}
	if s.workload.Kind != KindDeployment {
		return owners, nil
	}
	err := each(ctx, s.Client, replicaSetList(), func(rs *metav1.PartialObjectMetadata) {
		if metav1.IsControlledBy(rs, f.object()) {
			owners[rs.UID] = true
		}
	}, scope...)
	if err != nil {
		return nil, fmt.Errorf("replicasets of %s: %w", s.workload, err)
	}
	return owners, nil
}

// withinBudgets returns nil if every budget of the workload allows a disruption; rollouts do not
// ask.
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
