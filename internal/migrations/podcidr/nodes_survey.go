package podcidr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/spec"
)

// Home is a node whose Node carries the range of its pods.
type Home struct {
	// Node as it is or, if it is gone, as it was.
	Node *corev1.Node
	// Kept says that a run was ended before the Node made anew had everything, Gone that it is not even there.
	Kept, Gone bool
	// Has are its ranges; none, if it has none yet or is gone.
	Has []string
	// Original are the ranges it had before the migration, Target those it is to have after.
	Original, Target []string
}

// at are the ranges of a node at the end of a direction.
func (h *Home) at(d direction) []string {
	if d == back {
		return h.Original
	}
	return h.Target
}

// there reports whether a node has the ranges that it has at the end of a direction.
func (h *Home) there(d direction) bool { return !h.Gone && !h.Kept && slices.Equal(h.Has, h.at(d)) }

// touched reports whether replumb keeps pods away from it.
func (h *Home) touched() bool {
	return h.Node.Annotations[v1alpha1.AnnotationCordoned] != "" || slices.ContainsFunc(h.Node.Spec.Taints, moving)
}

func moving(t corev1.Taint) bool {
	return t.Key == v1alpha1.TaintMoving && t.Effect == corev1.TaintEffectNoSchedule
}

// OnNodes reports whether the Nodes carry the ranges of pods, and no pools give addresses.
func (s *Survey) OnNodes() bool { return len(s.Homes) > 0 }

// Unsettled are the nodes that have something to be done on the way in a direction.
func (s *Survey) Unsettled(d direction) []*Home {
	crowded := map[string]bool{}
	left := s.Spec.From
	if d == back {
		left = s.Spec.To
	}
	for _, pod := range s.PodsIn(left) {
		crowded[pod.Spec.NodeName] = true
	}
	var all []*Home
	for i := range s.Homes {
		h := &s.Homes[i]
		if !h.there(d) || h.touched() || crowded[h.Node.Name] {
			all = append(all, h)
		}
	}
	return all
}

// away reports whether any Node has not the ranges that it has at the end of a direction.
func (s *Survey) away(d direction) bool {
	return slices.ContainsFunc(s.Homes, func(h Home) bool { return !h.there(d) })
}

// ground is what a survey of nodes stands on.
type ground struct {
	spec  Spec
	nodes []corev1.Node
	kept  map[string]*nodeipam.Keepsake
	// said is the range of all pods as the cluster's own configuration has it; the zero one, if nothing says.
	said netip.Prefix
}

// lookNodes pairs the ranges of Nodes with those they are to get. It fails with a *spec.Error if that cannot be done.
func lookNodes(g ground) ([]Home, Spec, error) {
	s := g.spec
	if len(s.To) != 1 {
		return nil, s, &spec.Error{
			Field:   root + ".to",
			Problem: fmt.Sprintf("has %d ranges, and the pods of this cluster are of one: that of its Nodes", len(s.To)),
			Hint:    "name one range",
		}
	}
	homes, err := g.homes()
	if err != nil {
		return nil, s, err
	}
	var originals []netip.Prefix
	bits := map[int]string{}
	for i := range homes {
		p := nodeipam.Range(homes[i].Original)
		if !p.IsValid() {
			p = nodeipam.Range(homes[i].Has)
		} else {
			originals = append(originals, p)
		}
		if p.IsValid() {
			bits[p.Bits()] = homes[i].Node.Name
		}
	}
	if len(s.From) == 0 {
		s.From = g.from(originals)
	}
	size := s.BlockSize
	if size == 0 && len(bits) > 1 {
		return nil, s, &spec.Error{
			Field: root + ".blockSize", Problem: fmt.Sprintf("is empty, and nodes have ranges of different sizes: %s", sizes(bits)),
			Hint: "name the prefix length of each node's range, such as 24",
		}
	}
	for b := range bits {
		size = cmp.Or(s.BlockSize, b)
	}
	return homes, s, allot(homes, &s, size)
}

func sizes(bits map[int]string) string {
	var all []string
	for b, node := range bits {
		all = append(all, fmt.Sprintf("%s has a /%d", node, b))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// from are the ranges to be emptied: what the cluster says of itself, else what covers all that Nodes had.
func (g *ground) from(originals []netip.Prefix) []netip.Prefix {
	holds := func(p netip.Prefix) bool { return nodeipam.Within(g.said, p) }
	if g.said.IsValid() && !g.said.Overlaps(g.spec.To[0]) &&
		!slices.ContainsFunc(originals, func(p netip.Prefix) bool { return !holds(p) }) {
		return []netip.Prefix{g.said}
	}
	if len(originals) == 0 {
		return nil
	}
	return []netip.Prefix{nodeipam.Cover(originals)}
}

// homes are all nodes, those included that are gone at the moment, in order of name.
func (g *ground) homes() ([]Home, error) {
	var all []Home
	here := map[string]bool{}
	for i := range g.nodes {
		n := &g.nodes[i]
		here[n.Name] = true
		h := Home{Node: n, Has: nodeipam.PodCIDRs(n), Kept: g.kept[n.Name] != nil}
		h.Original = g.original(n, h.Has)
		all = append(all, h)
	}
	for name, k := range g.kept {
		if !here[name] {
			all = append(all, Home{Node: k.Node, Kept: true, Gone: true, Original: g.original(k.Node, nodeipam.PodCIDRs(k.Node))})
		}
	}
	slices.SortFunc(all, func(a, b Home) int { return strings.Compare(a.Node.Name, b.Node.Name) })
	without := slices.IndexFunc(all, func(h Home) bool { return len(h.Has) == 0 && !h.Gone && len(h.Original) == 0 })
	having := slices.ContainsFunc(all, func(h Home) bool { return nodeipam.Range(h.Original).IsValid() || nodeipam.Range(h.Has).IsValid() })
	if without >= 0 && !having {
		return nil, &spec.Error{
			Field: root,
			Problem: "cannot be done here: there are no pools of Calico that give addresses, and node " +
				all[without].Node.Name + " has no IPv4 range in spec.podCIDR",
			Hint: "replumb moves pods of Calico's pools, and of clusters whose Nodes carry their range (flannel, kindnet, kube-router, host-local)",
		}
	}
	return all, nil
}

// original are the ranges of a node before the migration; none, if it has only ever had others.
func (g *ground) original(n *corev1.Node, has []string) []string {
	if text := n.Annotations[v1alpha1.AnnotationPodCIDRs]; text != "" {
		return strings.Split(text, ",")
	}
	if p := nodeipam.Range(has); !p.IsValid() || nodeipam.Within(g.spec.To[0], p) {
		return nil
	}
	return has
}

// allot works out both ends for every node.
func allot(homes []Home, s *Spec, bits int) error {
	forthward, backward := make([]nodeipam.Holder, 0, len(homes)), make([]nodeipam.Holder, 0, len(homes))
	for i := range homes {
		h := &homes[i]
		has := nodeipam.Range(h.Has)
		if !nodeipam.Within(s.To[0], has) {
			has = cmp.Or(nodeipam.Range(h.Original), has)
		}
		forthward = append(forthward, nodeipam.Holder{Name: h.Node.Name, Has: has})
		backward = append(backward, nodeipam.Holder{Name: h.Node.Name, Has: nodeipam.Range(h.Original)})
	}
	targets, err := nodeipam.Allocate(forthward, s.From, s.To[0], bits)
	if err != nil {
		return &spec.Error{
			Field:   root + ".to",
			Problem: err.Error(),
			Hint:    "choose a wider target, or smaller ranges in " + root + ".blockSize",
		}
	}
	for i := range homes {
		h := &homes[i]
		had := h.Has
		if len(had) == 0 {
			had = h.Original
		}
		h.Target = nodeipam.With(had, targets[h.Node.Name])
	}
	lacking := slices.ContainsFunc(homes, func(h Home) bool { return len(h.Original) == 0 })
	if !lacking || len(s.From) == 0 {
		return nil
	}
	// Nodes that joined meanwhile.
	originals, err := nodeipam.Allocate(backward, nil, s.From[0], bits)
	if err != nil {
		return &spec.Error{Field: root + ".from", Problem: err.Error(), Hint: "name the whole range that nodes had theirs of"}
	}
	for i := range homes {
		if h := &homes[i]; len(h.Original) == 0 {
			h.Original = nodeipam.With(h.Has, originals[h.Node.Name])
		}
	}
	return nil
}

// lookAtNodes surveys a cluster without pools.
func (j *Job) lookAtNodes(ctx context.Context, now *Survey) (*Survey, error) {
	kept, err := j.Tools.keepsakes(j.Spec.Name).List(ctx)
	if err != nil {
		return nil, err
	}
	said, err := j.said(ctx)
	if err != nil {
		return nil, err
	}
	homes, s, err := lookNodes(ground{spec: j.Spec, nodes: now.Nodes, kept: kept, said: said})
	if err != nil {
		return nil, err
	}
	out := &Survey{Spec: s, Calico: &calico.State{Ready: true}, Workloads: now.Workloads, Nodes: now.Nodes, Homes: homes}
	for i := range s.From {
		out.Moves = append(out.Moves, Move{From: s.From[i], To: s.To[0]})
	}
	return out, strays(out)
}

// strays says which pod has an address that is not of its Node's range: then something else gives addresses.
func strays(s *Survey) error {
	known := slices.Concat(s.Spec.From, s.Spec.To)
	for i := range s.Workloads.Pods {
		pod := &s.Workloads.Pods[i]
		for _, a := range calico.PodAddresses(pod) {
			if a.Is4() && !within(known, a) {
				return &spec.Error{
					Field: root,
					Problem: fmt.Sprintf("cannot be done here: pod %s/%s has the address %s, which is not of any range of a Node",
						pod.Namespace, pod.Name, a),
					Hint: "if that range is to be emptied too, name one that has both in " + root + ".from",
				}
			}
		}
	}
	return nil
}

// said is the range of pods as kubeadm's configuration or the command line of a controller manager has it.
func (j *Job) said(ctx context.Context) (netip.Prefix, error) {
	managers, err := j.Tools.managers(ctx)
	if err != nil {
		return netip.Prefix{}, err
	}
	for _, m := range managers {
		if p := nodeipam.Range(strings.Split(m.ClusterCIDR, ",")); p.IsValid() {
			return p, nil
		}
	}
	config := &corev1.ConfigMap{}
	err = j.Tools.Cluster.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "kubeadm-config"}, config)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return netip.Prefix{}, nil
	}
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("configmap kube-system/kubeadm-config: %w", err)
	}
	var kubeadm struct {
		Networking struct {
			PodSubnet string `json:"podSubnet"`
		} `json:"networking"`
	}
	if err := yaml.Unmarshal([]byte(config.Data["ClusterConfiguration"]), &kubeadm); err != nil {
		return netip.Prefix{}, nil //nolint:nilerr // a configuration that cannot be read says nothing; nodes do
	}
	return nodeipam.Range(strings.Split(kubeadm.Networking.PodSubnet, ",")), nil
}

// managers are the controller managers whose command line can be seen.
func (t Tools) managers(ctx context.Context) ([]nodeipam.Manager, error) {
	pods := &corev1.PodList{}
	err := t.Cluster.List(
		ctx,
		pods,
		client.InNamespace(metav1.NamespaceSystem),
		client.MatchingLabels{"component": "kube-controller-manager"},
	)
	if err != nil {
		return nil, fmt.Errorf("listing the pods of controller managers: %w", err)
	}
	return nodeipam.Managers(pods.Items), nil
}

func (t Tools) keepsakes(migration string) nodeipam.Keepsakes {
	return nodeipam.Keepsakes{Client: t.client(), Migration: migration}
}

// pools reads Calico's data; nil, if it has no pool that pods could get addresses of.
func (j *Job) pools(ctx context.Context) (*calico.State, error) {
	state, err := calico.Load(ctx, j.Tools.Cluster)
	if errors.Is(err, calico.ErrAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(state.Pools, func(p calico.Pool) bool { return p.ForPods() }) {
		return nil, nil
	}
	return state, nil
}
