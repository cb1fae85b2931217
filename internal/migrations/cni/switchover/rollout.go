package switchover

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/daemonset"
	"github.com/replumb/replumb/internal/network/podnetwork"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// networkRollout is the DaemonSets of a network coming to every node.
type networkRollout struct {
	deps    Deps
	network v1alpha1.CNIName
	sets    []client.ObjectKey
}

// AwaitRollout waits until the DaemonSets of a network are ready on every node, and so are the
// nodes.
func AwaitRollout(deps Deps, id string, network v1alpha1.CNIName, sets []client.ObjectKey) engine.Step {
	r := networkRollout{deps: deps, network: network, sets: sets}
	return &engine.Wait{Name: id, About: fmt.Sprintf("Wait for %s on every node", network), Limit: daemonset.RolloutTime, For: r.complete}
}

// AwaitMarked waits until the DaemonSets of a network are ready on every marked node, and the nodes
// of a round take pods.
func AwaitMarked(deps Deps, id, about string, network v1alpha1.CNIName, sets []client.ObjectKey, round []string) engine.Step {
	r := networkRollout{deps: deps, network: network, sets: sets}
	return &engine.Wait{Name: id, About: about, Limit: daemonset.RolloutTime, For: func(ctx context.Context) error { return r.onMarked(ctx, round) }}
}

// SetReady returns nil once a DaemonSet of replumb's own is ready wherever it runs.
func SetReady(ctx context.Context, deps Deps, ds *appsv1.DaemonSet) error {
	return networkRollout{deps: deps}.ready(ctx, ds, 0)
}

func (s networkRollout) complete(ctx context.Context) error {
	nodes, err := cluster.List[corev1.Node](ctx, s.deps.Cluster, &corev1.NodeList{})
	if err != nil {
		return err
	}
	if err := s.setsReady(ctx, len(nodes)); err != nil {
		return err
	}
	return allFit(nodes)
}

// onMarked is complete for the marked nodes. Only those of a round are asked whether they take
// pods.
func (s networkRollout) onMarked(ctx context.Context, round []string) error {
	nodes, err := cluster.List[corev1.Node](ctx, s.deps.Cluster, &corev1.NodeList{})
	if err != nil {
		return err
	}
	marked := slices.DeleteFunc(nodes, func(n corev1.Node) bool { return n.Labels[v1alpha1.LabelBeside] == "" })
	if err := s.setsReady(ctx, len(marked)); err != nil {
		return err
	}
	return allFit(slices.DeleteFunc(marked, func(n corev1.Node) bool { return !slices.Contains(round, n.Name) }))
}

func (s networkRollout) setsReady(ctx context.Context, nodes int) error {
	for _, key := range s.sets {
		ds, err := daemonset.Find(ctx, s.deps.Cluster, key)
		if err != nil {
			return err
		}
		if ds == nil {
			return engine.NotYet("DaemonSet %s does not exist", key)
		}
		if err := s.ready(ctx, ds, nodes); err != nil {
			return err
		}
	}
	return nil
}

// allFit says which of the nodes takes no pods that need a network.
func allFit(nodes []corev1.Node) error {
	for i := range nodes {
		if why := Unfit(&nodes[i]); why != "" {
			return engine.NotYet("node %s: %s", nodes[i].Name, why)
		}
	}
	return nil
}

func (s networkRollout) ready(ctx context.Context, ds *appsv1.DaemonSet, nodes int) error {
	st := &ds.Status
	name := ds.Namespace + "/" + ds.Name
	switch everywhere := podnetwork.Of(ds) == s.network; {
	case st.ObservedGeneration < ds.Generation:
		return engine.NotYet("DaemonSet %s has not been looked at yet", name)
	case everywhere && int(st.DesiredNumberScheduled) < nodes:
		return engine.NotYet("DaemonSet %s is for %d of %d nodes", name, st.DesiredNumberScheduled, nodes)
	case st.NumberReady < st.DesiredNumberScheduled || daemonset.Updating(ds):
		return engine.NotYet("DaemonSet %s is ready on %d of %d nodes%s", name, st.NumberReady, st.DesiredNumberScheduled, s.why(ctx, ds))
	}
	return nil
}

func (s networkRollout) why(ctx context.Context, ds *appsv1.DaemonSet) string {
	pods := &corev1.PodList{}
	selector, err := metav1.LabelSelectorAsSelector(ds.Spec.Selector)
	if err != nil ||
		s.deps.Cluster.List(ctx, pods, client.InNamespace(ds.Namespace), client.MatchingLabelsSelector{Selector: selector}) != nil {
		return ""
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; !connectivity.Ready(p) {
			return fmt.Sprintf("; pod %s on node %s: %s", p.Name, p.Spec.NodeName, connectivity.Why(p))
		}
	}
	return ""
}

// Unfit says why a node takes no pods that need a network.
func Unfit(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
			return "its network is unavailable: " + strings.TrimSpace(c.Reason+" "+c.Message)
		}
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return "it is not ready: " + strings.TrimSpace(c.Reason+" "+c.Message)
		}
	}
	return ""
}
