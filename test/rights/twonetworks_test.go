package rights

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
)

// The ranges of pods before a switch in place, and after it.
const before, after = "10.244.0.0/16", "10.245.0.0/16"

// twoNetworks plays nodes that have two networks. New pods get addresses of the one that the node was last told to give them; and Cilium's
// agents find, when they start, whether they are to do the work of kube-proxy.
type twoNetworks struct {
	*fakekubelet.Blocks

	mu sync.Mutex
	// switched are nodes that prefer the new network, and replaced those whose agent of Cilium does the work of kube-proxy.
	switched, replaced map[string]bool
}

// beginWithTwo makes the scene of a switch in place.
func beginWithTwo(s *scene, migration string) {
	s.Helper()
	n := &twoNetworks{Blocks: &fakekubelet.Blocks{Client: s}, switched: map[string]bool{}, replaced: map[string]bool{}}
	s.play(n, n.message)
	s.furnish()
	s.start("networks", migration)
}

func (n *twoNetworks) Take(ctx context.Context, pools []calico.Pool, u fakekubelet.User) (netip.Addr, error) {
	n.mu.Lock()
	within := netip.MustParsePrefix(before)
	if n.switched[u.Node] {
		within = netip.MustParsePrefix(after)
	}
	n.mu.Unlock()
	pools = slices.DeleteFunc(slices.Clone(pools), func(p calico.Pool) bool { return !within.Contains(p.CIDR.Addr()) })
	return n.Blocks.Take(ctx, pools, u)
}

// message is what a pod says that has ended; a pod that has something to do on its node has done it by then.
func (n *twoNetworks) message(pod *corev1.Pod) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	node := pod.Spec.NodeName
	switch pod.Labels[onNode] {
	case "prefer":
		n.switched[node] = true
	case "unprefer":
		n.switched[node] = false
	case "cilium":
		return marshalled(&nodecleanup.TracesReport{Found: []string{nodecleanup.Replaces(n.replaced[node])}})
	}
	if pod.Labels["app"] == "cilium" {
		n.replaced[node] = n.marked(node)
	}
	return message(pod)
}

// marked reports whether a node has its agent of Cilium do the work of kube-proxy.
func (n *twoNetworks) marked(node string) bool {
	o := &corev1.Node{}
	err := n.Client.Get(context.Background(), client.ObjectKey{Name: node}, o)
	return err == nil && o.Labels[v1alpha1.LabelKubeProxy] != ""
}
