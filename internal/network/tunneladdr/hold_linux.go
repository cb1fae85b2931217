package tunneladdr

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const loopback = "lo"

// Hold adds to loopback every address in the ranges of another interface of this network namespace,
// and returns all that loopback has then.
//
// Their scope is the link: the kernel takes no such address as the source of a new connection
// (inet_select_addr in net/ipv4/devinet.c), so only open ones use it.
func Hold(ranges []netip.Prefix) ([]netip.Addr, error) {
	lo, here, err := held(ranges)
	if err != nil {
		return nil, err
	}
	for _, a := range here.elsewhere {
		if err := netlink.AddrAdd(lo, single(a)); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("adding %s to %s: %w", a, loopback, err)
		}
	}
	_, here, err = held(ranges)
	return here.onLoopback, err
}

// Give adds an address to an interface, which is not without any then when its former one is taken
// off: the kernel would drop all its routes (fib_inetaddr_event in net/ipv4/fib_frontend.c).
func Give(device string, a netip.Addr) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("interface %s: %w", device, err)
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: host(a)}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding %s to %s: %w", a, device, err)
	}
	return nil
}

// Release removes addresses in the ranges from loopback and returns them. It ends their TCP
// connections, so that clients reconnect instead of waiting in vain.
func Release(ranges []netip.Prefix) ([]netip.Addr, error) {
	lo, here, err := held(ranges)
	if err != nil {
		return nil, err
	}
	gone := slices.DeleteFunc(slices.Clone(here.onLoopback), func(a netip.Addr) bool { return slices.Contains(here.elsewhere, a) })
	if err := end(gone); err != nil { // as long as their other ends are known
		return nil, err
	}
	for _, a := range here.onLoopback {
		if err := netlink.AddrDel(lo, single(a)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return nil, fmt.Errorf("taking %s off %s: %w", a, loopback, err)
		}
	}
	return here.onLoopback, nil
}

// end closes TCP connections from the addresses; without CONFIG_INET_DIAG_DESTROY they time out.
func end(gone []netip.Addr) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} { // many programs have IPv4 on sockets of IPv6
		sockets, err := netlink.SocketDiagTCP(family)
		if err != nil {
			return fmt.Errorf("listing connections: %w", err)
		}
		for _, s := range sockets {
			if a, _ := netip.AddrFromSlice(s.ID.Source); !slices.Contains(gone, a.Unmap()) {
				continue
			}
			local := &net.TCPAddr{IP: s.ID.Source.To4(), Port: int(s.ID.SourcePort)}
			remote := &net.TCPAddr{IP: s.ID.Destination.To4(), Port: int(s.ID.DestinationPort)}
			err := netlink.SocketDestroy(local, remote)
			if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
				return fmt.Errorf("ending a connection from %s to %s: %w", local, remote, err)
			}
		}
	}
	return nil
}

func single(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{
		IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Scope: unix.RT_SCOPE_LINK,
	}
}

type placement struct{ onLoopback, elsewhere []netip.Addr }

func held(ranges []netip.Prefix) (lo netlink.Link, p placement, err error) {
	if lo, err = netlink.LinkByName(loopback); err != nil {
		return nil, p, fmt.Errorf("interface %s: %w", loopback, err)
	}
	all, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, p, fmt.Errorf("listing addresses: %w", err)
	}
	for i := range all {
		a, ok := netip.AddrFromSlice(all[i].IP.To4())
		if !ok || !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) }) {
			continue
		}
		if all[i].LinkIndex == lo.Attrs().Index {
			p.onLoopback = append(p.onLoopback, a)
		} else {
			p.elsewhere = append(p.elsewhere, a)
		}
	}
	return lo, p, nil
}
