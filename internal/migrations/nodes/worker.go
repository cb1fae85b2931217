package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/migration"
)

// taintOf is replumb's own on a node; nil, if there is none.
func taintOf(n *corev1.Node) *corev1.Taint {
	i := slices.IndexFunc(n.Spec.Taints, isOurs)
	if i < 0 {
		return nil
	}
	return &n.Spec.Taints[i]
}

func isOurs(t corev1.Taint) bool { return t.Key == v1alpha1.TaintLeaving }

// nodeStep is what the steps of one node have in common.
type nodeStep struct {
	tools Tools
	spec  Spec
	name  string
}

// change patches the Node, if there is one. It carries the version, since taints are a list.
func (s *nodeStep) change(ctx context.Context, change func(*corev1.Node)) error {
	n, err := s.tools.node(ctx, s.name)
	if err != nil || n == nil {
		return err
	}
	was := n.DeepCopy()
	change(n)
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := s.tools.Cluster.Patch(ctx, n, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	return nil
}

func (s *nodeStep) taint(effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: v1alpha1.TaintLeaving, Value: s.spec.Name, Effect: effect}
}

// closeStep keeps new pods off a node: all of them, or those that have a choice. It does not make the node unschedulable: whoever did
// that, or undoes it, has reasons of their own.
type closeStep struct {
	nodeStep
	effect corev1.TaintEffect
}

func (s *closeStep) ID() string {
	if s.effect == corev1.TaintEffectPreferNoSchedule {
		return "taint/" + s.name
	}
	return "close/" + s.name
}

func (s *closeStep) Title() string {
	if s.effect == corev1.TaintEffectPreferNoSchedule {
		return "Prefer other nodes to " + s.name
	}
	return "Keep new pods off node " + s.name
}

func (s *closeStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *closeStep) Do(ctx context.Context) error {
	return s.change(ctx, func(n *corev1.Node) {
		n.Spec.Taints = append(slices.DeleteFunc(n.Spec.Taints, isOurs), s.taint(s.effect))
	})
}

// Verify implements engine.Step. A node that takes no pod at all is closed enough for those that have a choice.
func (s *closeStep) Verify(ctx context.Context) error {
	n, err := s.tools.node(ctx, s.name)
	if err != nil || n == nil {
		return err
	}
	t := taintOf(n)
	if t == nil || t.Effect != s.effect && t.Effect != corev1.TaintEffectNoSchedule {
		return engine.NotYet("node %s takes new pods", s.name)
	}
	return nil
}

// Preview implements engine.Previewer.
func (s *closeStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "patch", Object: "Node " + s.name, Body: map[string]any{"spec": map[string]any{
		"taints": []corev1.Taint{s.taint(s.effect)},
	}}}}, nil
}

// openStep lets pods onto a node again.
type openStep struct{ nodeStep }

func (s *openStep) ID() string    { return "open/" + s.name }
func (s *openStep) Title() string { return "Let pods onto node " + s.name + " again" }

func (s *openStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *openStep) Do(ctx context.Context) error { return s.change(ctx, unmark) }

func unmark(n *corev1.Node) {
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, isOurs)
	delete(n.Annotations, v1alpha1.AnnotationDrainedSince)
}

func (s *openStep) Verify(ctx context.Context) error {
	n, err := s.tools.node(ctx, s.name)
	if err != nil || n == nil {
		return err
	}
	if taintOf(n) != nil || n.Annotations[v1alpha1.AnnotationDrainedSince] != "" {
		return engine.NotYet("node %s has the taint %s", s.name, v1alpha1.TaintLeaving)
	}
	return nil
}

// Preview implements engine.Previewer.
func (s *openStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "patch", Object: "Node " + s.name, Body: map[string]any{"spec": map[string]any{
		"taints": "without " + v1alpha1.TaintLeaving,
	}}}}, nil
}

// sinceStep writes on a Node when its pods began to leave: what was started from then on stands in for them.
type sinceStep struct{ nodeStep }

func (s *sinceStep) ID() string    { return "since/" + s.name }
func (s *sinceStep) Title() string { return "Note when node " + s.name + " began to be emptied" }

func (s *sinceStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *sinceStep) Do(ctx context.Context) error {
	return s.change(ctx, func(n *corev1.Node) {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[v1alpha1.AnnotationDrainedSince] = s.tools.now().UTC().Format(time.RFC3339)
	})
}

func (s *sinceStep) Verify(ctx context.Context) error {
	n, err := s.tools.node(ctx, s.name)
	if err == nil && n != nil && n.Annotations[v1alpha1.AnnotationDrainedSince] == "" {
		return engine.NotYet("node %s does not say since when it has been emptied", s.name)
	}
	return err
}

// settledStep waits until what stands in for the pods of a node is ready, and what they had attached there is detached.
type settledStep struct {
	nodeStep
	// pods lists all of the cluster, once for all who ask at the same time.
	pods func(context.Context) ([]corev1.Pod, error)
}

func (p *Planner) settled(name string) engine.Step {
	return &settledStep{nodeStep: p.node(name), pods: p.allPods}
}

// allPods shares a list with whoever waits for one: many nodes are looked after at once, and each look is at all pods.
func (p *Planner) allPods(ctx context.Context) ([]corev1.Pod, error) {
	got, err, _ := p.looking.Do("pods", func() (any, error) {
		return cluster.List[corev1.Pod](ctx, p.Tools.Cluster, &corev1.PodList{})
	})
	if err != nil {
		return nil, err
	}
	return got.([]corev1.Pod), nil
}

var _ engine.Waiter = (*settledStep)(nil)

func (s *settledStep) ID() string { return "settled/" + s.name }
func (s *settledStep) Title() string {
	return "See that what left node " + s.name + " is ready elsewhere"
}
func (*settledStep) Waits()                    {}
func (s *settledStep) Deadline() time.Duration { return s.spec.Drain.Timeout.Duration }

func (s *settledStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }
func (*settledStep) Do(context.Context) error                          { return nil }

func (s *settledStep) Verify(ctx context.Context) error {
	n, err := s.tools.node(ctx, s.name)
	if err != nil || n == nil {
		return err
	}
	since, err := time.Parse(time.RFC3339, n.Annotations[v1alpha1.AnnotationDrainedSince])
	if err != nil {
		return fmt.Errorf("node %s: annotation %s: %w", s.name, v1alpha1.AnnotationDrainedSince, err)
	}
	if err := s.detached(ctx); err != nil {
		return err
	}
	return s.replaced(ctx, since)
}

// replaced looks at every pod that was made since. One that was short of something before is not this node's concern, and one
// that is kept waiting by the very nodes that leave starts when they are gone.
func (s *settledStep) replaced(ctx context.Context, since time.Time) error {
	pods, err := s.pods(ctx)
	if err != nil {
		return err
	}
	for i := range pods {
		p := &pods[i]
		kind := controllerOf(p)
		switch {
		case p.CreationTimestamp.Time.Before(since), !leaves(p), kind == "", kind == "Job", readyPod(p), !p.DeletionTimestamp.IsZero():
			continue
		case spreadOverLeavers(p) && accompanied(p, pods):
			continue
		}
		return engine.NotYet(
			"pod %s/%s, which was made since node %s began to be emptied, is not ready: %s",
			p.Namespace,
			p.Name,
			s.name,
			whyPod(p),
		)
	}
	return nil
}

// spreadOverLeavers reports whether a pod waits for nodes to be filled evenly that take no pods: unless nodeTaintsPolicy is Honor, those
// with taints count (k8s.io/kubernetes pkg/scheduler/framework/plugins/podtopologyspread, ErrReasonConstraintsNotMatch).
func spreadOverLeavers(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			strings.Contains(c.Message, "topology spread constraints")
	})
}

// accompanied reports whether another pod of the same owner is ready.
func accompanied(p *corev1.Pod, all []corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(p)
	return slices.ContainsFunc(all, func(o corev1.Pod) bool {
		other := metav1.GetControllerOfNoCopy(&o)
		return other != nil && other.UID == owner.UID && readyPod(&o)
	})
}

// detached looks at the volumes of the node but for those of pods that stay.
func (s *settledStep) detached(ctx context.Context) error {
	all, err := cluster.List[storagev1.VolumeAttachment](ctx, s.tools.Cluster, &storagev1.VolumeAttachmentList{})
	if err != nil {
		return err
	}
	stay, err := s.staying(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		a := &all[i]
		volume := a.Spec.Source.PersistentVolumeName
		if a.Spec.NodeName == s.name && volume != nil && !stay[*volume] {
			return engine.NotYet("volume %s is still attached to node %s", *volume, s.name)
		}
	}
	return nil
}

// staying are the volumes of pods that end with the node.
func (s *settledStep) staying(ctx context.Context) (map[string]bool, error) {
	pods, err := s.tools.pods(ctx, s.name)
	if err != nil {
		return nil, err
	}
	stay := map[string]bool{}
	for i := range pods {
		for n := range pods[i].Spec.Volumes {
			claim := pods[i].Spec.Volumes[n].PersistentVolumeClaim
			if claim == nil {
				continue
			}
			c := &corev1.PersistentVolumeClaim{}
			key := types.NamespacedName{Namespace: pods[i].Namespace, Name: claim.ClaimName}
			if err := s.tools.Cluster.Get(ctx, key, c); client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("persistentvolumeclaim %s: %w", key, err)
			}
			stay[c.Spec.VolumeName] = true
		}
	}
	return stay, nil
}

// drain makes pods leave a node.
func (p *Planner) drain(name string) engine.Step {
	tools := rollout.Tools{Client: p.Tools.client(), Timeout: p.spec().Drain.Timeout.Duration, Now: p.Tools.Now}
	return tools.Drain(rollout.Leaving{
		Node: name, Taint: corev1.Taint{Key: v1alpha1.TaintLeaving, Value: p.spec().Name, Effect: corev1.TaintEffectNoSchedule},
		Bare: p.spec().Drain.BarePods, Patience: p.spec().Drain.JobWait.Duration, Hosts: true, Turns: p.turns,
		Stays: func(pod *corev1.Pod) bool { return !leaves(pod) },
		Forced: func(pod *corev1.Pod) bool {
			return slices.Contains(p.spec().Force, client.ObjectKeyFromObject(pod))
		},
	})
}

// terminate ends a node's machine, and its Node.
func (p *Planner) terminate(l *Leaver) engine.Step {
	status := v1alpha1.NodeStatus{Name: l.Name, Role: v1alpha1.RoleWorker}
	if l.Node != nil {
		status = statusOf(l.Node, v1alpha1.RoleWorker)
	}
	return &outside{
		id:     "terminate/" + l.Name,
		title:  "End node " + l.Name,
		wait:   p.spec().GateWait,
		action: p.spec().Terminate.Action,
		guide: fmt.Sprintf(
			"Node %s is empty. End its machine, or delete its Node: kubectl delete node %s. replumb goes on by itself.",
			l.Name,
			l.Name,
		),
		request: p.request(actionTerminate, func(r *Request) { r.Node = &status }),
		before:  func(ctx context.Context) error { return p.Tools.noteEnd(ctx, p.spec().Name, status) },
		after:   func(ctx context.Context) error { return p.Tools.bury(ctx, l.Name, p.spec().Terminate.Action != nil) },
		done:    func(ctx context.Context) error { return p.Tools.gone(ctx, l.Name) },
	}
}

// noteEnd writes down that a node is about to end.
func (t Tools) noteEnd(ctx context.Context, name string, node v1alpha1.NodeStatus) error {
	return migration.UpdateStatus(ctx, t.Cluster, name, func(st *v1alpha1.MigrationStatus) {
		if remembered(st.Nodes, node.Name) == nil {
			st.Nodes = append(st.Nodes, node)
		}
		remembered(st.Nodes, node.Name).Ended = true
	})
}

// gone says whether a Node is.
func (t Tools) gone(ctx context.Context, name string) error {
	n, err := t.node(ctx, name)
	if err == nil && n != nil {
		return engine.NotYet("node %s is still there", name)
	}
	return err
}

// bury deletes the Node of a machine that has ended: because whoever ended it says so, or since its kubelet no longer reports.
func (t Tools) bury(ctx context.Context, name string, certain bool) error {
	n, err := t.node(ctx, name)
	if err != nil || n == nil || !certain && cluster.NodeReady(n) {
		return err
	}
	if err := t.Cluster.Delete(ctx, n, client.Preconditions{UID: &n.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	return nil
}

// whyPod says what a pod waits for.
func whyPod(p *corev1.Pod) string {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "" {
			return w.Reason + " " + w.Message
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Reason + " " + c.Message
		}
	}
	return string(p.Status.Phase)
}
