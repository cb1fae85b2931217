package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/inventory"
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

func leavingTaint(migration string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: v1alpha1.TaintLeaving, Value: migration, Effect: effect}
}

// nodeStep changes a Node until it lacks nothing. One that is gone lacks nothing.
func (l live) nodeStep(id, about, name string, lacks func(*corev1.Node) string, change func(*corev1.Node), body map[string]any) *engine.Write {
	return &engine.Write{
		Name: id, About: about,
		Holds: func(ctx context.Context) error {
			n, err := cordon.Read(ctx, l.Cluster, name)
			if err != nil || n == nil {
				return err
			}
			if missing := lacks(n); missing != "" {
				return engine.NotYet("node %s %s", name, missing)
			}
			return nil
		},
		Write:   func(ctx context.Context) error { return l.patchNode(ctx, name, change) },
		Changes: engine.Shows(engine.Change{Verb: "patch", Object: "Node " + name, Body: body}),
	}
}

// closeNode keeps new pods off a node: all, or those with a choice; without spec.unschedulable.
func (l live) closeNode(name string, effect corev1.TaintEffect) engine.Step {
	taint := leavingTaint(l.spec.Name, effect)
	id, about := "close/"+name, "Keep new pods off node "+name
	if effect == corev1.TaintEffectPreferNoSchedule {
		id, about = "taint/"+name, "Prefer other nodes to "+name
	}
	return l.nodeStep(id, about, name, func(n *corev1.Node) string {
		// A node that takes no pod at all is closed enough for those that have a choice.
		if t := taintOf(n); t == nil || t.Effect != effect && t.Effect != corev1.TaintEffectNoSchedule {
			return "takes new pods"
		}
		return ""
	}, func(n *corev1.Node) {
		n.Spec.Taints = append(slices.DeleteFunc(n.Spec.Taints, isOurs), taint)
	}, map[string]any{"spec": map[string]any{"taints": []corev1.Taint{taint}}})
}

func (l live) openNode(name string) engine.Step {
	return l.nodeStep("open/"+name, "Let pods onto node "+name+" again", name, func(n *corev1.Node) string {
		if taintOf(n) != nil || n.Annotations[v1alpha1.AnnotationDrainedSince] != "" {
			return "has the taint " + v1alpha1.TaintLeaving
		}
		return ""
	}, func(n *corev1.Node) {
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, isOurs)
		delete(n.Annotations, v1alpha1.AnnotationDrainedSince)
	}, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationDrainedSince: nil}},
		"spec":     map[string]any{"taints": "without " + v1alpha1.TaintLeaving},
	})
}

// markDrained notes on a Node when its drain began: later pods replace those that left.
func (l live) markDrained(name string) engine.Step {
	s := l.nodeStep("since/"+name, "Record when the drain of node "+name+" began", name, func(n *corev1.Node) string {
		if n.Annotations[v1alpha1.AnnotationDrainedSince] == "" {
			return "has no annotation " + v1alpha1.AnnotationDrainedSince
		}
		return ""
	}, func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.AnnotationDrainedSince, l.Now().UTC().Format(time.RFC3339))
	}, map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationDrainedSince: "the time then"}}})
	s.As = engine.RoleOwn
	return s
}

func (l live) patchNode(ctx context.Context, name string, change func(*corev1.Node)) error {
	n, err := cordon.Read(ctx, l.Cluster, name)
	if err != nil || n == nil {
		return err
	}
	return cordon.Patch(ctx, l.Cluster, n, change)
}

// drainer empties nodes. Those of one plan share their turns and lists of pods.
type drainer struct {
	live
	turns *rollout.Turns
	looks singleflight.Group
}

func newDrainer(l live) *drainer { return &drainer{live: l, turns: rollout.NewTurns(l.Cluster)} }

func (d *drainer) empty(name string) []engine.Step {
	return []engine.Step{d.closeNode(name, corev1.TaintEffectNoSchedule), d.markDrained(name), d.drain(name), d.settled(name)}
}

func (d *drainer) drain(name string) engine.Step { return d.send(d.leaving(name)) }

func (d *drainer) send(l rollout.Leaving) engine.Step {
	return rollout.Deps{Client: d.Client(), Timeout: d.spec.Drain.Timeout.Duration, Now: d.Now}.Drain(l)
}

func (d *drainer) leaving(name string) rollout.Leaving {
	leaving := rollout.Leaving{
		Node: name, Taint: leavingTaint(d.spec.Name, corev1.TaintEffectNoSchedule),
		Bare: d.spec.Drain.BarePods, Patience: d.spec.Drain.JobWait.Duration, Hosts: true, Turns: d.turns,
		Stays: func(pod *corev1.Pod) bool { return !leaves(pod) },
	}
	if len(d.spec.Force) > 0 {
		leaving.Forced = func(pod *corev1.Pod) bool { return slices.Contains(d.spec.Force, client.ObjectKeyFromObject(pod)) }
	}
	return leaving
}

// settled waits until replacements are ready and volumes are detached.
func (d *drainer) settled(name string) engine.Step {
	return &engine.Wait{
		Name: "settled/" + name, About: "Wait until what left node " + name + " is ready elsewhere", Limit: d.spec.Drain.Timeout.Duration,
		For: func(ctx context.Context) error {
			n, err := cordon.Read(ctx, d.Cluster, name)
			if err != nil || n == nil {
				return err
			}
			since, err := time.Parse(time.RFC3339, n.Annotations[v1alpha1.AnnotationDrainedSince])
			if err != nil {
				return fmt.Errorf("node %s: annotation %s: %w", name, v1alpha1.AnnotationDrainedSince, err)
			}
			if err := d.detached(ctx, name); err != nil {
				return err
			}
			return d.replaced(ctx, name, since)
		},
	}
}

// allPods shares one list among all that wait for one.
func (d *drainer) allPods(ctx context.Context) ([]corev1.Pod, error) {
	got, err, _ := d.looks.Do("pods", func() (any, error) {
		return cluster.List[corev1.Pod](ctx, d.Cluster, &corev1.PodList{})
	})
	if err != nil {
		return nil, err
	}
	return got.([]corev1.Pod), nil
}

// replaced checks every pod created since, except those that wait for the drained nodes.
func (d *drainer) replaced(ctx context.Context, name string, since time.Time) error {
	pods, err := d.allPods(ctx)
	if err != nil {
		return err
	}
	for i := range pods {
		p := &pods[i]
		kind := controllerOf(p)
		switch {
		case p.CreationTimestamp.Time.Before(since), !leaves(p), kind == "", kind == "Job", readyPod(p), !p.DeletionTimestamp.IsZero():
			continue
		case spreadOverClosed(p) && accompanied(p, pods):
			continue
		}
		return engine.NotYet("pod %s/%s, which was created since the drain of node %s began, is not ready: %s",
			p.Namespace, p.Name, name, whyPodNotReady(p))
	}
	return nil
}

// spreadOverClosed reports whether topology spread over tainted nodes keeps a pod pending
// (k8s.io/kubernetes pkg/scheduler/framework/plugins/podtopologyspread,
// ErrReasonConstraintsNotMatch).
func spreadOverClosed(p *corev1.Pod) bool {
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
func (l live) detached(ctx context.Context, name string) error {
	all, err := cluster.List[storagev1.VolumeAttachment](ctx, l.Cluster, &storagev1.VolumeAttachmentList{})
	if err != nil {
		return err
	}
	stay, err := l.staying(ctx, name)
	if err != nil {
		return err
	}
	for i := range all {
		a := &all[i]
		volume := a.Spec.Source.PersistentVolumeName
		if a.Spec.NodeName == name && volume != nil && !stay[*volume] {
			return engine.NotYet("volume %s is still attached to node %s", *volume, name)
		}
	}
	return nil
}

// staying are the volumes of pods that end with the node.
func (l live) staying(ctx context.Context, name string) (map[string]bool, error) {
	pods, err := l.pods(ctx, name)
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
			if err := l.Cluster.Get(ctx, key, c); client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("persistentvolumeclaim %s: %w", key, err)
			}
			stay[c.Spec.VolumeName] = true
		}
	}
	return stay, nil
}

func (l live) terminate(n *OldNode) engine.Step {
	status := v1alpha1.NodeStatus{Name: n.Name, Role: v1alpha1.RoleWorker}
	if n.Node != nil {
		status = statusOf(n.Node, v1alpha1.RoleWorker)
	}
	action, name := l.spec.Terminate.Action, n.Name
	request := l.request(actionTerminate)
	request.Node = &status
	return outside{
		id:      "terminate/" + name,
		title:   "Terminate node " + name,
		wait:    l.spec.GateWait,
		action:  action,
		request: request,
		guide: fmt.Sprintf(
			"Node %s is empty. Terminate its machine, or delete its Node: kubectl delete node %s. replumb goes on by itself.",
			name,
			name,
		),
		before: l.record().ended(status),
		after:  l.deleteNode(name, action != nil),
		done:   func(ctx context.Context) error { return l.deleted(ctx, name) },
	}.step()
}

func (l live) deleted(ctx context.Context, name string) error {
	n, err := cordon.Read(ctx, l.Cluster, name)
	if err == nil && n != nil {
		return engine.NotYet("node %s is still there", name)
	}
	return err
}

// deleteNode deletes the Node of an ended machine: if certain at once, else when kubelet is silent.
func (l live) deleteNode(name string, certain bool) effect {
	return effect{
		do: func(ctx context.Context) error {
			n, err := cordon.Read(ctx, l.Cluster, name)
			if err != nil || n == nil || !certain && inventory.NodeReady(n) {
				return err
			}
			if err := l.Cluster.Delete(ctx, n, client.Preconditions{UID: &n.UID}); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("node %s: %w", name, err)
			}
			return nil
		},
		changes: func() ([]engine.Change, error) { return []engine.Change{{Verb: "delete", Object: "Node " + name}}, nil },
	}
}

func whyPodNotReady(p *corev1.Pod) string {
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

func (l live) oldNodesEmpty() engine.Step {
	return &engine.Wait{
		Name: "verify/empty", About: "Verify that old nodes have no pods", Again: true,
		For: func(ctx context.Context) error {
			now, err := loader{l}.load(ctx)
			if err != nil {
				return err
			}
			for _, n := range now.OldNodes() {
				switch stage := n.Stage(); {
				case stage != StageServing && stage != StageClosed:
				case len(n.Pods) > 0:
					return engine.NotYet("node %s still has pod %s/%s", n.Name, n.Pods[0].Namespace, n.Pods[0].Name)
				default:
					return engine.NotYet("node %s takes new pods", n.Name)
				}
			}
			return nil
		},
	}
}
