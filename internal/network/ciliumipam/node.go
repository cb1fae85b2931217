package ciliumipam

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// GroupVersionKind is that of CiliumNodes.
func GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNode"}
}

// IgnoreAnnotation keeps the operator from a CiliumNode that has it (pkg/annotation). Agents copy
// it from their Node, with all others.
const IgnoreAnnotation = "ipam.cilium.io/ignore"

// Device is the interface that has a node's own address within its range.
const Device = "cilium_host"

const internalIP = "CiliumInternalIP"

// HoldingPool is the name under which a CiliumNode keeps a range that other nodes still lead to
// it, and of which its own agent gives no addresses. There is no such pool.
const HoldingPool = "replumb"

// CiliumNode is one, as far as ranges go (pkg/k8s/apis/cilium.io/v2 and pkg/ipam/types).
type CiliumNode struct {
	Name string
	// Pool is that of which PodCIDRs are; empty with cluster-pool. Its agent writes them as well.
	Pool string
	// PodCIDRs are the ranges of which the node's agent gives pods addresses: one of each family,
	// or as many of the pool as they need. The one in which the node lives comes first.
	PodCIDRs []string
	// Held are ranges beside them that are led to the node (see Lead).
	Held []string
	// Internal are the addresses of the node within its own ranges (CiliumInternalIP), which its
	// agent takes when it starts.
	Internal []netip.Addr
	// Problem is what the operator has against PodCIDRs; empty once it has reserved them.
	Problem string
	// Ignored says that the operator is not to look at it. Its reservation stays.
	Ignored bool

	object *unstructured.Unstructured
}

type allocation struct {
	Pool  string   `json:"pool"`
	CIDRs []string `json:"cidrs"`
}

type fields struct {
	Spec struct {
		Addresses []struct {
			Type string `json:"type"`
			IP   string `json:"ip"`
		} `json:"addresses"`
		IPAM struct {
			PodCIDRs []string `json:"podCIDRs"`
			Pools    struct {
				Allocated []allocation `json:"allocated"`
			} `json:"pools"`
		} `json:"ipam"`
	} `json:"spec"`
	Status struct {
		IPAM struct {
			OperatorStatus struct {
				Error string `json:"error"`
			} `json:"operator-status"`
		} `json:"ipam"`
	} `json:"status"`
}

// ReadNode reads a CiliumNode, and its ranges of a pool; of none with cluster-pool.
func ReadNode(u *unstructured.Unstructured, pool string) (*CiliumNode, error) {
	var f fields
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &f); err != nil {
		return nil, fmt.Errorf("ciliumnode %s: %w", u.GetName(), err)
	}
	n := &CiliumNode{
		Name: u.GetName(), Pool: pool, Problem: f.Status.IPAM.OperatorStatus.Error,
		Ignored: u.GetAnnotations()[IgnoreAnnotation] == "true", object: u,
	}
	for _, a := range f.Spec.Addresses {
		if ip, err := netip.ParseAddr(a.IP); err == nil && a.Type == internalIP {
			n.Internal = append(n.Internal, ip)
		}
	}
	if pool == "" {
		n.PodCIDRs, n.Held = firstOfFamilies(f.Spec.IPAM.PodCIDRs)
	} else {
		n.readAllocated(f.Spec.IPAM.Pools.Allocated)
	}
	return n, nil
}

func (n *CiliumNode) readAllocated(all []allocation) {
	for _, a := range all {
		switch a.Pool {
		case n.Pool:
			n.PodCIDRs = append(n.PodCIDRs, a.CIDRs...)
		case HoldingPool:
			n.Held = append(n.Held, a.CIDRs...)
		}
	}
	slices.SortStableFunc(n.PodCIDRs, func(a, b string) int { return n.rank(a) - n.rank(b) })
}

func (n *CiliumNode) rank(text string) int {
	if p, err := netip.ParsePrefix(text); err == nil && n.Lives(p) {
		return 0
	}
	return 1
}

// All are the ranges that are led to the node.
func (n *CiliumNode) All() []string { return slices.Concat(n.PodCIDRs, n.Held) }

// Object is the whole of it as the cluster has it.
func (n *CiliumNode) Object() client.Object { return n.object }

// Own are the first ranges of each family.
func (n *CiliumNode) Own() []string {
	own, _ := firstOfFamilies(n.PodCIDRs)
	return own
}

// firstOfFamilies leaves out what is no range.
func firstOfFamilies(all []string) (first, further []string) {
	seen := map[bool]bool{}
	for _, text := range all {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
		case seen[p.Addr().Is4()]:
			further = append(further, text)
		default:
			seen[p.Addr().Is4()] = true
			first = append(first, text)
		}
	}
	return first, further
}

// Further are the ranges that it has of its pool beside others: pods can have addresses of them.
func (n *CiliumNode) Further(others []string) []string {
	if n.Pool == "" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(n.PodCIDRs), func(r string) bool { return slices.Contains(others, r) })
}

// Lives reports whether the node has an address of its own in the range.
func (n *CiliumNode) Lives(in netip.Prefix) bool { return slices.ContainsFunc(n.Internal, in.Contains) }

// List reads all CiliumNodes, by name; none, if Cilium has not defined them yet.
func List(ctx context.Context, c client.Reader, pool string) (map[string]*CiliumNode, error) {
	items, err := list(ctx, c, GroupVersionKind())
	if err != nil {
		return nil, fmt.Errorf("listing ciliumnodes: %w", err)
	}
	all := map[string]*CiliumNode{}
	for i := range items {
		n, err := ReadNode(&items[i], pool)
		if err != nil {
			return nil, err
		}
		all[n.Name] = n
	}
	return all, nil
}

// list is empty where the kind is not defined.
func list(ctx context.Context, c client.Reader, kind schema.GroupVersionKind) ([]unstructured.Unstructured, error) {
	all := &unstructured.UnstructuredList{}
	kind.Kind += "List"
	all.SetGroupVersionKind(kind)
	if err := c.List(ctx, all); err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return nil, err
	}
	return all.Items, nil
}

// Get reads one CiliumNode; nil, if it is not there.
func Get(ctx context.Context, c client.Reader, name, pool string) (*CiliumNode, error) {
	u := empty(name)
	err := c.Get(ctx, client.ObjectKey{Name: name}, u)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ciliumnode %s: %w", name, err)
	}
	return ReadNode(u, pool)
}

func empty(name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(GroupVersionKind())
	u.SetName(name)
	return u
}

// Router is the address that a node is to take within its range: no pod has it yet, and an agent
// takes the one that its CiliumNode names, if it finds none of its range on the node itself
// (reallocateOldRouterIPs in daemon/infraendpoints).
func Router(in netip.Prefix) netip.Addr {
	last := netipx.RangeOfPrefix(in).To()
	return last.Prev().Prev() // agents leave out the last one (pkg/ipam/service/ipallocator)
}

// Make makes the CiliumNode of a Node that has none, with its ranges, and the Node's annotations
// as agents copy them.
func Make(ctx context.Context, c client.Client, node *corev1.Node, pool string, podCIDRs []string) error {
	u := empty(node.Name)
	u.SetAnnotations(node.Annotations)
	u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}})
	err := (&CiliumNode{Pool: pool}).setRanges(u, podCIDRs)
	if err == nil {
		err = c.Create(ctx, u, client.FieldOwner(v1alpha1.FieldManager))
	}
	if err != nil {
		return fmt.Errorf("ciliumnode %s: %w", node.Name, err)
	}
	return nil
}

// Give has a CiliumNode carry other ranges, in place: agents of other nodes lead them there from
// then on, and no others; its own takes the first of each family when it starts. The operator
// reserves them if it has none for the node, else takes them back (reuseIPNets in
// operator/pkg/ipam/allocator/podcidr).
func (n *CiliumNode) Give(ctx context.Context, c client.Client, podCIDRs []string) error {
	return n.patch(ctx, c, func(u *unstructured.Unstructured) error { return n.setRanges(u, podCIDRs) })
}

// Lead has a CiliumNode carry ranges and held ones, and name the address that its node is to take.
// The operator must not look at it: it takes back ranges beside those that it has reserved.
func (n *CiliumNode) Lead(ctx context.Context, c client.Client, podCIDRs []string, router netip.Addr, held ...string) error {
	return n.patch(ctx, c, func(u *unstructured.Unstructured) error {
		addresses, _, err := unstructured.NestedSlice(u.Object, "spec", "addresses")
		if err != nil {
			return err
		}
		named := false
		for _, each := range addresses {
			a, ok := each.(map[string]any)
			if !ok || a["type"] != internalIP {
				continue
			}
			if has, err := netip.ParseAddr(fmt.Sprint(a["ip"])); err == nil && has.Is4() == router.Is4() {
				a["ip"], named = router.String(), true
			}
		}
		if !named { // it was deleted, and its agent has not written to it since
			addresses = append(addresses, map[string]any{"type": internalIP, "ip": router.String()})
		}
		if err := unstructured.SetNestedSlice(u.Object, addresses, "spec", "addresses"); err != nil {
			return err
		}
		return n.setRanges(u, podCIDRs, held...)
	})
}

// Withdraw has a CiliumNode carry ranges, and the operator not look at it.
func (n *CiliumNode) Withdraw(ctx context.Context, c client.Client, podCIDRs []string) error {
	return n.patch(ctx, c, func(u *unstructured.Unstructured) error {
		if err := unstructured.SetNestedField(u.Object, "true", "metadata", "annotations", IgnoreAnnotation); err != nil {
			return err
		}
		return n.setRanges(u, podCIDRs)
	})
}

// Settle has a CiliumNode carry its ranges alone, and the operator look at it again.
func (n *CiliumNode) Settle(ctx context.Context, c client.Client, podCIDRs []string) error {
	return n.patch(ctx, c, func(u *unstructured.Unstructured) error {
		unstructured.RemoveNestedField(u.Object, "metadata", "annotations", IgnoreAnnotation)
		return n.setRanges(u, podCIDRs)
	})
}

// setRanges has other nodes lead these ranges to the node, and its agent give addresses of the
// first ones alone. Ranges of other pools stay.
func (n *CiliumNode) setRanges(u *unstructured.Unstructured, own []string, held ...string) error {
	if n.Pool == "" {
		return unstructured.SetNestedStringSlice(u.Object, slices.Concat(own, held), "spec", "ipam", "podCIDRs")
	}
	all, _, err := unstructured.NestedSlice(u.Object, "spec", "ipam", "pools", "allocated")
	if err != nil {
		return err
	}
	entry := map[string]any{"pool": n.Pool}
	all = slices.DeleteFunc(all, func(each any) bool {
		a, ok := each.(map[string]any)
		if ok && a["pool"] == n.Pool {
			entry = a // with the pool's own settings
		}
		return ok && (a["pool"] == n.Pool || a["pool"] == HoldingPool)
	})
	entry["cidrs"] = anySlice(own)
	if all = append(all, entry); len(held) > 0 {
		all = append(all, map[string]any{"pool": HoldingPool, "cidrs": anySlice(held)})
	}
	return unstructured.SetNestedSlice(u.Object, all, "spec", "ipam", "pools", "allocated")
}

// Fields are those of a CiliumNode's spec.ipam that carry ranges of a pool, and held ones; an empty
// name stands for cluster-pool.
func Fields(pool string, own []string, held ...string) map[string]any {
	if pool == "" {
		return map[string]any{"podCIDRs": slices.Concat(own, held)}
	}
	allocated := []any{map[string]any{"pool": pool, "cidrs": own}}
	if len(held) > 0 {
		allocated = append(allocated, map[string]any{"pool": HoldingPool, "cidrs": held})
	}
	return map[string]any{"pools": map[string]any{"allocated": allocated}}
}

func anySlice(texts []string) (all []any) {
	for _, t := range texts {
		all = append(all, t)
	}
	return all
}

func (n *CiliumNode) patch(ctx context.Context, c client.Client, change func(*unstructured.Unstructured) error) error {
	if err := patch(ctx, c, n.object, change); err != nil {
		return fmt.Errorf("ciliumnode %s: %w", n.Name, err)
	}
	return nil
}

// patch changes an object as it was read. It carries the version, since agents and operators write
// lists of it as well.
func patch(ctx context.Context, c client.Client, object *unstructured.Unstructured, change func(*unstructured.Unstructured) error) error {
	u := object.DeepCopy()
	if err := change(u); err != nil {
		return err
	}
	return c.Patch(ctx, u, client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.FieldManager))
}
