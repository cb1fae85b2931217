package nodes

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
)

func TestPortsOf(t *testing.T) {
	at := func(texts ...string) (all []netip.AddrPort) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddrPort(text))
		}
		return all
	}
	for _, tt := range []struct {
		servers []netip.AddrPort
		want    []uint16
	}{
		{nil, []uint16{6443}},
		{at("192.0.2.1:443", "192.0.2.2:443"), []uint16{443}}, // kOps
		{at("192.0.2.1:6443", "[2001:db8::2]:443"), []uint16{6443, 443}},
	} {
		if got := portsOf(tt.servers); !slices.Equal(got, tt.want) {
			t.Errorf("API servers at %v listen on %v, want %v", tt.servers, got, tt.want)
		}
	}
}

// TestSilent looks where the API servers of this cluster listen, and not where others do.
func TestSilent(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(listener.Addr().String())
	node := &v1alpha1.NodeStatus{Addresses: []string{at.Addr().String()}}
	if err := silent(t.Context(), node, []uint16{at.Port()}); err == nil || !strings.Contains(err.Error(), at.String()) {
		t.Errorf("one that answers is taken for silent: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := silent(t.Context(), node, []uint16{at.Port()}); err != nil {
		t.Errorf("one that is gone is not silent: %v", err)
	}
}
