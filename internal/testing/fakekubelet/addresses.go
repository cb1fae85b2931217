package fakekubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/network/calico"
)

// usable are the pools that a pod may get an address of: the enabled ones or, of those, the ones it
// asks for.
func usable(pools []calico.Pool, annotations map[string]string) []calico.Pool {
	var asked []string
	_ = json.Unmarshal([]byte(annotations["cni.projectcalico.org/ipv4pools"]), &asked) // nothing asked for is nothing
	return slices.DeleteFunc(pools, func(p calico.Pool) bool {
		return p.Spec.Disabled || !p.ForPods() ||
			len(asked) > 0 && !slices.Contains(asked, p.Name) && !slices.Contains(asked, p.CIDR.String())
	})
}

// tunnels gives every node's tunnel an address, and another one once its pool is disabled
// (node/pkg/allocateip).
func (f *Fleet) tunnels(ctx context.Context) time.Duration {
	pools, err := calico.LoadPools(ctx, f.Client)
	if err != nil {
		return again
	}
	nodes := &corev1.NodeList{}
	if f.Client.List(ctx, nodes) != nil {
		return again
	}
	enabled := usable(pools, nil)
	if len(enabled) == 0 {
		return again
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		at, has := calico.TunnelAddresses(n)[tunnelAnnotation]
		if has && slices.ContainsFunc(enabled, func(p calico.Pool) bool { return p.CIDR.Contains(at) }) {
			continue
		}
		u := User{
			Node:       n.Name,
			Handle:     "vxlan-tunnel-addr-" + n.Name,
			Attributes: map[string]string{"node": n.Name, "type": "vxlanTunnelAddress"},
		}
		if has && f.Addresses.Give(ctx, u.Handle) != nil {
			continue
		}
		a, err := f.Addresses.Take(ctx, enabled, u)
		if err != nil {
			continue
		}
		was := n.DeepCopy()
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[tunnelAnnotation] = a.String()
		_ = f.Client.Patch(ctx, n, client.MergeFrom(was)) // the next round looks again
	}
	return again
}

// Counting gives out one address after another and keeps no books: for measurements.
type Counting struct {
	mu   sync.Mutex
	next map[netip.Prefix]netip.Addr
}

func (c *Counting) Take(_ context.Context, pools []calico.Pool, _ User) (netip.Addr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = map[netip.Prefix]netip.Addr{}
	}
	cidr := pools[0].CIDR
	a := c.next[cidr]
	if !a.IsValid() {
		a = cidr.Addr()
	}
	c.next[cidr] = a.Next()
	return a, nil
}

func (*Counting) Give(context.Context, string) error { return nil }

// Blocks keeps books as Calico does: blocks, affinities and handles in the API server.
type Blocks struct {
	Client client.Client

	mu sync.Mutex
}

// Take implements Addresses: of a block of the node's that has one left, else of a new one.
func (b *Blocks) Take(ctx context.Context, pools []calico.Pool, u User) (netip.Addr, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	state, err := calico.Load(ctx, b.Client)
	if err != nil {
		return netip.Addr{}, err
	}
	if !state.Ready {
		return netip.Addr{}, errors.New("the datastore is not ready")
	}
	for i := range state.Blocks {
		have := &state.Blocks[i]
		in := slices.ContainsFunc(pools, func(p calico.Pool) bool { return p.CIDR.Contains(have.CIDR.Addr()) })
		if in && have.Node == u.Node && len(have.Allocations) < 1<<(32-have.CIDR.Bits()) {
			return b.assign(ctx, have.Name, u)
		}
	}
	for i := range pools {
		cidr, free := freeBlock(state, &pools[i])
		if !free {
			continue
		}
		if err := b.claim(ctx, cidr, u.Node); err != nil {
			return netip.Addr{}, err
		}
		return b.assign(ctx, BlockName(cidr), u)
	}
	return netip.Addr{}, fmt.Errorf("no free block in %d pools", len(pools))
}

// freeBlock is the first range of a pool's block size that is no block yet.
func freeBlock(state *calico.State, p *calico.Pool) (netip.Prefix, bool) {
	for cidr := netip.PrefixFrom(p.CIDR.Addr(), p.BlockSize()); p.CIDR.Contains(cidr.Addr()); {
		if state.BlockAt(cidr) == nil {
			return cidr, true
		}
		a := cidr.Addr().As4()
		n := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3]) + 1<<(32-p.BlockSize())
		cidr = netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), p.BlockSize())
	}
	return netip.Prefix{}, false
}

func (b *Blocks) claim(ctx context.Context, cidr netip.Prefix, node string) error {
	if err := b.Client.Create(ctx, NewAffinity(cidr, node)); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	return client.IgnoreAlreadyExists(b.Client.Create(ctx, NewBlock(cidr, node)))
}

// assign gives out the first free address of a block.
func (b *Blocks) assign(ctx context.Context, block string, u User) (netip.Addr, error) {
	o := calico.Empty("IPAMBlock", block)
	if err := b.Client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return netip.Addr{}, err
	}
	a, err := Assign(o, u)
	if err != nil {
		return a, err
	}
	cidr, _, err := unstructured.NestedString(o.Object, "spec", "cidr")
	if err != nil {
		return a, err
	}
	h := NewHandle(u.Handle, map[string]any{cidr: int64(1)})
	if err := b.Client.Create(ctx, h); client.IgnoreAlreadyExists(err) != nil {
		return a, err
	}
	return a, b.Client.Update(ctx, o)
}

func (b *Blocks) Give(ctx context.Context, handle string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	state, err := calico.Load(ctx, b.Client)
	if err != nil {
		return err
	}
	for i := range state.Blocks {
		for _, a := range state.Blocks[i].Allocations {
			if a.Handle != handle {
				continue
			}
			if err := calico.Free(ctx, b.Client, a.Addr, handle); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	return nil
}
