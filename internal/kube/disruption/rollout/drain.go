package rollout

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/workload"
)

// Leaving says which pods are to leave a node, and how.
type Leaving struct {
	Node string
	// Name and About are ID and title of the step, where a node has more than one.
	Name, About string
	// Taint keeps pods away from the node. Pods of DaemonSets that tolerate it stay.
	Taint corev1.Taint
	// Stays reports whether a pod may stay for another reason, such as its address.
	Stays func(*corev1.Pod) bool
	// Hosts says that pods on the node's own network go as well: the node itself is about to end.
	Hosts bool
	// Forced are deleted whatever a PodDisruptionBudget or their owner says.
	Forced func(*corev1.Pod) bool
	// Bare is what becomes of pods without an owner; reported ones are waited for.
	Bare v1alpha1.BarePodsPolicy
	// Turns, if set, are shared by the drains of several nodes at once.
	Turns *Turns
	// AtOnce limits how many owners replace a pod at the same time; 0 is no limit. Pods that all
	// start elsewhere in the same seconds take the processors of nodes that serve.
	AtOnce int
	// Patience is how long such pods are waited for, once all others have left.
	Patience time.Duration
}

// Drain makes the step that empties a node of pods with addresses of their own, except static ones
// and those of DaemonSets that tolerate its taints. A pod is evicted while its owner has all the
// pods it wants, so that the next one goes when the one before is ready elsewhere. A pod that
// cannot be scheduled before this node returns goes if another one is ready. A Deployment with a
// single pod is restarted by rollout instead. One of a DaemonSet goes while those on other nodes
// are ready.
//
// The step depends on nothing but what is on the node. It gives up when no pod has left for the
// Timeout.
func (t Deps) Drain(l Leaving) engine.Step { return &drainStep{Deps: t, leaving: l} }

type drainStep struct {
	Deps
	leaving Leaving
	// seen is how many pods were left when the last one had left, and since when.
	seen  int
	since time.Time
	// note names what could not be seen to end.
	note string
	// underway are the owners that are replacing a pod, by that pod.
	underway map[types.UID]replacement
	// singles are the restarts of Deployments with a single pod.
	singles map[types.UID]*restartStep
}

// drainLimit bounds the step as a whole: some nodes have hundreds of pods.
const drainLimit = 24 * time.Hour

var (
	_ engine.Timed     = (*drainStep)(nil)
	_ engine.Waiter    = (*drainStep)(nil)
	_ engine.Previewer = (*drainStep)(nil)
	_ engine.Noter     = (*drainStep)(nil)
)

func (s *drainStep) ID() string { return cmp.Or(s.leaving.Name, "drain/"+s.leaving.Node) }
func (s *drainStep) Title() string {
	return cmp.Or(s.leaving.About, "Move pods off node "+s.leaving.Node)
}

func (s *drainStep) Deadline() time.Duration { return drainLimit }

func (s *drainStep) Role() engine.StepRole { return engine.RoleMove }

func (s *drainStep) Note() string {
	var all []string
	if s.note != "" {
		all = append(all, s.note)
	}
	for _, r := range s.singles {
		if note := r.Note(); note != "" {
			all = append(all, note)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// Waits implements engine.Waiter: a drain may take hours. It writes, all the same: see Preview.
func (s *drainStep) Waits() {}

// Preview names no pods: a plan must not change with every pod that starts or ends.
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

// follow evicts pods as soon as they can go, until none is left or it is time to report.
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

func (s *drainStep) sendAll(ctx context.Context, left []*corev1.Pod) (waits, err error) {
	if err := s.arrived(ctx); err != nil {
		return nil, err
	}
	asked := map[types.UID]bool{}
	for _, p := range left {
		err := s.paced(ctx, p, asked)
		switch {
		case err != nil && !engine.Retryable(err):
			return nil, err
		case waits == nil:
			waits = err
		}
	}
	return waits, nil
}

func (s *drainStep) standstill(left int) time.Duration {
	if s.since.IsZero() || left != s.seen {
		s.seen, s.since = left, s.now()
	}
	return s.now().Sub(s.since)
}

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

func (s *drainStep) Verify(ctx context.Context) error {
	left, err := s.left(ctx)
	if err == nil && len(left) > 0 {
		return engine.NotYet("pod %s/%s is on node %s", left[0].Namespace, left[0].Name, s.leaving.Node)
	}
	return err
}

// left are the pods that have to go, ending ones included; overdue ones only with a live kubelet.
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
	return ref == nil || ref.Kind != KindDaemonSet || !workload.Tolerates(p.Spec.Tolerations, &s.leaving.Taint)
}
