package rollout

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// Leaving says which pods are to leave a node, and how.
type Leaving struct {
	Node string
	// Taint that keeps pods away from the node. Pods of DaemonSets that tolerate it stay: they would be back at once.
	Taint corev1.Taint
	// Stays reports whether a pod may stay for another reason, such as an address that is not to change.
	Stays func(*corev1.Pod) bool
	// Hosts says that pods on the node's own network go as well: the node itself is about to end.
	Hosts bool
	// Forced are deleted whatever a PodDisruptionBudget or their owner says.
	Forced func(*corev1.Pod) bool
	// Bare says what becomes of pods without an owner: reported ones are waited for, and so are those of Jobs.
	Bare v1alpha1.BarePodsPolicy
	// Turns, if set, are shared by the drains of several nodes at once.
	Turns *Turns
	// Patience is how long such pods are waited for, when all others have left. Default: as long as for any.
	Patience time.Duration
}

// Drain makes the step that empties a node of pods with addresses of their own, except those of DaemonSets that are there
// whatever the node's taints, and static ones. A pod is evicted only while its owner has all the pods it wants: so however
// many of them are on the node, the next one goes when the one before is replaced and ready elsewhere. One that cannot be
// replaced before this node takes pods again, because of constraints on where pods may be, is gone without, as long as
// another one is ready. PodDisruptionBudgets are waited for. A Deployment with a single pod is restarted by rollout
// instead, which starts the new pod first.
//
// What it does next depends on nothing but what is on the node. It gives up when no pod has left for the Timeout.
func (t Tools) Drain(l Leaving) engine.Step { return &drainStep{Tools: t, leaving: l} }

type drainStep struct {
	Tools
	leaving Leaving
	// seen is how many pods were left when the last one had left, and since when.
	seen  int
	since time.Time
	// note names what could not be seen to end.
	note string
}

// drainLimit bounds the step as a whole: some nodes have hundreds of pods.
const drainLimit = 24 * time.Hour

var (
	_ engine.Timed     = (*drainStep)(nil)
	_ engine.Waiter    = (*drainStep)(nil)
	_ engine.Previewer = (*drainStep)(nil)
	_ engine.Noter     = (*drainStep)(nil)
)

func (s *drainStep) ID() string    { return "drain/" + s.leaving.Node }
func (s *drainStep) Title() string { return "Move pods off node " + s.leaving.Node }

// Deadline implements engine.Timed.
func (s *drainStep) Deadline() time.Duration { return drainLimit }

// Role implements engine.Cast.
func (s *drainStep) Role() engine.Role { return engine.RoleMove }

// Note implements engine.Noter.
func (s *drainStep) Note() string { return s.note }

// Waits implements engine.Waiter: a drain may take hours. It writes, all the same: see Preview.
func (s *drainStep) Waits() {}

// Preview implements engine.Previewer. Which pods they are is known when the turn of the node comes: the plan must not change with every
// pod that starts or ends.
func (s *drainStep) Preview() ([]engine.Change, error) {
	changes := []engine.Change{
		{Verb: "evict", Object: "Pod */* on node " + s.leaving.Node},
		{Verb: "patch", Object: "Deployment */* with its only pod on node " + s.leaving.Node},
	}
	if s.leaving.Forced != nil {
		changes = append(changes, engine.Change{Verb: "delete", Object: "Pod */* on node " + s.leaving.Node + " that is forced"})
	}
	return changes, nil
}

func (s *drainStep) State(ctx context.Context) (engine.State, error) {
	left, err := s.left(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case len(left) > 0:
		return engine.Pending, nil
	}
	return engine.Done, nil
}

// Do sends away those that can go now. It has not done its work until nothing is left.
func (s *drainStep) Do(ctx context.Context) error {
	left, err := s.left(ctx)
	if err != nil || len(left) == 0 {
		return err
	}
	var first error
	if s.leaving.Turns != nil {
		left, first, err = s.follow(ctx)
	} else {
		first, err = s.sendAll(ctx, left)
	}
	if err != nil {
		return err
	}
	if len(left) == 0 { // as far as is watched: the node itself has the last word
		if left, err = s.left(ctx); err != nil || len(left) == 0 {
			return err
		}
	}
	text := fmt.Sprintf("node %s still has %d pods to go", s.leaving.Node, len(left))
	if first != nil {
		text += ": " + first.Error()
	}
	if limit := s.limit(left); s.standstill(len(left)) > limit {
		return fmt.Errorf("none has left for %s: %s", limit, text)
	}
	return engine.NotYet("%s", text)
}

// follow sends away pods as soon as they can go, for as long as any is left, or until it is time to say how far it is.
func (s *drainStep) follow(ctx context.Context) (left []*corev1.Pod, waits, err error) {
	view, news, err := s.leaving.Turns.join(ctx, s.leaving.Node)
	defer s.leaving.Turns.leave(s.leaving.Node)
	if err != nil {
		return nil, nil, err
	}
	end := time.NewTimer(keepAt)
	defer end.Stop()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		left = slices.DeleteFunc(view.on(s.leaving.Node), func(p *corev1.Pod) bool { return !s.goes(p) })
		if len(left) == 0 {
			return nil, nil, nil
		}
		if waits, err = s.sendAll(ctx, left); err != nil {
			return nil, nil, err
		}
		select {
		case <-ctx.Done():
			return left, waits, nil
		case <-end.C:
			return left, waits, nil
		case <-news:
		case <-ticker.C:
		}
	}
}

// sendAll sends away those that can go, and says what the first of the others waits for.
func (s *drainStep) sendAll(ctx context.Context, left []*corev1.Pod) (waits, err error) {
	asked := map[types.UID]bool{}
	for _, p := range left {
		err := s.send(ctx, p, asked)
		switch {
		case err != nil && !engine.Retryable(err):
			return nil, err
		case waits == nil:
			waits = err
		}
	}
	return waits, nil
}

// standstill is for how long no pod has left.
func (s *drainStep) standstill(left int) time.Duration {
	if s.since.IsZero() || left != s.seen {
		s.seen, s.since = left, s.now()
	}
	return s.now().Sub(s.since)
}

// limit is how long a standstill may be.
func (s *drainStep) limit(left []*corev1.Pod) time.Duration {
	for _, p := range left {
		if !s.waitsFor(metav1.GetControllerOf(p)) {
			return s.timeout()
		}
	}
	return max(s.timeout(), s.leaving.Patience)
}

// waitsFor reports whether pods of this owner are left to end by themselves.
func (s *drainStep) waitsFor(owner *metav1.OwnerReference) bool {
	return (owner == nil || owner.Kind == kindJob) && s.leaving.Bare != v1alpha1.BarePodsEvict
}

// Verify implements engine.Step.
func (s *drainStep) Verify(ctx context.Context) error {
	left, err := s.left(ctx)
	if err == nil && len(left) > 0 {
		return engine.NotYet("pod %s/%s is on node %s", left[0].Namespace, left[0].Name, s.leaving.Node)
	}
	return err
}

// left are the pods that have to go, those that are ending included. Where the kubelet is away, those whose time is over are not waited for:
// they are seen to have ended when the node is back, or is deleted.
func (s *drainStep) left(ctx context.Context) ([]*corev1.Pod, error) {
	var left []*corev1.Pod
	err := each(ctx, s.Client, &corev1.PodList{}, func(p *corev1.Pod) {
		if s.goes(p) {
			left = append(left, p)
		}
	}, client.MatchingFields{"spec.nodeName": s.leaving.Node})
	if err != nil {
		return nil, fmt.Errorf("pods of node %s: %w", s.leaving.Node, err)
	}
	overdue := func(p *corev1.Pod) bool {
		return !p.DeletionTimestamp.IsZero() && s.now().After(p.DeletionTimestamp.Time)
	}
	if len(left) == 0 || slices.ContainsFunc(left, func(p *corev1.Pod) bool { return !overdue(p) }) {
		return left, nil
	}
	lost, err := s.lost(ctx)
	if err != nil || !lost {
		return left, err
	}
	s.note = fmt.Sprintf("node %s is not ready: %d pods were asked to end, and it is not known whether they have, the first is %s/%s",
		s.leaving.Node, len(left), left[0].Namespace, left[0].Name)
	return nil, nil
}

// lost reports whether the node's kubelet does not answer.
func (s *drainStep) lost(ctx context.Context) (lost bool, err error) {
	err = each(ctx, s.Client, &corev1.NodeList{}, func(n *corev1.Node) { lost = away(n) },
		client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector(metav1.ObjectNameField, s.leaving.Node)})
	if err != nil {
		return false, fmt.Errorf("node %s: %w", s.leaving.Node, err)
	}
	return lost, nil
}

func (s *drainStep) goes(p *corev1.Pod) bool {
	_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
	if static || p.Spec.HostNetwork && !s.leaving.Hosts || ended(p) || s.leaving.Stays != nil && s.leaving.Stays(p) {
		return false
	}
	ref := metav1.GetControllerOfNoCopy(p)
	return ref == nil || ref.Kind != KindDaemonSet || !Tolerates(p.Spec.Tolerations, &s.leaving.Taint)
}

// Tolerates reports whether one of the tolerations is for a taint.
func Tolerates(all []corev1.Toleration, taint *corev1.Taint) bool {
	for i := range all {
		t := &all[i]
		covers := t.Effect == "" || t.Effect == taint.Effect
		if covers && (t.Key == "" || t.Key == taint.Key) && (t.Operator == corev1.TolerationOpExists || t.Value == taint.Value) {
			return true
		}
	}
	return false
}

// send evicts a pod, if that can be now, and says what it waits for otherwise. asked are the owners of those that have
// been sent in this round: what a PodDisruptionBudget or the status of the owner says is then out of date.
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

// sendInTurn asks the API server only if what is watched says that the owner can do without the pod, and every now and then in case it
// does not say all.
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

// spared returns nil if an owner can do without a pod, by what is watched.
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
	return (&evictStep{Tools: s.Tools, pod: slimPod(p)}).demand(ctx, ref)
}

func (s *drainStep) sendOwned(ctx context.Context, p *corev1.Pod, ref *metav1.OwnerReference, d demand, in *turn) error {
	if d.want <= 1 {
		w, err := s.single(ctx, p, ref)
		switch {
		case err != nil:
			return err
		case w != nil:
			return s.Restart(*w, Changes{Leave: s.leaving.Node, Slack: time.Second}).Do(ctx)
		}
	}
	if err := s.whole(ctx, p, ref, d, in); err != nil {
		return err
	}
	return s.evict(ctx, p)
}

// evict asks for one eviction.
func (s *drainStep) evict(ctx context.Context, p *corev1.Pod) error {
	e := &evictStep{Tools: s.Tools, pod: slimPod(p)}
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

// single finds the Deployment whose only pod this is, if a rollout of it starts a new pod before it ends this one.
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

// whole returns nil if the owner of a pod can do without it: all the pods it wants are ready, or all that can be are, and
// this is not the last.
func (s *drainStep) whole(ctx context.Context, p *corev1.Pod, ref *metav1.OwnerReference, d demand, in *turn) error {
	if in == nil || !d.known {
		ready, stuck, err := s.count(ctx, p, ref, d)
		if err != nil || enough(p, d, ready, stuck) {
			return err
		}
		return short(p, ref, ready, d)
	}
	// What is watched may be a moment old, and so may be what its controller counted: it takes both.
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

// count looks at the pods of an owner: how many are ready, and for how many there is no node.
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

// unschedulable reports whether the scheduler has found no node for a pod.
func unschedulable(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}
