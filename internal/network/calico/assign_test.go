//go:build apiserver && long

package calico_test

import (
	"maps"
	"net/netip"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
)

// TestAssignTunnel gives the tunnel of a node an address of each of two blocks, and takes one back.
// Addresses given meanwhile are not overwritten.
func TestAssignTunnel(t *testing.T) {
	c := lazy.Get(t)
	first, second := block(t, c, "10.9.0.0/28", "pod-1"), block(t, c, "10.9.1.0/28")
	handle := fakekubelet.NewHandle("vxlan-tunnel-addr-a", map[string]any{"10.9.9.0/28": int64(1)}) // of the address that the tunnel has
	if err := c.Create(t.Context(), handle); err != nil {
		t.Fatal(err)
	}
	for i, p := range []netip.Prefix{first, second} {
		s, stale := load(t, c), load(t, c)
		at := assign(t, c, s, p, netip.MustParsePrefix(p.Masked().Addr().String()+"/31"))
		if got := load(t, c).Tunnels([]netip.Prefix{p}); !maps.Equal(got, map[string]netip.Addr{"a": at}) {
			t.Errorf("%s: the tunnels have %v, not %s", p, got, at)
		}
		for _, h := range load(t, c).Handles {
			if h.ID == "vxlan-tunnel-addr-a" && len(h.Blocks) != i+2 {
				t.Errorf("the handle has %v", h.Blocks)
			}
		}
		b, free, err := stale.Room("a", []netip.Prefix{p}, nil)
		if err != nil || b == nil {
			t.Fatal(b, err)
		}
		if err := calico.AssignTunnel(t.Context(), c, load(t, c), b, free, "a"); !apierrors.IsConflict(err) {
			t.Errorf("with a block that has changed: %v", err)
		}
	}
	at := load(t, c).Tunnels([]netip.Prefix{first})["a"]
	if err := calico.Free(t.Context(), c, at, "vxlan-tunnel-addr-a"); err != nil {
		t.Fatal(err)
	}
	if got := load(t, c).Tunnels([]netip.Prefix{first}); len(got) > 0 {
		t.Errorf("still given: %v", got)
	}
}

// assign takes the first address that is not spared.
func assign(t *testing.T, c client.Client, s *calico.State, within, spared netip.Prefix) netip.Addr {
	t.Helper()
	b, at, err := s.Room("a", []netip.Prefix{within}, []netip.Prefix{spared})
	if err != nil || b == nil || spared.Contains(at) || !within.Contains(at) {
		t.Fatal(b, at, err)
	}
	if none, _, err := s.Room("b", []netip.Prefix{within}, nil); none != nil || err != nil {
		t.Errorf("another node has room in %v: %v", none, err)
	}
	if err := calico.AssignTunnel(t.Context(), c, s, b, at, "a"); err != nil {
		t.Fatal(err)
	}
	return at
}

func load(t *testing.T, c client.Client) *calico.State {
	t.Helper()
	s, err := calico.Load(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
