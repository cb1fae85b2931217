package rollout

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

// send evicts a pod if that can be now. asked are the owners already evicted from in this round.
func (s *drainStep) send(ctx context.Context, p *corev1.Pod, asked map[types.UID]bool) error {
	if !p.DeletionTimestamp.IsZero() {
		return engine.NotYet("pod %s/%s has not ended yet", p.Namespace, p.Name)
	}
	ref := metav1.GetControllerOf(p)
	switch {
	case s.leaving.Forced != nil && s.leaving.Forced(p):
		err := s.Client.Delete(ctx, p, client.Preconditions{UID: &p.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		return nil
	case s.waitsFor(ref):
		return engine.NotYet("pod %s/%s has nothing that would replace it: its end is waited for", p.Namespace, p.Name)
	case ref == nil:
		return s.evict(ctx, p)
	case asked[ref.UID]:
		return nil
	}
	asked[ref.UID] = true
	if t := s.leaving.Turns; t != nil {
		return t.take(p, ref, s.now, func(turn *turn) error { return s.sendInTurn(ctx, p, ref, turn) })
	}
	d, err := s.demand(ctx, p, ref)
	if err != nil {
		return err
	}
	return s.sendOwned(ctx, p, ref, d, nil)
}

// sendInTurn asks the API server if the watch says that the owner can spare the pod, and now and
// then.
func (s *drainStep) sendInTurn(ctx context.Context, p *corev1.Pod, ref *metav1.OwnerReference, turn *turn) error {
	if s.now().Sub(turn.asked) < quiet {
		if err := s.spared(p, ref, turn); err != nil {
			return err
		}
	}
	turn.asked = s.now()
	d, err := s.demand(ctx, p, ref)
	if err == nil {
		turn.demand = d
		err = s.sendOwned(ctx, p, ref, d, turn)
	}
	if err != nil && engine.Retryable(err) {
		s.leaving.Turns.later(turn)
	}
	return err
}

func (s *drainStep) spared(p *corev1.Pod, ref *metav1.OwnerReference, turn *turn) error {
	d, view := turn.demand, turn.view
	if !d.known || !podReady(p) {
		return nil
	}
	ready, stuck := view.count(ref.UID, turn.sent)
	if !enough(p, d, ready, stuck) {
		return short(p, ref, ready, d)
	}
	if name := view.holding(p); name != "" {
		return engine.NotYet("pod %s/%s cannot be evicted now: PodDisruptionBudget %s lets none go", p.Namespace, p.Name, name)
	}
	return nil
}

func (s *drainStep) demand(ctx context.Context, p *corev1.Pod, ref *metav1.OwnerReference) (demand, error) {
	return (&evictStep{Deps: s.Deps, pod: slimPod(p)}).demand(ctx, ref)
}

func (s *drainStep) sendOwned(ctx context.Context, p *corev1.Pod, ref *metav1.OwnerReference, d demand, in *turn) error {
	if d.want <= 1 {
		w, err := s.single(ctx, p, ref)
		switch {
		case err != nil:
			return err
		case w != nil:
			return s.restartSingle(ctx, w)
		}
	}
	if err := s.whole(ctx, p, ref, d, in); err != nil {
		return err
	}
	return s.evict(ctx, p)
}

func (s *drainStep) evict(ctx context.Context, p *corev1.Pod) error {
	e := &evictStep{Deps: s.Deps, pod: slimPod(p)}
	err := s.Client.SubResource("eviction").Create(ctx, p, e.eviction())
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsTooManyRequests(err):
		return engine.NotYet("pod %s/%s cannot be evicted now: %w", p.Namespace, p.Name, withCauses(err))
	case err != nil:
		return fmt.Errorf("evicting pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// restartSingle keeps the restart that it has begun, which knows whether somebody took it back.
func (s *drainStep) restartSingle(ctx context.Context, w *Workload) error {
	r := s.singles[w.UID]
	if r == nil {
		r = s.Restart(*w, Changes{Leave: s.leaving.Node, Slack: time.Second}).(*restartStep)
		if s.singles == nil {
			s.singles = map[types.UID]*restartStep{}
		}
		s.singles[w.UID] = r
	}
	if err := r.renew(ctx); err != nil || r.left == "" {
		return err
	}
	return engine.NotYet("%s", r.Note())
}

// single finds the Deployment whose only pod this is, if its rollout starts the new pod first.
func (s *drainStep) single(ctx context.Context, p *corev1.Pod, ref *metav1.OwnerReference) (*Workload, error) {
	if ref.Kind != kindReplicaSet {
		return nil, nil
	}
	rs := &appsv1.ReplicaSet{}
	err := s.Client.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: ref.Name}, rs)
	above := metav1.GetControllerOf(rs)
	if err != nil || above == nil || above.Kind != KindDeployment {
		return nil, client.IgnoreNotFound(err)
	}
	d := &appsv1.Deployment{}
	err = s.Client.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: above.Name}, d)
	if err != nil || d.UID != above.UID || replicas(d.Spec.Replicas) != 1 || d.Spec.Paused {
		return nil, client.IgnoreNotFound(err)
	}
	w := deploymentAdapter{d}.workload()
	if u := d.Spec.Strategy.RollingUpdate; w.AllAtOnce || u != nil && u.MaxSurge != nil && u.MaxSurge.String() == "0" {
		return nil, nil
	}
	return w, nil
}

// whole returns nil if the owner of a pod can do without it.
func (s *drainStep) whole(ctx context.Context, p *corev1.Pod, ref *metav1.OwnerReference, d demand, in *turn) error {
	if ref.Kind == KindDaemonSet {
		return s.elsewhere(ctx, p, ref)
	}
	if in == nil || !d.known {
		ready, stuck, err := s.count(ctx, p, ref, d)
		if err != nil || enough(p, d, ready, stuck) {
			return err
		}
		return short(p, ref, ready, d)
	}
	// The watch and the owner's controller may both lag: it takes both.
	ready, stuck := in.view.count(ref.UID, in.sent)
	switch {
	case !enough(p, d, ready, stuck):
		return short(p, ref, ready, d)
	case podReady(p) && d.ready < min(ready, d.want):
		return short(p, ref, d.ready, d)
	}
	return nil
}

func enough(p *corev1.Pod, d demand, ready, stuck int) bool {
	return ready >= d.want || !podReady(p) || ready > 1 && ready+stuck >= d.want
}

func short(p *corev1.Pod, ref *metav1.OwnerReference, ready int, d demand) error {
	return engine.NotYet("%s %s/%s has %d of %d pods ready", ref.Kind, p.Namespace, ref.Name, ready, d.want)
}

func (s *drainStep) count(ctx context.Context, p *corev1.Pod, ref *metav1.OwnerReference, d demand) (ready, stuck int, err error) {
	opts := []client.ListOption{client.InNamespace(p.Namespace)}
	if d.selector != nil {
		opts = append(opts, client.MatchingLabelsSelector{Selector: d.selector})
	}
	err = each(ctx, s.Client, &corev1.PodList{}, func(o *corev1.Pod) {
		if owner := metav1.GetControllerOfNoCopy(o); owner == nil || owner.UID != ref.UID || ended(o) {
			return
		}
		if podReady(o) {
			ready++
		}
		if unschedulable(o) {
			stuck++
		}
	}, opts...)
	if err != nil {
		err = fmt.Errorf("pods of %s %s: %w", ref.Kind, ref.Name, err)
	}
	return ready, stuck, err
}

func unschedulable(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}
