package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// loopback has a fixed name on Linux.
const loopback = "lo"

// Hold gives the loopback interface every address in the ranges that another interface of this network namespace has. It
// returns those that loopback has in the end, also from earlier.
//
// They have the scope of a link: the kernel takes no such address as the source of a new connection (inet_select_addr in
// net/ipv4/devinet.c), so that only what is open already goes on with them.
func Hold(ranges []netip.Prefix) ([]netip.Addr, error) {
	lo, err := netlink.LinkByName(loopback)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", loopback, err)
	}
	found, err := addresses(nil, ranges)
	if err != nil {
		return nil, err
	}
	for _, a := range found {
		if err := netlink.AddrAdd(lo, single(a)); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("adding %s to %s: %w", a, loopback, err)
		}
	}
	return addresses(lo, ranges)
}

// Release takes every address in the ranges off the loopback interface, and returns them. TCP connections that still have
// one end at once: whoever has them connects again, where it would wait for an answer that cannot come.
func Release(ranges []netip.Prefix) ([]netip.Addr, error) {
	lo, err := netlink.LinkByName(loopback)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", loopback, err)
	}
	held, err := addresses(lo, ranges)
	if err != nil {
		return nil, err
	}
	for _, a := range held {
		if err := netlink.AddrDel(lo, single(a)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return nil, fmt.Errorf("taking %s off %s: %w", a, loopback, err)
		}
	}
	return held, end(held)
}

// end closes TCP connections of this network namespace that have one of the addresses, unless another interface has it.
// On a kernel without that (CONFIG_INET_DIAG_DESTROY) they are left to time out.
func end(gone []netip.Addr) error {
	elsewhere, err := addresses(nil, prefixes(gone))
	if err != nil {
		return err
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} { // many programs have IPv4 on sockets of IPv6
		sockets, err := netlink.SocketDiagTCP(family)
		if err != nil {
			return fmt.Errorf("listing connections: %w", err)
		}
		for _, s := range sockets {
			a, _ := netip.AddrFromSlice(s.ID.Source)
			if a = a.Unmap(); !slices.Contains(gone, a) || slices.Contains(elsewhere, a) {
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

func prefixes(all []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range all {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// addresses in the ranges that an interface has or, for nil, any.
func addresses(of netlink.Link, ranges []netip.Prefix) ([]netip.Addr, error) {
	all, err := netlink.AddrList(of, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	var in []netip.Addr
	for i := range all {
		a, ok := netip.AddrFromSlice(all[i].IP.To4())
		if ok && !slices.Contains(in, a) && slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) }) {
			in = append(in, a)
		}
	}
	return in, nil
}
