//go:build root

package tunneladdr

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tunnel makes what Felix makes on a node: the interface with an address, and a route to another
// node's block by that one's tunnel.
func tunnel(t *testing.T, own, gateway, machine string) {
	t.Helper()
	must(t, netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: Device}, VxlanId: 4096, Port: 4789}))
	must(t, netlink.LinkSetUp(link(t, Device)))
	must(t, netlink.AddrAdd(link(t, Device), whole(t, own)))
	felix(t, gateway, machine)
}

func felix(t *testing.T, gateway, machine string) {
	t.Helper()
	index, mac := link(t, Device).Attrs().Index, must1(net.ParseMAC("66:00:00:00:00:02"))(t)
	must(t, netlink.NeighSet(&netlink.Neigh{
		LinkIndex: index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: net.ParseIP(gateway), HardwareAddr: mac,
	}))
	must(t, netlink.NeighSet(&netlink.Neigh{
		LinkIndex:    index,
		Family:       unix.AF_BRIDGE,
		State:        netlink.NUD_PERMANENT,
		Flags:        netlink.NTF_SELF,
		IP:           net.ParseIP(machine),
		HardwareAddr: mac,
	}))
	must(t, netlink.RouteReplace(&netlink.Route{
		LinkIndex: index, Dst: ipNet(others), Gw: net.ParseIP(gateway), Flags: int(netlink.FLAG_ONLINK),
	}))
}

func must1[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return v
	}
}

var others = netip.MustParsePrefix("10.244.2.0/26")

// leads returns the gateway by which the kernel sends to a pod of the other node; empty, if it has
// none.
func leads(t *testing.T) string {
	t.Helper()
	routes, err := netlink.RouteGet(net.ParseIP("10.244.2.7"))
	if err != nil || len(routes) != 1 || routes[0].Gw == nil {
		return ""
	}
	return routes[0].Gw.String()
}

// TestRouteKeeper takes away what Felix does when tunnels change, and what the kernel does with it:
// the route keeper's route stays. When it ends, nothing of it is left. The control has no route
// keeper, and no route is left.
func TestRouteKeeper(t *testing.T) {
	const old, fresh = "10.244.1.0", "10.245.1.0"
	for _, ferried := range []bool{true, false} {
		alone(t)
		tunnel(t, old, "10.244.2.0", "172.30.0.12")
		f := &RouteKeeper{Fresh: netip.MustParseAddr(fresh)}
		if ferried {
			must(t, f.Add())
			must(t, f.Add()) // again makes no difference
			if got := leads(t); got != "172.30.0.12" {
				t.Fatalf("leads by %q, not by the machine", got)
			}
		}
		must(t, netlink.AddrDel(link(t, Device), whole(t, old)))
		got := leads(t)
		if !ferried {
			if got != "" {
				t.Errorf("control: leads by %q, and nothing was to be left", got)
			}
			continue
		}
		must(
			t,
			netlink.NeighDel(&netlink.Neigh{LinkIndex: link(t, Device).Attrs().Index, Family: unix.AF_INET, IP: net.ParseIP("10.244.2.0")}),
		)
		must(t, netlink.RouteDel(&netlink.Route{LinkIndex: link(t, Device).Attrs().Index, Dst: ipNet(others)}))
		must(t, f.Add())
		if got := leads(t); got != "172.30.0.12" {
			t.Errorf("leads by %q once Felix' route is away", got)
		}
		felix(t, "10.245.2.0", "172.30.0.12")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		must(t, f.Run(ctx, func(err error) { t.Error(err) }))
		if got := leads(t); got != "10.245.2.0" {
			t.Errorf("leads by %q after the route keeper, not as Felix has it", got)
		}
		requireNoRoutes(t)
	}
}

func requireNoRoutes(t *testing.T) {
	t.Helper()
	rules, err := netlink.RuleList(netlink.FAMILY_V4)
	must(t, err)
	if slices.ContainsFunc(rules, func(r netlink.Rule) bool { return r.Priority == rulePriority || r.Priority == rulePriority-1 }) {
		t.Errorf("rules are left: %v", rules)
	}
	neighbours, err := netlink.NeighList(link(t, Device).Attrs().Index, netlink.FAMILY_V4)
	must(t, err)
	if slices.ContainsFunc(neighbours, func(n netlink.Neigh) bool { return n.IP.String() == "172.30.0.12" }) {
		t.Errorf("neighbours are left: %v", neighbours)
	}
}

// TestKeeperLeavesOwnPodsAlone: a pod of the node with an address of another node's block is the
// node's.
func TestKeeperLeavesOwnPodsAlone(t *testing.T) {
	alone(t)
	tunnel(t, "10.244.1.0", "10.244.2.0", "172.30.0.12")
	must(t, (&RouteKeeper{}).Add())
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cali1"}}))
	must(t, netlink.LinkSetUp(link(t, "cali1")))
	must(t, netlink.RouteAdd(&netlink.Route{
		LinkIndex: link(t, "cali1").Attrs().Index, Dst: host(netip.MustParseAddr("10.244.2.7")), Scope: netlink.SCOPE_LINK,
	}))
	if got := leads(t); got != "" {
		t.Errorf("leads by %q, not to the pod", got)
	}
}
