//go:build root

package conntrack

import (
	"net/netip"
	"testing"
	"time"
)

// TestForgottenFlows has real datagrams, translated as kube-proxy does. An entry that was just used
// stays, one that is forgotten is made again by the next datagram.
func TestForgottenFlows(t *testing.T) {
	f := newFabric(t)
	table := New()
	c := f.dial(t, f.pod, "udp", "10.96.0.10:53")
	f.dial(t, f.pod, "tcp", "10.96.0.5:80")
	server := []netip.Addr{netip.MustParseAddr("10.244.1.1")}
	forget := func(servers []netip.Addr, rested time.Duration, want int) {
		t.Helper()
		left, err := table.Forget(servers, rested)
		if must(t, err); left != want {
			t.Errorf("%d are left, want %d", left, want)
		}
	}
	count := func() (n int) {
		must(t, listEntries(func(leftover) { n++ }))
		return n
	}
	if n := count(); n != 2 {
		t.Fatalf("there are %d entries, want 2", n)
	}
	forget([]netip.Addr{netip.MustParseAddr("10.244.1.2")}, 0, 0)
	forget(server, 5*time.Second, 1)
	if n := count(); n != 2 {
		t.Errorf("there are %d entries, want 2: one was in use, the others are not datagrams, or of others", n)
	}
	forget(server, 0, 0)
	if n := count(); n != 1 {
		t.Errorf("there are %d entries, want that of TCP", n)
	}
	ask(t, c)
	forget(server, 5*time.Second, 1)
	forget(server, 0, 0)
}
