package noderanges

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

type node struct {
	cluster   *cluster.Cluster
	migration string
	name      string
	ranges    []string
	watched   bool
	// former is the range that it leaves, and agents are the DaemonSets of Cilium.
	former netip.Prefix
	agents []client.ObjectKey
	// pool is that of Cilium of which its ranges are, and left are all that pods leave; empty
	// unless nodes have ranges of pools. holds says that the node keeps its former address
	// meanwhile.
	pool  string
	left  []netip.Prefix
	holds bool
	// goBack, if set, is what steps do where they fail. wait is how long agents may take to start;
	// zero is agentTime.
	goBack func(failed error) ([]engine.Step, error)
	wait   time.Duration
}

func (n node) patience() time.Duration { return cmp.Or(n.wait, agentTime) }

// away reports whether a pod has an address outside of the node's ranges.
func (n node) away(pod *corev1.Pod) bool {
	if n.pool != "" { // of which the node can have further ranges, and pods those of others
		return slices.ContainsFunc(calico.PodAddresses(pod), func(a netip.Addr) bool { return podmove.Within(n.left, a) })
	}
	home := nodeipam.Range(n.ranges)
	return slices.ContainsFunc(calico.PodAddresses(pod), func(a netip.Addr) bool { return a.Is4() && !home.Contains(a) })
}

func (n node) pods(ctx context.Context) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := n.cluster.List(ctx, all, client.MatchingFields{"spec.nodeName": n.name}); err != nil {
		return nil, fmt.Errorf("pods of node %s: %w", n.name, err)
	}
	return all.Items, nil
}

func (n node) cordon() cordon.Node {
	return cordon.Node{Client: n.cluster, Migration: n.migration, Name: n.name, Watched: n.watched}
}

// recreate deletes a Node and makes it again with its next ranges, which are immutable.
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

// networkAgents are DaemonSets that read the range of their node at their start (flannel:
// pkg/subnet/kube; Cilium with ipam: kubernetes: pkg/node/sync), by the names in
// flannel-io/flannel Documentation/kube-flannel.yml, kubernetes-sigs/kind images/kindnetd,
// cloudnativelabs/kube-router daemonset/*.yaml and cilium/cilium install/kubernetes/cilium.
func networkAgents() []string {
	return []string{"kube-flannel-ds", "kube-flannel", "kindnet", "kube-router", "cilium"}
}

func isNetworkAgent(named []types.NamespacedName, namespace, name string) bool {
	return slices.Contains(named, types.NamespacedName{Namespace: namespace, Name: name}) ||
		(namespace == metav1.NamespaceSystem || namespace == "kube-flannel") && slices.Contains(networkAgents(), name)
}

// restartAgents restarts pods of the network on a node that are older than the Node.
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
		Changes: engine.Shows(engine.Change{Verb: "delete", Object: "Pod */* of the pod network on node " + n.name}),
	}
}

// oldAgents are older than the Node. It fails while there are any, or one is not ready.
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

// startedBefore reports whether a pod is older than its Node. In the same second it is, unless
// others were ended before.
func startedBefore(p *corev1.Pod, n *corev1.Node, ended map[types.UID]bool) bool {
	if p.CreationTimestamp.Equal(&n.CreationTimestamp) {
		return ended == nil || ended[p.UID]
	}
	return p.CreationTimestamp.Before(&n.CreationTimestamp)
}
