//go:build root

package tunneladdr

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/internal/testing/ownnet"
)

var oldRange = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}

// alone runs the rest of the test in a network namespace of its own, with a loopback interface that
// is up. It needs root.
func alone(t *testing.T) {
	t.Helper()
	ownnet.Enter(t)
	must(t, netlink.LinkSetUp(link(t, loopback)))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	return l
}

// overlay makes an interface such as vxlan.calico, with an address.
func overlay(t *testing.T, name, address string) {
	t.Helper()
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}))
	must(t, netlink.LinkSetUp(link(t, name)))
	must(t, netlink.AddrAdd(link(t, name), whole(t, address)))
}

func whole(t *testing.T, address string) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(address + "/32")
	must(t, err)
	return a
}

// TestHold takes a tunnel's address away under an open connection: what is sent to it still comes,
// and new connections have the new address.
func TestHold(t *testing.T) {
	alone(t)
	overlay(t, "vxlan.calico", "10.244.1.0")
	overlay(t, "elsewhere", "192.0.2.1")
	for range 2 { // again makes no difference
		held, err := Hold(oldRange)
		must(t, err)
		if want := []netip.Addr{netip.MustParseAddr("10.244.1.0")}; !slices.Equal(held, want) {
			t.Fatalf("holds %v, not %v", held, want)
		}
	}
	must(t, netlink.AddrDel(link(t, "vxlan.calico"), whole(t, "10.244.1.0")))
	must(t, netlink.AddrAdd(link(t, "vxlan.calico"), whole(t, "10.245.1.0")))

	if got := answered(t, "10.244.1.0"); !got {
		t.Error("what is sent to the old address does not come")
	}
	if from := source(t, "10.246.0.1"); from != "10.245.1.0" {
		t.Errorf("new connections through the tunnel come from %s", from)
	}
	// Towards an interface without an address, as those of pods are, the kernel takes one of any
	// interface, loopback first.
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cali1"}}))
	must(t, netlink.LinkSetUp(link(t, "cali1")))
	_, pod, err := net.ParseCIDR("10.244.1.7/32")
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link(t, "cali1").Attrs().Index, Dst: pod, Scope: unix.RT_SCOPE_LINK}))
	if from := source(t, "10.244.1.7"); from == "10.244.1.0" {
		t.Errorf("new connections to pods of the node come from the address that is held")
	}

	open := connection(t, "10.244.1.0")
	released, err := Release(oldRange)
	must(t, err)
	if len(released) != 1 || answered(t, "10.244.1.0") {
		t.Errorf("released %v, and 10.244.1.0 answers: %v", released, answered(t, "10.244.1.0"))
	}
	must(t, open.SetDeadline(time.Now().Add(10*time.Second)))
	if _, err := open.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection that was open waits on: %v", err)
	}
	again, err := Release(oldRange)
	must(t, err)
	if len(again) != 0 {
		t.Errorf("released %v a second time", again)
	}
}

// answered reports whether the namespace has an address for itself.
func answered(t *testing.T, address string) bool {
	t.Helper()
	l, err := net.Listen("tcp4", net.JoinHostPort(address, "0"))
	if err != nil {
		return false
	}
	must(t, l.Close())
	return true
}

// connection is one that is open from an address of the namespace.
func connection(t *testing.T, from string) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// source is the address that the kernel chooses towards another one, routed through the tunnel
// unless there is a closer route.
func source(t *testing.T, to string) string {
	t.Helper()
	_, everything, err := net.ParseCIDR("10.246.0.0/16")
	must(t, err)
	must(t, netlink.RouteReplace(&netlink.Route{
		LinkIndex: link(t, "vxlan.calico").Attrs().Index, Dst: everything, Scope: unix.RT_SCOPE_LINK,
	}))
	routes, err := netlink.RouteGet(net.ParseIP(to))
	must(t, err)
	return routes[0].Src.String()
}
