package rollout

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
)

// Departure is how pods leave their Services before they end.
type Departure struct {
	leaving.Leaver
	// Known returns nil once every node knows that these pods have left.
	Known func(ctx context.Context, name string, pods []netip.Addr) error
	// Parted returns nil once no node keeps anything of pods that are endpoints no longer.
	Parted func(ctx context.Context, name string) error
	// Shown is what Known and Parted write; nil for nothing.
	Shown func() ([]engine.Change, error)
}

// roomFor is how long a replacement may take until its pod is given back.
func (t Deps) roomFor() time.Duration { return min(t.timeout()/2, 3*time.Minute) }

// Relieve makes the step that restarts a Deployment pod by pod: another pod takes the place of
// each, which leaves its Services before it ends. Where that cannot be, it restarts by rollout and
// says so.
//
// It is done when no pod is stale, and none is left that was taken from the Deployment.
func (t Deps) Relieve(w Workload, c Changes, d *Departure) engine.Step {
	return &leaveStep{restartStep: t.Restart(w, c).(*restartStep), departure: d}
}

type leaveStep struct {
	*restartStep
	departure *Departure
	plain     string
}

var (
	_ engine.Previewer = (*leaveStep)(nil)
	_ engine.Timed     = (*leaveStep)(nil)
	_ engine.Waiter    = (*leaveStep)(nil)
	_ engine.Noter     = (*leaveStep)(nil)
)

func (s *leaveStep) Title() string {
	return s.restartStep.Title() + " (each leaves its Services before it ends)"
}

// Deadline implements engine.Timed: the time is for each pod, as one goes after the other, and for
// the restart in place of that.
func (s *leaveStep) Deadline() time.Duration {
	return s.timeout()*time.Duration(max(1, len(s.workload.Stale))) + s.restartStep.Deadline()
}

func (s *leaveStep) Note() string {
	if s.plain != "" && s.left == "" && !s.workload.TakenBack {
		return fmt.Sprintf("%s was restarted by rollout, as its pods could not leave their Services first: %s", s.workload, s.plain)
	}
	return s.restartStep.Note()
}

func (s *leaveStep) State(ctx context.Context) (engine.State, error) {
	taken, err := s.taken(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	if len(taken) > 0 {
		return engine.Pending, nil
	}
	return s.restartStep.State(ctx)
}

func (s *leaveStep) taken(ctx context.Context) ([]corev1.Pod, error) {
	all, err := s.departure.Find(ctx, s.workload.Namespace)
	if err != nil {
		return nil, err
	}
	var taken []corev1.Pod
	for i := range all {
		if owner := leaving.MarkOf(&all[i]).Owner; owner != nil && owner.UID == s.workload.UID {
			taken = append(taken, all[i])
		}
	}
	return taken, nil
}

func (s *leaveStep) Do(ctx context.Context) error { return s.within(s.relieve(ctx)) }

func (s *leaveStep) relieve(ctx context.Context) error {
	taken, err := s.taken(ctx)
	if err != nil {
		return err
	}
	found, err := s.look(ctx)
	if err != nil {
		return err
	}
	for i := range taken {
		if taken[i].DeletionTimestamp.IsZero() {
			if found != nil {
				s.headway(len(taken) + len(found.stale))
			}
			return s.dismiss(ctx, found, &taken[i])
		}
	}
	if found == nil || s.plain != "" {
		return s.restartStep.Do(ctx)
	}
	s.headway(len(taken) + len(found.stale))
	return s.take(ctx, found)
}

func (s *leaveStep) take(ctx context.Context, found *finding) error {
	until := found.newest()
	pod := found.next(until)
	if pod == nil {
		return nil
	}
	if reason, _ := found.halted(); reason != "" {
		return engine.NotYet("%s", reason)
	}
	if err := s.whole(found); err != nil || s.left != "" {
		return err
	}
	if !s.now().Truncate(time.Second).After(until) {
		return engine.NotYet("pods of %s are replaced after %s, so that new ones can be distinguished from old ones",
			s.workload, until.Add(time.Second).Local().Format(time.TimeOnly))
	}
	current := &corev1.Pod{}
	if err := s.Client.Get(ctx, client.ObjectKeyFromObject(pod), current); err != nil {
		return client.IgnoreNotFound(err)
	}
	if current.UID != pod.UID {
		return engine.NotYet("pod %s has become another one", pod.Name)
	}
	if s.plain = unfit(found.adapter); s.plain != "" {
		return s.restartStep.Do(ctx)
	}
	if err := s.withinBudgets(ctx, found); err != nil {
		return err
	}
	err := s.departure.Can(ctx, current)
	if err == nil {
		err = s.departure.Release(ctx, current, leaving.Owner{
			Kind: s.workload.Kind, Name: s.workload.Name, UID: s.workload.UID, Since: s.now().UTC().Truncate(time.Second),
		})
	}
	if s.refused(err) {
		return s.restartStep.Do(ctx)
	}
	if err != nil {
		return err
	}
	return engine.NotYet("%s makes another pod in place of %s", s.workload, pod.Name)
}

func (s *leaveStep) refused(err error) bool {
	if err == nil || !errors.As(err, new(*leaving.StuckError)) && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		return false
	}
	s.plain, s.since = err.Error(), s.now()
	return true
}

// unfit says why a pod cannot have a second one beside it, or cannot leave what leads to it.
func unfit(a adapter) string {
	d, ok := a.(deploymentAdapter)
	switch {
	case !ok:
		return "only Deployments make another pod beside one that leaves"
	case d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		return "its strategy is Recreate"
	case noSurge(d.Deployment):
		return "its strategy allows no pod more than it has (maxSurge)"
	case d.Spec.Template.Spec.HostNetwork:
		return "its pods are on the network of nodes"
	}
	for i := range d.Spec.Template.Spec.Containers {
		for _, p := range d.Spec.Template.Spec.Containers[i].Ports {
			if p.HostPort != 0 {
				return "its pods have ports of their nodes"
			}
		}
	}
	return ""
}

// Unfit returns a function that says why pods of a workload cannot leave their Services first.
func (s *State) Unfit() func(w *Workload) string {
	o := s.owners()
	return func(w *Workload) string {
		a := o.adapterOf(w.UID)
		if a == nil {
			return "it is gone"
		}
		return unfit(a)
	}
}

func noSurge(d *appsv1.Deployment) bool {
	r := d.Spec.Strategy.RollingUpdate
	if r == nil || r.MaxSurge == nil {
		return false
	}
	return r.MaxSurge.String() == "0" || r.MaxSurge.String() == "0%"
}

func (f *finding) next(until time.Time) *corev1.Pod {
	var next *corev1.Pod
	for i := range f.stale {
		p := &f.stale[i]
		if !p.DeletionTimestamp.IsZero() || p.CreationTimestamp.After(until) {
			continue
		}
		if next == nil || p.CreationTimestamp.Before(&next.CreationTimestamp) {
			next = p
		}
	}
	return next
}

func (s *leaveStep) dismiss(ctx context.Context, found *finding, pod *corev1.Pod) error {
	if found == nil || !podReady(pod) { // no one needs it, or it serves no one
		return s.end(ctx, pod)
	}
	if err := s.replaced(ctx, found, pod); err != nil {
		return err
	}
	err := s.departure.Leave(ctx, pod)
	if s.refused(err) {
		return s.giveBack(ctx, pod)
	}
	if err != nil {
		return err
	}
	if err := s.departure.Left(ctx, pod); err != nil {
		return err
	}
	if err := s.departure.Known(ctx, pod.Name, leaving.Addresses(pod)); err != nil {
		return err
	}
	return s.end(ctx, pod)
}

func (s *leaveStep) end(ctx context.Context, pod *corev1.Pod) error {
	if err := s.departure.Part(ctx, pod); err != nil {
		return err
	}
	if err := s.departure.Parted(ctx, pod.Name); err != nil {
		return err
	}
	if err := s.departure.End(ctx, pod); err != nil {
		return err
	}
	return engine.NotYet("pod %s ends", pod.Name)
}

// replaced waits for all other pods to be ready and in their Services, or gives the pod back.
func (s *leaveStep) replaced(ctx context.Context, found *finding, pod *corev1.Pod) error {
	err := s.enough(ctx, found)
	if err == nil {
		return nil
	}
	if since := leaving.MarkOf(pod).Owner.Since; s.now().Sub(since) < s.roomFor() {
		return err
	}
	s.since = s.now()
	s.plain = "no pod came in place of " + pod.Name + ": " + s.explain(ctx, found, err).Error()
	return s.giveBack(ctx, pod)
}

func (s *leaveStep) enough(ctx context.Context, found *finding) error {
	d, ok := found.adapter.(deploymentAdapter)
	if !ok {
		return nil
	}
	ready := 0
	for i := range found.pods {
		if !podReady(&found.pods[i]) {
			continue
		}
		ready++
		if err := s.departure.In(ctx, &found.pods[i]); err != nil {
			return err
		}
	}
	if want := int(replicas(d.Spec.Replicas)); ready < want {
		return engine.NotYet("%s: %d of %d pods are ready beside the one that leaves", s.workload, ready, want)
	}
	return complete(found)
}

// giveBack returns the pod to the Deployment, which then ends the youngest one too many.
func (s *leaveStep) giveBack(ctx context.Context, pod *corev1.Pod) error {
	if err := s.departure.Restore(ctx, pod); err != nil {
		return err
	}
	return engine.NotYet("%s has pod %s again: %s", s.workload, pod.Name, s.plain)
}

func (s *leaveStep) Verify(ctx context.Context) error { return s.within(s.proof(ctx)) }

func (s *leaveStep) proof(ctx context.Context) error {
	taken, err := s.taken(ctx)
	if err != nil {
		return err
	}
	for i := range taken {
		return engine.NotYet("pod %s/%s has not ended yet", taken[i].Namespace, taken[i].Name)
	}
	return s.restartStep.Verify(ctx)
}

func (s *leaveStep) Preview() ([]engine.Change, error) {
	all, err := leaving.Changes(s.workload.Namespace, s.workload.Name+"-…")
	if err != nil {
		return nil, err
	}
	if s.departure.Shown != nil {
		shown, err := s.departure.Shown()
		if err != nil {
			return nil, err
		}
		all = append(all, shown...)
	}
	rolled, err := s.restartStep.Preview()
	for _, c := range rolled {
		c.Object += " (instead, where its pods cannot leave first)"
		all = append(all, c)
	}
	return all, err
}
