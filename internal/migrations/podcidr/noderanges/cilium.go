package noderanges

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/ciliumipam"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/network/podnetwork"
	"github.com/replumb/replumb/internal/spec"
)

// CiliumState is what Cilium says of the ranges of nodes.
type CiliumState struct {
	// ConfigMap is cilium-config; nil, if it cannot be seen.
	ConfigMap *corev1.ConfigMap
	Config    ciliumipam.PoolConfig
	// Err says why ConfigMap or Config cannot be read.
	Err error
	// Nodes are the CiliumNodes by name.
	Nodes map[string]*ciliumipam.CiliumNode
	// Pool is the one of which pods that name none have their addresses, and Others are those
	// beside it; nil unless Cilium has ipam: multi-pool.
	Pool   *ciliumipam.PodPool
	Others []*ciliumipam.PodPool
}

// NewCilium reads what was found; no ConfigMap is nil.
func NewCilium(cm *corev1.ConfigMap, nodes map[string]*ciliumipam.CiliumNode) *CiliumState {
	s := &CiliumState{ConfigMap: cm, Nodes: nodes}
	if cm == nil {
		s.Err = fmt.Errorf("there is no configmap %s/%s that can be read", metav1.NamespaceSystem, podnetwork.CiliumConfig)
		return s
	}
	s.Config, s.Err = ciliumipam.ReadConfig(cm)
	return s
}

// TakePools adds the pools that there are, by name.
func (s *CiliumState) TakePools(all map[string]*ciliumipam.PodPool) {
	name := ciliumipam.DefaultPool(s.ConfigMap)
	if s.Pool = all[name]; s.Pool == nil {
		s.Err = fmt.Errorf("there is no ciliumpodippool %s, of which pods have their addresses", name)
		return
	}
	s.Config.Pools, s.Config.Bits, s.Config.Before = s.Pool.Ranges, s.Pool.Bits, s.Pool.Former()
	for _, other := range slices.Sorted(maps.Keys(all)) {
		if other != name {
			s.Others = append(s.Others, all[other])
		}
	}
}

// poolName is that of Pool; empty with cluster-pool.
func (s *CiliumState) poolName() string {
	if s == nil || s.Pool == nil {
		return ""
	}
	return s.Pool.Name
}

// loadCilium returns nil where no DaemonSet is Cilium's.
func loadCilium(ctx context.Context, c *cluster.Cluster, shared *podmove.Inventory) (*CiliumState, error) {
	if len(ciliumOf(shared)) == 0 {
		return nil, nil
	}
	cm, err := ciliumConfig(ctx, c)
	if err != nil {
		return nil, err
	}
	s := NewCilium(cm, nil)
	if s.Err == nil && s.Config.Mode == ciliumipam.MultiPool {
		all, err := ciliumipam.ListPools(ctx, c)
		if err != nil {
			return nil, err
		}
		s.TakePools(all)
	}
	if s.Err == nil && s.givesRanges() {
		s.Nodes, err = ciliumipam.List(ctx, c, s.poolName())
	}
	return s, err
}

// ciliumConfig returns nil if the ConfigMap is not there, or may not be read.
func ciliumConfig(ctx context.Context, c client.Reader) (*corev1.ConfigMap, error) {
	cm := &corev1.ConfigMap{}
	err := c.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: podnetwork.CiliumConfig}, cm)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("configmap %s/%s: %w", metav1.NamespaceSystem, podnetwork.CiliumConfig, err)
	}
	return cm, nil
}

// givesRanges reports whether Cilium's operator gives nodes their ranges.
func (s *CiliumState) givesRanges() bool {
	return slices.Contains([]string{ciliumipam.ClusterPool, ciliumipam.MultiPool}, s.Config.Mode)
}

// pooled reports whether Cilium's operator gives nodes their ranges, in CiliumNodes.
func (s *Inventory) pooled() bool { return s.Cilium != nil && s.Cilium.givesRanges() }

// unnoted is what names the pool, unless it says what it was before.
func (s *CiliumState) unnoted() []client.Object {
	switch {
	case s.Pool != nil && s.Pool.Note == nil:
		return []client.Object{s.Pool.Object()}
	case s.Pool == nil && !ciliumipam.Noted(s.ConfigMap):
		return []client.Object{s.ConfigMap}
	}
	return nil
}

// covered is the one pool that there was before; zero, if there were several, or none is known.
func (s *CiliumState) covered() netip.Prefix {
	if len(s.Config.Before) != 1 {
		return netip.Prefix{}
	}
	return s.Config.Before[0]
}

// carry are Nodes with the ranges of their CiliumNodes in place of their own, which Cilium does
// not look at; without those that have none of a pool, whose pods have addresses of another.
func (s *CiliumState) carry(nodes []corev1.Node) (out []corev1.Node) {
	for i := range nodes {
		n := nodes[i].DeepCopy()
		n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil
		if c := s.Nodes[n.Name]; c != nil {
			n.Spec.PodCIDRs = c.Own()
		}
		if s.Pool == nil || len(n.Spec.PodCIDRs) > 0 || noted(n, v1alpha1.AnnotationPodCIDRs) {
			out = append(out, *n)
		}
	}
	return out
}

// other fails for ranges of pools beside the one that moves. Once the pool has the target alone,
// the migration is over.
func (s *CiliumState) other(from, to []netip.Prefix) error {
	has := func(r netip.Prefix) bool { return slices.ContainsFunc(s.Config.Before, r.Overlaps) }
	for _, f := range from {
		if !has(f) && !slices.ContainsFunc(to, has) {
			return &spec.Error{
				Field:   podmove.Field + ".from",
				Problem: fmt.Sprintf("%s is not of CiliumPodIPPool %s, of which pods have their addresses that name no other", f, s.Pool.Name),
				Hint:    "leave it out; of other pools replumb moves none: make a pool with another name, and have workloads name that one",
			}
		}
	}
	return nil
}

// allot works out both ends for nodes of a pool. A node keeps a range that it has there. Others
// get theirs from the end, since the operator gives nodes what they need further from the
// beginning.
func (s *CiliumState) allot(ranges []NodeRange, of podmove.Spec, bits int) error {
	if err := s.other(of.From, of.To); err != nil {
		return err
	}
	targets, err := nodeipam.AllocateLast(s.holders(ranges, of.To[0], bits), of.To[0], bits)
	if err != nil {
		return full(err)
	}
	var originals map[string]netip.Prefix
	if len(of.From) > 0 {
		if originals, err = nodeipam.AllocateLast(s.holders(ranges, of.From[0], bits), of.From[0], bits); err != nil {
			return fullOriginals(err)
		}
	}
	for i := range ranges {
		r := &ranges[i]
		r.Target = nodeipam.With(r.Has, targets[r.Node.Name])
		if p, ok := originals[r.Node.Name]; ok {
			r.Original = nodeipam.With(r.Has, p)
		}
	}
	return nil
}

// holders are nodes with the first range that they have in one, and each further one that any node
// has there. A node that is cut off on its way still lives in a range that its CiliumNode names no
// more.
func (s *CiliumState) holders(ranges []NodeRange, in netip.Prefix, bits int) (all []nodeipam.RangeHolder) {
	first, taken := map[string]netip.Prefix{}, map[netip.Prefix]bool{}
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		for _, text := range s.Nodes[name].All() {
			p, err := netip.ParsePrefix(text)
			if err != nil || !nodeipam.Within(in, p) {
				continue
			}
			taken[p] = true
			if _, has := first[name]; has || !among(ranges, name) {
				all = append(all, nodeipam.RangeHolder{Name: name + " " + text, Has: p})
			} else {
				first[name] = p
			}
		}
	}
	for i := range ranges {
		r := &ranges[i]
		has, ok := first[r.Node.Name]
		if !ok {
			if has = s.former(r, in, bits); taken[has] {
				has = netip.Prefix{}
			}
		}
		all = append(all, nodeipam.RangeHolder{Name: r.Node.Name, Has: has})
	}
	return all
}

func among(ranges []NodeRange, name string) bool {
	return slices.ContainsFunc(ranges, func(r NodeRange) bool { return r.Node.Name == name })
}

// former is the range within another in which a node lives, else the one that its Node says it
// had.
func (s *CiliumState) former(r *NodeRange, in netip.Prefix, bits int) netip.Prefix {
	if c := s.Nodes[r.Node.Name]; c != nil {
		if i := slices.IndexFunc(c.Internal, in.Contains); i >= 0 {
			return netip.PrefixFrom(c.Internal[i], bits).Masked()
		}
	}
	return nodeipam.Range(r.had())
}

// foreign fails where Cilium gives pods addresses of neither Nodes' nor CiliumNodes' ranges
// (pkg/ipam/option in github.com/cilium/cilium), or does not say what it does.
func (s *Inventory) foreign() error {
	if s.Cilium == nil {
		return nil
	}
	if s.Cilium.Err != nil {
		return &spec.Error{
			Field: podmove.Field, Problem: fmt.Sprintf("cannot be done here: how Cilium gives pods addresses is not known: %v", s.Cilium.Err),
			Hint: "let replumb read ConfigMap " + metav1.NamespaceSystem + "/" + podnetwork.CiliumConfig + ", in which the chart of Cilium has it, " +
				"and CiliumPodIPPools where it has ipam: multi-pool",
		}
	}
	mode := s.Cilium.Config.Mode
	if mode == ciliumipam.Kubernetes || s.Cilium.givesRanges() {
		return nil
	}
	return &spec.Error{
		Field: podmove.Field,
		Problem: fmt.Sprintf("cannot be done here: Cilium has ipam: %s, in which nodes have no ranges of their own (ConfigMap %s/%s)",
			mode, metav1.NamespaceSystem, podnetwork.CiliumConfig),
		Hint: "replumb moves pods of Cilium with ipam cluster-pool, multi-pool and kubernetes; else make another cluster, and mirror to it (spec.mirror)",
	}
}

// ciliumOf are the DaemonSets by which Cilium runs.
func ciliumOf(s *podmove.Inventory) (names []client.ObjectKey) {
	for i := range s.Workloads.DaemonSets {
		if ds := &s.Workloads.DaemonSets[i]; podnetwork.Of(ds) == v1alpha1.Cilium {
			names = append(names, client.ObjectKeyFromObject(ds))
		}
	}
	return names
}

// poolAt are the ranges of which the operator gives nodes theirs at the end of a direction.
func (s *Inventory) poolAt(back bool) []netip.Prefix {
	switch {
	case !back:
		return s.Spec.To
	case len(s.Cilium.Config.Before) > 0 && !slices.Equal(s.Cilium.Config.Before, s.Spec.To):
		return s.Cilium.Config.Before
	}
	return s.Spec.From
}

// taken reports whether the operator has a pool, by what it has against ranges of CiliumNodes:
// that they are not of it. Of what it has reserved it has nothing to say.
func taken(pool []netip.Prefix, nodes map[string]*ciliumipam.CiliumNode) (missing string) {
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[name]
		has := nodeipam.Range(n.PodCIDRs)
		if !has.IsValid() || n.Ignored {
			continue
		}
		inside := slices.ContainsFunc(pool, func(p netip.Prefix) bool { return nodeipam.Within(p, has) })
		switch {
		case !inside && n.Problem == "":
			return fmt.Sprintf("it still takes %s of node %s for its own", has, name)
		case inside && n.Problem != "":
			return fmt.Sprintf("it has not reserved %s of node %s: %s", has, name, n.Problem)
		}
	}
	return ""
}
