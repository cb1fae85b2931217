package cni

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/podnetwork"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// rolloutTime is how long images may take to come to every node.
const rolloutTime = 15 * time.Minute

// spread is the DaemonSets of a network coming to every node.
type spread struct {
	tools   Tools
	network v1alpha1.CNIName
	sets    []client.ObjectKey
}

// awaitRollout waits until the DaemonSets of a network are ready on every node, and so are the nodes.
func awaitRollout(tools Tools, id string, network v1alpha1.CNIName, sets []client.ObjectKey) engine.Step {
	r := spread{tools: tools, network: network, sets: sets}
	return &engine.Wait{Name: id, About: fmt.Sprintf("Wait for %s on every node", network), Limit: rolloutTime, For: r.complete}
}

func (s spread) complete(ctx context.Context) error {
	nodes, err := cluster.List[corev1.Node](ctx, s.tools.Cluster, &corev1.NodeList{})
	if err != nil {
		return err
	}
	if err := s.setsReady(ctx, len(nodes)); err != nil {
		return err
	}
	return well(nodes)
}

// onMarked is complete for the nodes that are marked, of which some are asked whether they are well.
func (s spread) onMarked(ctx context.Context, round []string) error {
	nodes, err := cluster.List[corev1.Node](ctx, s.tools.Cluster, &corev1.NodeList{})
	if err != nil {
		return err
	}
	marked := slices.DeleteFunc(nodes, func(n corev1.Node) bool { return n.Labels[v1alpha1.LabelBeside] == "" })
	if err := s.setsReady(ctx, len(marked)); err != nil {
		return err
	}
	return well(slices.DeleteFunc(marked, func(n corev1.Node) bool { return !slices.Contains(round, n.Name) }))
}

// setsReady waits for DaemonSets that come to at least so many nodes.
func (s spread) setsReady(ctx context.Context, nodes int) error {
	for _, key := range s.sets {
		ds := &appsv1.DaemonSet{}
		err := s.tools.Cluster.Get(ctx, key, ds)
		if apierrors.IsNotFound(err) {
			return engine.NotYet("DaemonSet %s does not exist", key)
		}
		if err != nil {
			return fmt.Errorf("daemonset %s: %w", key, err)
		}
		if err := s.ready(ctx, ds, nodes); err != nil {
			return err
		}
	}
	return nil
}

// well says which of the nodes takes no pods that need a network.
func well(nodes []corev1.Node) error {
	for i := range nodes {
		if why := unfit(&nodes[i]); why != "" {
			return engine.NotYet("node %s: %s", nodes[i].Name, why)
		}
	}
	return nil
}

func (s spread) ready(ctx context.Context, ds *appsv1.DaemonSet, nodes int) error {
	st := &ds.Status
	name := ds.Namespace + "/" + ds.Name
	switch everywhere := podnetwork.Of(ds) == s.network; {
	case st.ObservedGeneration < ds.Generation:
		return engine.NotYet("DaemonSet %s has not been looked at yet", name)
	case everywhere && int(st.DesiredNumberScheduled) < nodes:
		return engine.NotYet("DaemonSet %s is for %d of %d nodes", name, st.DesiredNumberScheduled, nodes)
	case st.NumberReady < st.DesiredNumberScheduled || updating(ds):
		return engine.NotYet("DaemonSet %s is ready on %d of %d nodes%s", name, st.NumberReady, st.DesiredNumberScheduled, s.why(ctx, ds))
	}
	return nil
}

// updating reports whether a DaemonSet replaces pods by itself, and has not replaced all.
func updating(ds *appsv1.DaemonSet) bool {
	return ds.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType &&
		ds.Status.UpdatedNumberScheduled < ds.Status.DesiredNumberScheduled
}

// why names a pod that is not ready.
func (s spread) why(ctx context.Context, ds *appsv1.DaemonSet) string {
	pods := &corev1.PodList{}
	selector, err := metav1.LabelSelectorAsSelector(ds.Spec.Selector)
	if err != nil ||
		s.tools.Cluster.List(ctx, pods, client.InNamespace(ds.Namespace), client.MatchingLabelsSelector{Selector: selector}) != nil {
		return ""
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; !connectivity.Ready(p) {
			return fmt.Sprintf("; pod %s on node %s: %s", p.Name, p.Spec.NodeName, connectivity.Why(p))
		}
	}
	return ""
}

// unfit says why a node takes no pods that need a network.
func unfit(n *corev1.Node) string {
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

// Request is what the action that replaces nodes gets. docs/hooks.md shows one like it.
type Request struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Migration  string   `json:"migration"`
	Run        hook.Run `json:"run"`
	Action     string   `json:"action"`
	// Nodes that have to go, by name; as many have to come.
	Nodes []string `json:"nodes"`
}

// leavers are the nodes, by name, that have to be replaced, as a Migration remembers them.
type leavers func(v1alpha1.CNIStatus) []string

// replaceNodes waits for the operator to replace every node, or calls the action that does, and goes on once they are replaced.
func replaceNodes(tools Tools, spec Spec) engine.Step {
	return replace(tools, spec, "replace", "Replace every node", func(st v1alpha1.CNIStatus) []string { return st.Nodes })
}

// replaceNodesAgain does that once more, with the nodes that there were when that began.
func replaceNodesAgain(tools Tools, spec Spec) engine.Step {
	return replace(tools, spec, "again/replace", "Replace every node once more", func(st v1alpha1.CNIStatus) []string {
		if st.Again == nil {
			return nil
		}
		return st.Again.Nodes
	})
}

func replace(tools Tools, spec Spec, id, about string, of leavers) engine.Step {
	replaced := func(ctx context.Context) error { return replaced(ctx, tools, spec.Name, of) }
	wait := engine.Wait{Name: id, About: about, Limit: spec.GateWait, For: replaced}
	action := spec.Nodes.Replace
	if action == nil {
		return &engine.Gate{Wait: wait, Instructions: func() string {
			return "Join as many new nodes as there are, and remove the old ones. replumb goes on by itself."
		}}
	}
	var once sync.Once // an action that failed to bring the nodes is not repeated within a run
	return engine.Interruptible{Write: &engine.Write{
		Name: wait.Name, About: wait.About, As: engine.RoleCall, Limit: spec.GateWait + action.Timeout.Duration, Holds: replaced,
		Write: func(ctx context.Context) (err error) {
			once.Do(func() { err = callReplace(ctx, tools, spec, of) })
			return err
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "call", Object: callout.Name(*action)}}, nil
		},
	}}
}

// callReplace calls the action that replaces nodes.
func callReplace(ctx context.Context, tools Tools, spec Spec, of leavers) error {
	st, err := tools.remembers(ctx, spec.Name)
	if err != nil {
		return err
	}
	r := Request{
		APIVersion: v1alpha1.GroupVersion.String(),
		Kind:       "NodesRequest",
		Migration:  spec.Name,
		Run:        hook.Apply,
		Action:     "replace",
		Nodes:      of(st),
	}
	// Not cut off with the run: half a terraform apply is worse than a late Ctrl-C.
	if err := callout.Call(context.WithoutCancel(ctx), *spec.Nodes.Replace, &r, nil); err != nil {
		return &hook.FailedError{Hook: r.Action, Cause: err}
	}
	return nil
}

// replaced returns nil once no node is left that the Migration remembers, and as many others are ready.
func replaced(ctx context.Context, tools Tools, name string, of leavers) error {
	st, err := tools.remembers(ctx, name)
	if err != nil {
		return err
	}
	nodes, err := cluster.List[corev1.Node](ctx, tools.Cluster, &corev1.NodeList{})
	if err != nil {
		return err
	}
	fresh, old := 0, of(st)
	for i := range nodes {
		if slices.Contains(old, nodes[i].Name) {
			return engine.NotYet("node %s is still there", nodes[i].Name)
		}
		if cluster.NodeReady(&nodes[i]) {
			fresh++
		}
	}
	if fresh < len(old) {
		return engine.NotYet("%d of %s ready", fresh, english.Plural(len(old), "new node is", "new nodes are"))
	}
	return nil
}
