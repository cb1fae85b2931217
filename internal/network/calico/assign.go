package calico

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// VXLANTunnel is the annotation with the address of a Node's VXLAN tunnel, which Felix follows
// (libcalico-go/lib/backend/k8s/resources/node.go).
const VXLANTunnel = "projectcalico.org/IPv4VXLANTunnelAddr"

// Encrypts reports whether a node has a WireGuard interface of Calico's.
func Encrypts(node *corev1.Node) bool {
	return node.Annotations["projectcalico.org/IPv4WireguardInterfaceAddr"] != ""
}

// The handle and attributes of tunnel addresses (node/pkg/allocateip). Calico keeps an address that
// is assigned so, and lies in an enabled pool.
const (
	tunnelHandle = "vxlan-tunnel-addr-"
	tunnelType   = "vxlanTunnelAddress"
)

// Tunnels are the addresses in some ranges that are given out to VXLAN tunnels, by node.
func (s *State) Tunnels(ranges []netip.Prefix) map[string]netip.Addr {
	all := map[string]netip.Addr{}
	for i := range s.Blocks {
		for _, a := range s.Blocks[i].Allocations {
			within := slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a.Addr) })
			if within && a.Attributes["type"] == tunnelType && strings.EqualFold(a.Handle, tunnelHandle+a.Attributes["node"]) {
				all[a.Attributes["node"]] = a.Addr
			}
		}
	}
	return all
}

// Room is a node's block in some ranges with a free address, not in spared, for its tunnel; nil if
// there is none.
func (s *State) Room(node string, ranges, spared []netip.Prefix) (*Block, netip.Addr, error) {
	// A tunnel with an address has a handle, unless Calico is older than those.
	if !slices.ContainsFunc(s.Handles, func(h Handle) bool { return strings.EqualFold(h.ID, tunnelHandle+node) }) {
		return nil, netip.Addr{}, nil
	}
	for i := range s.Blocks {
		b := &s.Blocks[i]
		if b.Node != node || !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(b.CIDR.Addr()) }) {
			continue
		}
		free, _, err := unstructured.NestedSlice(b.Object.Object, "spec", "unallocated")
		if err != nil {
			return nil, netip.Addr{}, fmt.Errorf("ipamblock %s: %w", b.Name, err)
		}
		for _, n := range free {
			at, ok := nth(b.CIDR, n)
			if ok && !slices.ContainsFunc(spared, func(r netip.Prefix) bool { return r.Contains(at) }) {
				return b, at, nil
			}
		}
	}
	return nil, netip.Addr{}, nil
}

func nth(block netip.Prefix, ordinal any) (netip.Addr, bool) {
	n, ok := ordinal.(int64)
	at := block.Masked().Addr()
	for ; ok && n > 0; n-- {
		at = at.Next()
	}
	return at, ok && block.Contains(at)
}

// AssignTunnel gives an address found by Room to a tunnel, as autoAssign and incrementHandle in
// libcalico-go/lib/ipam do: handle first, then block, guarded by their versions.
func AssignTunnel(ctx context.Context, c client.Client, s *State, block *Block, addr netip.Addr, node string) error {
	if err := holdHandle(ctx, c, s, block.CIDR, tunnelHandle+node); err != nil {
		return err
	}
	if err := takeOrdinal(block, ordinal(block.CIDR, addr), node); err != nil {
		return fmt.Errorf("ipamblock %s: %w", block.Name, err)
	}
	if err := c.Update(ctx, block.Object); err != nil {
		return fmt.Errorf("ipamblock %s: %w", block.Name, err)
	}
	return nil
}

func holdHandle(ctx context.Context, c client.Client, s *State, block netip.Prefix, id string) error {
	for i := range s.Handles {
		h := &s.Handles[i]
		if !strings.EqualFold(h.ID, id) {
			continue
		}
		if h.Blocks[block.String()] > 0 {
			return nil
		}
		if err := unstructured.SetNestedField(h.Object.Object, int64(1), "spec", "block", block.String()); err != nil {
			return fmt.Errorf("ipamhandle %s: %w", h.Name, err)
		}
		if err := c.Update(ctx, h.Object); err != nil {
			return fmt.Errorf("ipamhandle %s: %w", h.Name, err)
		}
		return nil
	}
	return fmt.Errorf("ipamhandle %s is gone", strings.ToLower(id))
}

func takeOrdinal(b *Block, n int, node string) error {
	fields := b.Object.Object
	given, _, err := unstructured.NestedSlice(fields, "spec", "allocations")
	if err != nil {
		return err
	}
	if n >= len(given) || given[n] != nil {
		return fmt.Errorf("has no free address %d", n)
	}
	attributes, _, err := unstructured.NestedSlice(fields, "spec", "attributes")
	if err != nil {
		return err
	}
	given[n] = int64(len(attributes))
	attributes = append(attributes, map[string]any{
		"handle_id": tunnelHandle + node, "secondary": map[string]any{"node": node, "type": tunnelType},
	})
	free, _, err := unstructured.NestedSlice(fields, "spec", "unallocated")
	if err != nil {
		return err
	}
	free = slices.DeleteFunc(free, func(o any) bool { return o == int64(n) })
	sequence, _, err := unstructured.NestedInt64(fields, "spec", "sequenceNumber")
	if err != nil {
		return err
	}
	for field, value := range map[string][]any{"allocations": given, "attributes": attributes, "unallocated": free} {
		if err := unstructured.SetNestedSlice(fields, value, "spec", field); err != nil {
			return err
		}
	}
	if err := unstructured.SetNestedField(fields, sequence, "spec", "sequenceNumberForAllocation", fmt.Sprint(n)); err != nil {
		return err
	}
	return unstructured.SetNestedField(fields, sequence+1, "spec", "sequenceNumber")
}

// MoveTunnel writes the address of a VXLAN tunnel on its Node, guarded by the version, by the
// subresource that Calico itself may write.
func MoveTunnel(ctx context.Context, c client.Client, node *corev1.Node, to netip.Addr) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion, "annotations": map[string]string{VXLANTunnel: to.String()},
	}})
	if err != nil {
		return err
	}
	err = c.Status().Patch(ctx, node.DeepCopy(), client.RawPatch(types.MergePatchType, body))
	if err != nil {
		return fmt.Errorf("node %s: %w", node.Name, err)
	}
	return nil
}

// Reserved are the ranges that Calico gives no address of; none, if it has no IPReservations.
func Reserved(ctx context.Context, c client.Client) ([]netip.Prefix, error) {
	var all []netip.Prefix
	err := each(ctx, c, "IPReservation", func(u *unstructured.Unstructured) error {
		listed, _, err := unstructured.NestedStringSlice(u.Object, "spec", "reservedCIDRs")
		for _, text := range listed {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, p)
			} else if a, err := netip.ParseAddr(text); err == nil {
				all = append(all, netip.PrefixFrom(a, a.BitLen()))
			}
		}
		return err
	})
	if errors.Is(err, ErrAbsent) {
		return nil, nil
	}
	return all, err
}
