package noderanges

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/cordon"
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

// pods on the node.
func (n node) pods(ctx context.Context) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := n.cluster.List(ctx, all, client.MatchingFields{"spec.nodeName": n.name}); err != nil {
		return nil, fmt.Errorf("pods of node %s: %w", n.name, err)
	}
	return all.Items, nil
}

// cordon keeps new pods away from the node, and lets them back.
func (n node) cordon() cordon.Node {
	return cordon.Node{Client: n.cluster, Migration: n.migration, Name: n.name, Watched: n.watched}
}

// recreate deletes a Node and makes it again with its next ranges, which a Node cannot be given otherwise.
func (n node) recreate() engine.Step {
	nodes, ranges := saved(n.cluster, n.migration), strings.Join(n.ranges, ",")
	return &engine.Write{
		Name: "switch/" + n.name, About: fmt.Sprintf("Recreate Node %s with the range %s", n.name, ranges), As: engine.RoleMove,
		Holds: func(ctx context.Context) error {
			settled, err := nodes.Recreated(ctx, n.name, n.ranges)
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
	found, err := cordon.Read(ctx, n.cluster, n.name)
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
