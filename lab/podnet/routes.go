package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
)

// routeProtocol marks the routes of this agent: the numbers from 5 upwards are free to use
// (include/uapi/linux/rtnetlink.h), so that one that starts again finds what it has added before.
const routeProtocol netlink.RouteProtocol = 77

// kernel is the routing table of the network that the agent runs in.
type kernel struct{}

func (kernel) list() (map[netip.Prefix]netip.Addr, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	all := map[netip.Prefix]netip.Addr{}
	for i := range routes {
		via, ok := netip.AddrFromSlice(routes[i].Gw)
		if to, valid := prefix(routes[i].Dst); ok && valid {
			all[to] = via.Unmap()
		}
	}
	return all, nil
}

func (kernel) set(to netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{Dst: ipNet(to), Gw: via.AsSlice(), Protocol: routeProtocol}
	if err := netlink.RouteReplace(r); err != nil {
		return fmt.Errorf("adding route to %s via %s: %w", to, via, err)
	}
	return nil
}

func (kernel) remove(to netip.Prefix) error {
	err := netlink.RouteDel(&netlink.Route{Dst: ipNet(to), Protocol: routeProtocol})
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("removing route to %s: %w", to, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits), ok
}
