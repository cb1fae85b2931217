package noderanges

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// node is one that moves: what its steps have in common.
type node struct {
	cluster   *cluster.Cluster
	migration string
	name      string
	// ranges are those it is to have.
	ranges []string
	// watched says that agents are on nodes: the one that others call leaves with the pods.
	watched bool
}

// read is the Node as it is now; nil, if it is gone.
func (n node) read(ctx context.Context) (*corev1.Node, error) {
	found := &corev1.Node{}
	err := n.cluster.Get(ctx, client.ObjectKey{Name: n.name}, found)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.name, err)
	}
	return found, nil
}

// changeNode patches a Node that was read. It carries the version, since taints are a list.
func changeNode(ctx context.Context, c *cluster.Cluster, n *corev1.Node, change func(*corev1.Node)) error {
	was := n.DeepCopy()
	change(n)
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, n, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	return nil
}

// pods on the node.
func (n node) pods(ctx context.Context) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := n.cluster.List(ctx, all, client.MatchingFields{"spec.nodeName": n.name}); err != nil {
		return nil, fmt.Errorf("pods of node %s: %w", n.name, err)
	}
	return all.Items, nil
}

// cordon keeps new pods away from a node: by spec.unschedulable those that tolerate no taint, by a taint those of DaemonSets too, which
// pass over the former. Agents, which tolerate everything, go by a label. A Node that is gone is saved as it was: with everything.
func (n node) cordon() engine.Step {
	read := func(ctx context.Context) (*corev1.Node, error) {
		found, err := n.read(ctx)
		if err != nil || found == nil {
			return nil, err
		}
		if !found.Spec.Unschedulable || !slices.ContainsFunc(found.Spec.Taints, moving) ||
			n.watched && found.Labels[v1alpha1.LabelAgents] == "" {
			return found, engine.NotYet("node %s takes new pods", n.name)
		}
		return found, nil
	}
	return &engine.Observed[*corev1.Node]{
		Name: "cordon/" + n.name, About: "Keep new pods away from node " + n.name,
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, found *corev1.Node) error { return changeNode(ctx, n.cluster, found, n.mark) },
		Changes: func() ([]engine.Change, error) {
			body := map[string]any{"spec": map[string]any{"unschedulable": true, "taints": []corev1.Taint{movingTaint(n.migration)}}}
			if n.watched {
				body["metadata"] = map[string]any{"labels": map[string]string{v1alpha1.LabelAgents: v1alpha1.HostAgent}}
			}
			return []engine.Change{{Verb: "patch", Object: "Node " + n.name, Body: body}}, nil
		},
	}
}

func (n node) mark(found *corev1.Node) {
	if !found.Spec.Unschedulable {
		metav1.SetMetaDataAnnotation(&found.ObjectMeta, v1alpha1.AnnotationCordoned, n.migration)
		found.Spec.Unschedulable = true
	}
	if !slices.ContainsFunc(found.Spec.Taints, moving) {
		found.Spec.Taints = append(found.Spec.Taints, movingTaint(n.migration))
	}
	if n.watched && found.Labels[v1alpha1.LabelAgents] == "" {
		metav1.SetMetaDataLabel(&found.ObjectMeta, v1alpha1.LabelAgents, v1alpha1.HostAgent)
	}
}

// uncordon lets pods onto a node again, unless they were kept away before by others.
func (n node) uncordon() engine.Step {
	read := func(ctx context.Context) (*corev1.Node, error) {
		found, err := n.read(ctx)
		if err != nil || found == nil {
			return nil, err
		}
		if closed(found) {
			return found, engine.NotYet("node %s takes no pods", n.name)
		}
		return found, nil
	}
	return &engine.Observed[*corev1.Node]{
		Name: "uncordon/" + n.name, About: "Let pods onto node " + n.name + " again",
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, found *corev1.Node) error { return changeNode(ctx, n.cluster, found, unmark) },
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "patch", Object: "Node " + n.name, Body: map[string]any{"spec": map[string]any{
				"unschedulable": "as before", "taints": "without " + v1alpha1.TaintMoving,
			}}}}, nil
		},
	}
}

func unmark(found *corev1.Node) {
	if found.Annotations[v1alpha1.AnnotationCordoned] != "" {
		delete(found.Annotations, v1alpha1.AnnotationCordoned)
		found.Spec.Unschedulable = false
	}
	found.Spec.Taints = slices.DeleteFunc(found.Spec.Taints, moving)
	delete(found.Labels, v1alpha1.LabelAgents)
	delete(found.Labels, v1alpha1.LabelAgentsBefore)
}

// recreate deletes a Node and makes it again with its next ranges, which a Node cannot be given otherwise.
func (n node) recreate() engine.Step {
	nodes, ranges := saved(n.cluster, n.migration), strings.Join(n.ranges, ",")
	return &engine.Write{
		Name: "switch/" + n.name, About: fmt.Sprintf("Recreate Node %s with the range %s", n.name, ranges), As: engine.RoleMove,
		Holds: func(ctx context.Context) error {
			settled, err := nodes.Settled(ctx, n.name, n.ranges)
			if err == nil && !settled {
				return engine.NotYet("node %s has not the range %s", n.name, ranges)
			}
			return err
		},
		Write:   func(ctx context.Context) error { return nodes.Recreate(ctx, n.name, n.ranges) },
		Changes: func() ([]engine.Change, error) { return nodes.Preview(n.name, n.ranges), nil },
	}
}

// networkAgents are DaemonSets of pod networks that read the range of their node, by the names that their manifests give them:
// flannel-io/flannel Documentation/kube-flannel.yml, kubernetes-sigs/kind images/kindnetd, cloudnativelabs/kube-router
// daemonset/*.yaml. flannel does so when it starts, and at no other time (pkg/subnet/kube).
func networkAgents() []string {
	return []string{"kube-flannel-ds", "kube-flannel", "kindnet", "kube-router"}
}

func isNetworkAgent(named []types.NamespacedName, namespace, name string) bool {
	return slices.Contains(named, types.NamespacedName{Namespace: namespace, Name: name}) ||
		(namespace == metav1.NamespaceSystem || namespace == "kube-flannel") && slices.Contains(networkAgents(), name)
}

// restartAgents restarts what on a node has to learn the range again. Whatever is younger than the Node has. named are further DaemonSets.
func (n node) restartAgents(named []types.NamespacedName) engine.Step {
	var ended map[types.UID]bool // by this step; nil before
	read := func(ctx context.Context) ([]corev1.Pod, error) { return n.oldAgents(ctx, named, ended) }
	return &engine.Observed[[]corev1.Pod]{
		Name: "agent/" + n.name, About: "Let the pod network of node " + n.name + " learn its range",
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, old []corev1.Pod) error {
			ended = map[types.UID]bool{}
			for i := range old {
				p := &old[i]
				ended[p.UID] = true
				err := n.cluster.Delete(ctx, p, client.Preconditions{UID: &p.UID})
				if client.IgnoreNotFound(err) != nil {
					return fmt.Errorf("restarting pod %s/%s: %w", p.Namespace, p.Name, err)
				}
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "delete", Object: "Pod */* of the pod network on node " + n.name}}, nil
		},
	}
}

// oldAgents are those that were started before the Node was made. It fails as long as there are any, or one is not ready.
func (n node) oldAgents(ctx context.Context, named []types.NamespacedName, ended map[types.UID]bool) (old []corev1.Pod, err error) {
	found, err := n.read(ctx)
	if err != nil || found == nil {
		return nil, err
	}
	pods, err := n.pods(ctx)
	if err != nil {
		return nil, err
	}
	var unready *corev1.Pod
	for i := range pods {
		p := &pods[i]
		ref := metav1.GetControllerOf(p)
		switch {
		case ref == nil || ref.Kind != rollout.KindDaemonSet || !isNetworkAgent(named, p.Namespace, ref.Name):
		case startedBefore(p, found, ended):
			old = append(old, *p)
		case !connectivity.Ready(p):
			unready = p
		}
	}
	switch {
	case len(old) > 0:
		return old, engine.NotYet("pod %s/%s was started before Node %s had its range", old[0].Namespace, old[0].Name, n.name)
	case unready != nil:
		return nil, engine.NotYet("pod %s/%s is not ready: %s", unready.Namespace, unready.Name, connectivity.Why(unready))
	}
	return nil, nil
}

// startedBefore reports whether a pod is older than its Node. Times of objects are of whole seconds: what has the Node's own may be, unless
// it came after those that were ended. ended is nil before any was.
func startedBefore(p *corev1.Pod, n *corev1.Node, ended map[types.UID]bool) bool {
	if p.CreationTimestamp.Equal(&n.CreationTimestamp) {
		return ended == nil || ended[p.UID]
	}
	return p.CreationTimestamp.Before(&n.CreationTimestamp)
}
