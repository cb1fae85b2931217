package fakekubelet

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/network/calico"
)

// HostLocal gives out addresses of the range that the pod's Node carries, one after another, as the
// CNI plugin of that name does. It looks at no pools.
type HostLocal struct {
	Client client.Client

	mu   sync.Mutex
	last map[netip.Prefix]netip.Addr
}

// ByNode implements ByNode.
func (*HostLocal) ByNode() {}

func (h *HostLocal) Take(ctx context.Context, _ []calico.Pool, u User) (netip.Addr, error) {
	n := &corev1.Node{}
	if err := h.Client.Get(ctx, client.ObjectKey{Name: u.Node}, n); err != nil {
		return netip.Addr{}, err
	}
	cidr, err := netip.ParsePrefix(n.Spec.PodCIDR)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the range of node %s: %w", n.Name, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil {
		h.last = map[netip.Prefix]netip.Addr{}
	}
	if !h.last[cidr].IsValid() {
		h.last[cidr] = cidr.Addr().Next() // the bridge's
	}
	h.last[cidr] = h.last[cidr].Next()
	return h.last[cidr], nil
}

func (*HostLocal) Give(context.Context, string) error { return nil }
