package podcidr

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// nodeStep is what the steps of one node have in common.
type nodeStep struct {
	tools     Tools
	spec      Spec
	home      *Home
	direction direction
	// watched says that agents are on nodes: the one that others call leaves with the pods.
	watched bool
}

func (s *nodeStep) name() string { return s.home.Node.Name }

// node as it is now; nil, if it is gone.
func (s *nodeStep) node(ctx context.Context) (*corev1.Node, error) {
	n := &corev1.Node{}
	err := s.tools.Cluster.Get(ctx, client.ObjectKey{Name: s.name()}, n)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", s.name(), err)
	}
	return n, nil
}

// change patches a Node that was read. It carries the version, since taints are a list.
func (s *nodeStep) change(ctx context.Context, n *corev1.Node, change func(*corev1.Node)) error {
	was := n.DeepCopy()
	change(n)
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := s.tools.Cluster.Patch(ctx, n, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	return nil
}

// pods on the node.
func (s *nodeStep) pods(ctx context.Context) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := s.tools.Cluster.List(ctx, all, client.MatchingFields{"spec.nodeName": s.name()}); err != nil {
		return nil, fmt.Errorf("pods of node %s: %w", s.name(), err)
	}
	return all.Items, nil
}

// cordonStep keeps new pods away from a node: by spec.unschedulable those of everybody, by a taint those of DaemonSets too,
// which pass over the former. Agents, which tolerate everything, go by a label.
type cordonStep struct{ nodeStep }

func (s *cordonStep) ID() string    { return "cordon/" + s.name() }
func (s *cordonStep) Title() string { return "Keep new pods away from node " + s.name() }

func (s *cordonStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *cordonStep) Do(ctx context.Context) error {
	n, err := s.node(ctx)
	if err != nil || n == nil {
		return err
	}
	return s.change(ctx, n, s.mark)
}

func (s *cordonStep) mark(n *corev1.Node) {
	if !n.Spec.Unschedulable {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[v1alpha1.AnnotationCordoned] = s.spec.Name
		n.Spec.Unschedulable = true
	}
	if !slices.ContainsFunc(n.Spec.Taints, moving) {
		n.Spec.Taints = append(n.Spec.Taints, movingTaint(s.spec.Name))
	}
	if s.watched && n.Labels[v1alpha1.LabelAgents] == "" {
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[v1alpha1.LabelAgents] = v1alpha1.HostAgent
	}
}

// Verify implements engine.Step. A Node that is gone is kept as it was: with everything.
func (s *cordonStep) Verify(ctx context.Context) error {
	n, err := s.node(ctx)
	if err != nil || n == nil {
		return err
	}
	if !n.Spec.Unschedulable || !slices.ContainsFunc(n.Spec.Taints, moving) || s.watched && n.Labels[v1alpha1.LabelAgents] == "" {
		return engine.NotYet("node %s takes new pods", s.name())
	}
	return nil
}

// Preview implements engine.Previewer.
func (s *cordonStep) Preview() ([]engine.Change, error) {
	body := map[string]any{"spec": map[string]any{"unschedulable": true, "taints": []corev1.Taint{movingTaint(s.spec.Name)}}}
	if s.watched {
		body["metadata"] = map[string]any{"labels": map[string]string{v1alpha1.LabelAgents: v1alpha1.HostAgent}}
	}
	return []engine.Change{{Verb: "patch", Object: "Node " + s.name(), Body: body}}, nil
}

// switchNodeStep makes a Node anew with its next ranges.
type switchNodeStep struct{ nodeStep }

func (s *switchNodeStep) ID() string { return "switch/" + s.name() }
func (s *switchNodeStep) Title() string {
	return fmt.Sprintf("Make Node %s anew with the range %s", s.name(), strings.Join(s.home.at(s.direction), ","))
}

func (s *switchNodeStep) State(ctx context.Context) (engine.State, error) {
	return stateOf(s.Verify(ctx))
}

func (s *switchNodeStep) Do(ctx context.Context) error {
	return s.tools.keepsakes(s.spec.Name).Recreate(ctx, s.name(), s.home.at(s.direction))
}

func (s *switchNodeStep) Verify(ctx context.Context) error {
	settled, err := s.tools.keepsakes(s.spec.Name).Settled(ctx, s.name(), s.home.at(s.direction))
	if err == nil && !settled {
		return engine.NotYet("node %s has not the range %s", s.name(), strings.Join(s.home.at(s.direction), ","))
	}
	return err
}

// Preview implements engine.Previewer.
func (s *switchNodeStep) Preview() ([]engine.Change, error) {
	return []engine.Change{
		{Verb: "create", Object: "ConfigMap " + v1alpha1.SystemNamespace + "/node-" + s.name()},
		{Verb: "delete", Object: "Node " + s.name()},
		{Verb: "create", Object: "Node " + s.name(), Body: map[string]any{
			"spec": map[string]any{"podCIDRs": s.home.at(s.direction)}, "rest": "as it was",
		}},
		{Verb: "patch", Object: "Lease kube-node-lease/" + s.name(), Body: map[string]any{"metadata": "owner: the new Node"}},
		{Verb: "patch", Object: "CSINode " + s.name(), Body: map[string]any{"metadata": "owner: the new Node"}},
		{Verb: "delete", Object: "ConfigMap " + v1alpha1.SystemNamespace + "/node-" + s.name()},
	}, nil
}

// networkAgents are DaemonSets of pod networks that read the range of their node, by the names that their manifests give them:
// flannel-io/flannel Documentation/kube-flannel.yml, kubernetes-sigs/kind images/kindnetd, cloudnativelabs/kube-router
// daemonset/*.yaml. flannel does so when it starts, and at no other time (pkg/subnet/kube).
func networkAgents() []string {
	return []string{"kube-flannel-ds", "kube-flannel", "kindnet", "kube-router"}
}

// agentStep restarts what on a node has to learn the range anew. Whatever is younger than the Node has.
type agentStep struct{ nodeStep }

func (s *agentStep) ID() string { return "agent/" + s.name() }
func (s *agentStep) Title() string {
	return "Let the pod network of node " + s.name() + " learn its range"
}

func (s *agentStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

// old are the agents that were started before the Node was made.
func (s *agentStep) old(ctx context.Context) (old, unready []corev1.Pod, err error) {
	n, err := s.node(ctx)
	if err != nil || n == nil {
		return nil, nil, err
	}
	pods, err := s.pods(ctx)
	for i := range pods {
		p := &pods[i]
		ref := metav1.GetControllerOf(p)
		if ref == nil || ref.Kind != rollout.KindDaemonSet || !s.isAgent(p.Namespace, ref.Name) {
			continue
		}
		if !p.CreationTimestamp.After(n.CreationTimestamp.Time) {
			old = append(old, *p)
		} else if !connectivity.Ready(p) {
			unready = append(unready, *p)
		}
	}
	return old, unready, err
}

func (s *agentStep) isAgent(namespace, name string) bool {
	named := slices.ContainsFunc(s.spec.Agents, func(k client.ObjectKey) bool { return k.Namespace == namespace && k.Name == name })
	return named || (namespace == metav1.NamespaceSystem || namespace == "kube-flannel") && slices.Contains(networkAgents(), name)
}

func (s *agentStep) Do(ctx context.Context) error {
	old, _, err := s.old(ctx)
	for i := range old {
		p := &old[i]
		err := s.tools.Cluster.Delete(ctx, p, client.Preconditions{UID: &p.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("restarting pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return err
}

func (s *agentStep) Verify(ctx context.Context) error {
	old, unready, err := s.old(ctx)
	switch {
	case err != nil:
		return err
	case len(old) > 0:
		return engine.NotYet("pod %s/%s was started before Node %s had its range", old[0].Namespace, old[0].Name, s.name())
	case len(unready) > 0:
		return engine.NotYet("pod %s/%s is not ready: %s", unready[0].Namespace, unready[0].Name, connectivity.Why(&unready[0]))
	}
	return nil
}

// renewStep evicts what is still on a node with another address: pods of DaemonSets that no taint keeps away.
type renewStep struct{ nodeStep }

func (s *renewStep) ID() string { return "renew/" + s.name() }
func (s *renewStep) Title() string {
	return "Restart what is on node " + s.name() + " whatever its taints"
}
func (*renewStep) Waits()                    {}
func (s *renewStep) Deadline() time.Duration { return s.spec.Roll.Timeout.Duration }

func (s *renewStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

// stale are pods with an address that is not of the node's range.
func (s *renewStep) stale(ctx context.Context) (stale []corev1.Pod, err error) {
	home := nodeipam.Range(s.home.at(s.direction))
	pods, err := s.pods(ctx)
	for i := range pods {
		for _, a := range calico.PodAddresses(&pods[i]) {
			if a.Is4() && !home.Contains(a) {
				stale = append(stale, pods[i])
			}
		}
	}
	return stale, err
}

func (s *renewStep) Do(ctx context.Context) error {
	stale, err := s.stale(ctx)
	if err != nil {
		return err
	}
	changes := rollout.Changes{Addresses: s.spec.From, AddressesUntil: s.tools.now()}
	if s.direction == back {
		changes.Addresses = s.spec.To
	}
	tools := rollout.Tools{Client: s.tools.client(), Timeout: s.spec.Roll.Timeout.Duration, Now: s.tools.Now}
	for i := range stale {
		if err := tools.Evict(&stale[i], changes).Do(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *renewStep) Verify(ctx context.Context) error {
	stale, err := s.stale(ctx)
	if err == nil && len(stale) > 0 {
		return engine.NotYet("pod %s/%s on node %s has another address", stale[0].Namespace, stale[0].Name, s.name())
	}
	return err
}

// uncordonStep lets pods onto a node again, unless somebody else had kept them away before.
type uncordonStep struct{ nodeStep }

func (s *uncordonStep) ID() string    { return "uncordon/" + s.name() }
func (s *uncordonStep) Title() string { return "Let pods onto node " + s.name() + " again" }

func (s *uncordonStep) State(ctx context.Context) (engine.State, error) {
	return stateOf(s.Verify(ctx))
}

func (s *uncordonStep) Do(ctx context.Context) error {
	n, err := s.node(ctx)
	if err != nil || n == nil {
		return err
	}
	return s.change(ctx, n, unmark)
}

func unmark(n *corev1.Node) {
	if n.Annotations[v1alpha1.AnnotationCordoned] != "" {
		delete(n.Annotations, v1alpha1.AnnotationCordoned)
		n.Spec.Unschedulable = false
	}
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, moving)
	delete(n.Labels, v1alpha1.LabelAgents)
}

func (s *uncordonStep) Verify(ctx context.Context) error {
	n, err := s.node(ctx)
	if err != nil || n == nil {
		return err
	}
	if (&Home{Node: n}).touched() {
		return engine.NotYet("node %s takes no pods", s.name())
	}
	return nil
}

// Preview implements engine.Previewer.
func (s *uncordonStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "patch", Object: "Node " + s.name(), Body: map[string]any{"spec": map[string]any{
		"unschedulable": "as before", "taints": "without " + v1alpha1.TaintMoving,
	}}}}, nil
}

// lateStep gives ranges to nodes that joined the cluster while controller managers give none.
type lateStep struct {
	tools     Tools
	spec      Spec
	direction direction
}

func (*lateStep) ID() string    { return "latecomers" }
func (*lateStep) Title() string { return "Give nodes that joined meanwhile their ranges" }

func (s *lateStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

// homes as they are now.
func (s *lateStep) homes(ctx context.Context) ([]Home, error) {
	now, err := s.tools.occupants(ctx)
	if err != nil {
		return nil, err
	}
	kept, err := s.tools.keepsakes(s.spec.Name).List(ctx)
	if err != nil {
		return nil, err
	}
	homes, _, err := lookNodes(ground{spec: s.spec, nodes: now.Nodes, kept: kept})
	return homes, err
}

func (s *lateStep) Do(ctx context.Context) error {
	homes, err := s.homes(ctx)
	if err != nil {
		return err
	}
	for i := range homes {
		if h := &homes[i]; len(h.Has) == 0 {
			if err := s.tools.keepsakes(s.spec.Name).Recreate(ctx, h.Node.Name, h.at(s.direction)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *lateStep) Verify(ctx context.Context) error {
	homes, err := s.homes(ctx)
	if err != nil {
		return err
	}
	for i := range homes {
		switch h := &homes[i]; {
		case len(h.Has) == 0:
			return engine.NotYet("node %s has no range", h.Node.Name)
		case !h.there(s.direction):
			return fmt.Errorf("node %s has the range %s: it joined meanwhile; run this again to move it, too",
				h.Node.Name, strings.Join(h.Has, ","))
		}
	}
	return nil
}

// unmarkStep takes replumb's notes off all Nodes, and removes the Node of a trial that was cut off.
type unmarkStep struct {
	tools Tools
	spec  Spec
}

func (*unmarkStep) ID() string    { return "tidy/nodes" }
func (*unmarkStep) Title() string { return "Take notes off Nodes" }

func (s *unmarkStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func noted(n *corev1.Node) bool {
	return (&Home{Node: n}).touched() || n.Annotations[v1alpha1.AnnotationPodCIDRs] != ""
}

func (s *unmarkStep) Do(ctx context.Context) error {
	if err := s.trial().End(ctx); err != nil {
		return err
	}
	now, err := s.tools.occupants(ctx)
	if err != nil {
		return err
	}
	for i := range now.Nodes {
		n := &now.Nodes[i]
		if !noted(n) {
			continue
		}
		step := nodeStep{tools: s.tools, spec: s.spec, home: &Home{Node: n}}
		err := step.change(ctx, n, func(n *corev1.Node) {
			unmark(n)
			delete(n.Annotations, v1alpha1.AnnotationPodCIDRs)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *unmarkStep) trial() nodeipam.Trial {
	return nodeipam.Trial{Client: s.tools.client(), Migration: s.spec.Name}
}

func (s *unmarkStep) Verify(ctx context.Context) error {
	if left, err := s.trial().Look(ctx); err != nil || left != nil {
		return stillThere(err, "the canary node")
	}
	now, err := s.tools.occupants(ctx)
	if err != nil {
		return err
	}
	for i := range now.Nodes {
		if noted(&now.Nodes[i]) {
			return engine.NotYet("node %s has notes", now.Nodes[i].Name)
		}
	}
	return nil
}

func stillThere(err error, what string) error {
	if err != nil {
		return err
	}
	return engine.NotYet("%s is still there", what)
}
