package calico

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine/lists"
)

// InUseError says that a block cannot be released because addresses of it are given out.
type InUseError struct {
	Block       netip.Prefix
	Allocations []Allocation
}

func (e *InUseError) Error() string {
	var users []string
	for _, a := range e.Allocations {
		users = append(users, a.Addr.String()+" ("+describe(a)+")")
	}
	return fmt.Sprintf("block %s is in use: %s", e.Block, strings.Join(lists.Limit(users, 3), ", "))
}

// ReleaseBlock removes an empty block in Calico's own order, which can be interrupted: the affinity
// is marked, then the block goes, then the affinity (releaseBlockAffinity in
// libcalico-go/lib/ipam/ipam_block_reader_writer.go). Deletes carry the version, so that a new
// allocation is a conflict; a block in use is an *InUseError.
func ReleaseBlock(ctx context.Context, c client.Client, cidr netip.Prefix) error {
	s := &State{}
	if err := each(ctx, c, "IPAMBlock", func(u *unstructured.Unstructured) error {
		b, err := readBlock(u)
		s.Blocks = append(s.Blocks, b)
		return err
	}); err != nil {
		return err
	}
	if err := each(ctx, c, "BlockAffinity", func(u *unstructured.Unstructured) error {
		a, err := readAffinity(u)
		s.Affinities = append(s.Affinities, a)
		return err
	}); err != nil {
		return err
	}
	block := s.BlockAt(cidr)
	if block != nil && len(block.Allocations) > 0 {
		return &InUseError{Block: cidr, Allocations: block.Allocations}
	}
	affinities := slices.DeleteFunc(s.Affinities, func(a Affinity) bool { return a.CIDR != cidr })
	for i := range affinities {
		if err := markPending(ctx, c, &affinities[i]); err != nil {
			return err
		}
	}
	if block != nil {
		if err := remove(ctx, c, block.Object); err != nil {
			return err
		}
	}
	for i := range affinities {
		if err := remove(ctx, c, affinities[i].Object); err != nil {
			return err
		}
	}
	return nil
}

// pendingDeletion is in libcalico-go/lib/backend/model/block_affinity.go.
const pendingDeletion = "pendingDeletion"

func markPending(ctx context.Context, c client.Client, a *Affinity) error {
	if a.State == pendingDeletion {
		return nil
	}
	if err := unstructured.SetNestedField(a.Object.Object, pendingDeletion, "spec", "state"); err != nil {
		return err
	}
	if err := c.Update(ctx, a.Object); err != nil {
		return fmt.Errorf("blockaffinity %s: %w", a.Name, err)
	}
	return nil
}

func remove(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	err := c.Delete(ctx, u, client.Preconditions{UID: ptr.To(u.GetUID()), ResourceVersion: ptr.To(u.GetResourceVersion())})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s: %w", strings.ToLower(u.GetKind()), u.GetName(), err)
	}
	return nil
}

// Free releases an address, as releaseByIP does, and a handle without others. The caller guarantees
// that its pod is gone, or its tunnel has another address.
func Free(ctx context.Context, c client.Client, addr netip.Addr, handle string) error {
	var block *Block
	if err := each(ctx, c, "IPAMBlock", func(u *unstructured.Unstructured) error {
		b, err := readBlock(u)
		if err == nil && b.CIDR.Contains(addr) {
			block = &b
		}
		return err
	}); err != nil || block == nil {
		return err
	}
	given := slices.ContainsFunc(block.Allocations, func(a Allocation) bool { return a.Addr == addr && a.Handle == handle })
	if given {
		if err := freeOrdinal(block, ordinal(block.CIDR, addr)); err != nil {
			return fmt.Errorf("ipamblock %s: %w", block.Name, err)
		}
		if err := c.Update(ctx, block.Object); err != nil {
			return fmt.Errorf("ipamblock %s: %w", block.Name, err)
		}
	}
	return dropHandle(ctx, c, handle, block.CIDR)
}

func ordinal(block netip.Prefix, addr netip.Addr) int {
	n := 0
	for a := block.Masked().Addr(); a != addr; a = a.Next() {
		n++
	}
	return n
}

// freeOrdinal keeps the attributes, which others may share.
func freeOrdinal(b *Block, n int) error {
	fields := b.Object.Object
	given, _, err := unstructured.NestedSlice(fields, "spec", "allocations")
	if err != nil {
		return err
	}
	if n >= len(given) {
		return fmt.Errorf("has no allocation %d", n)
	}
	free, _, err := unstructured.NestedSlice(fields, "spec", "unallocated")
	if err != nil {
		return err
	}
	given[n] = nil
	if err := unstructured.SetNestedSlice(fields, given, "spec", "allocations"); err != nil {
		return err
	}
	sequence, _, err := unstructured.NestedInt64(fields, "spec", "sequenceNumber")
	if err != nil {
		return err
	}
	unstructured.RemoveNestedField(fields, "spec", "sequenceNumberForAllocation", fmt.Sprint(n))
	if err := unstructured.SetNestedField(fields, sequence+1, "spec", "sequenceNumber"); err != nil {
		return err
	}
	return unstructured.SetNestedSlice(fields, append(free, int64(n)), "spec", "unallocated")
}

// dropHandle takes one address of a block off a handle, and deletes an empty handle. Handles are an
// index only.
func dropHandle(ctx context.Context, c client.Client, id string, block netip.Prefix) error {
	if id == "" {
		return nil
	}
	var found *Handle
	if err := each(ctx, c, "IPAMHandle", func(u *unstructured.Unstructured) error {
		h, err := readHandle(u)
		if err == nil && strings.EqualFold(h.ID, id) {
			found = &h
		}
		return err
	}); err != nil || found == nil {
		return err
	}
	n, has := found.Blocks[block.String()]
	if n > 1 || !has && len(found.Blocks) > 0 {
		return nil
	}
	if len(found.Blocks) <= 1 {
		return remove(ctx, c, found.Object)
	}
	unstructured.RemoveNestedField(found.Object.Object, "spec", "block", block.String())
	if err := c.Update(ctx, found.Object); err != nil {
		return fmt.Errorf("ipamhandle %s: %w", found.Name, err)
	}
	return nil
}
