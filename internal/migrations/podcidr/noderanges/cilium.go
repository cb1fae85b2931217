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
	if s.Err == nil && s.Config.Mode == ciliumipam.ClusterPool {
		s.Nodes, err = ciliumipam.List(ctx, c)
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

// pooled reports whether Cilium's operator gives nodes their ranges, in CiliumNodes.
func (s *Inventory) pooled() bool {
	return s.Cilium != nil && s.Cilium.Config.Mode == ciliumipam.ClusterPool
}

// covered is the one pool that there was before; zero, if there were several, or none is known.
func (s *CiliumState) covered() netip.Prefix {
	if len(s.Config.Before) != 1 {
		return netip.Prefix{}
	}
	return s.Config.Before[0]
}

// carry are Nodes with the ranges of their CiliumNodes in place of their own, which Cilium does not
// look at.
func (s *CiliumState) carry(nodes []corev1.Node) []corev1.Node {
	out := make([]corev1.Node, len(nodes))
	for i := range nodes {
		n := nodes[i].DeepCopy()
		n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil
		if c := s.Nodes[n.Name]; c != nil {
			n.Spec.PodCIDRs = c.Own()
		}
		out[i] = *n
	}
	return out
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
			Hint: "let replumb read ConfigMap " + metav1.NamespaceSystem + "/" + podnetwork.CiliumConfig + ", in which the chart of Cilium has it",
		}
	}
	mode := s.Cilium.Config.Mode
	if slices.Contains([]string{ciliumipam.ClusterPool, ciliumipam.Kubernetes}, mode) {
		return nil
	}
	return &spec.Error{
		Field: podmove.Field,
		Problem: fmt.Sprintf("cannot be done here: Cilium has ipam: %s, in which nodes have no ranges of their own (ConfigMap %s/%s)",
			mode, metav1.NamespaceSystem, podnetwork.CiliumConfig),
		Hint: "replumb moves pods of Cilium with ipam cluster-pool and kubernetes; else make another cluster, and mirror to it (spec.mirror)",
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

// taken reports whether the operator has a pool, by what it has against ranges of CiliumNodes: that
// they are not of it. Of what it has reserved it has nothing to say.
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
