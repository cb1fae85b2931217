package nodecleanup

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkPart are interfaces: by their names, and what hangs on the network's bridges.
type linkPart struct {
	Host
	NetworkTraces
	bridges []string
}

func (p linkPart) links() ([]netlink.Link, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var bridges []int
	for _, l := range all {
		if slices.Contains(p.bridges, l.Attrs().Name) && l.Type() == "bridge" {
			bridges = append(bridges, l.Attrs().Index)
		}
	}
	return slices.DeleteFunc(all, func(l netlink.Link) bool {
		a := l.Attrs()
		on := slices.Contains(bridges, a.MasterIndex) && l.Type() == "veth" || slices.Contains(bridges, a.Index)
		return !on && (!matches(p.Links, a.Name) || p.idle(l))
	}), nil
}

// idle is an interface that the kernel keeps, and that does nothing any more.
func (p linkPart) idle(l netlink.Link) bool {
	if !matches(p.Kept, l.Attrs().Name) {
		return false
	}
	addresses, err := netlink.AddrList(l, netlink.FAMILY_V4)
	if err == nil && matches(p.Shared, l.Attrs().Name) {
		return !slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return p.forPods(a.IPNet) })
	}
	return err == nil && len(addresses) == 0 && l.Attrs().RawFlags&unix.IFF_UP == 0
}

func (p linkPart) find() ([]string, error) {
	all, err := p.links()
	var out []string
	for _, l := range all {
		out = append(out, "interface "+l.Attrs().Name)
	}
	slices.Sort(out)
	return out, err
}

func (p linkPart) remove() error {
	all, err := p.links()
	for _, l := range all {
		if matches(p.Kept, l.Attrs().Name) {
			err = errors.Join(err, p.calm(l))
			continue
		}
		if e := netlink.LinkDel(l); e != nil && !errors.Is(e, unix.ENODEV) {
			err = errors.Join(err, fmt.Errorf("removing interface %s: %w", l.Attrs().Name, e))
		}
	}
	return err
}

// calm takes the network's addresses off an interface, which goes down unless others have some.
func (p linkPart) calm(l netlink.Link) error {
	addresses, err := netlink.AddrList(l, netlink.FAMILY_V4)
	others := false
	for i := range addresses {
		if matches(p.Shared, l.Attrs().Name) && !p.forPods(addresses[i].IPNet) {
			others = true
			continue
		}
		err = errors.Join(err, netlink.AddrDel(l, &addresses[i]))
	}
	if others {
		return err
	}
	return errors.Join(err, netlink.LinkSetDown(l))
}

// routePart are routes of the network that do not end with its interfaces.
type routePart struct {
	Host
	NetworkTraces
}

func (p routePart) routes() ([]netlink.Route, error) {
	all, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, 0)
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	return slices.DeleteFunc(all, func(r netlink.Route) bool { return !p.own(r) }), nil
}

func (p routePart) own(r netlink.Route) bool {
	if slices.Contains(p.Protocols, int(r.Protocol)) {
		return p.toPods(r) // 12 is the protocol of any BIRD, and 80 has no owner
	}
	// RTPROT_BOOT is what netlink and ip(8) set if no one says otherwise.
	return p.Gateways && r.Gw != nil && (r.Protocol == unix.RTPROT_BOOT || r.Protocol == unix.RTPROT_UNSPEC) && p.toPods(r)
}

// toPods reports whether a route leads into the ranges of the network, and not past them.
func (p routePart) toPods(r netlink.Route) bool {
	return r.Dst != nil && p.forPods(r.Dst)
}

// forPods reports whether a prefix is in one of the ranges of pods.
func (h Host) forPods(prefix *net.IPNet) bool {
	a, ok := netip.AddrFromSlice(prefix.IP)
	ones, _ := prefix.Mask.Size()
	return ok && slices.ContainsFunc(h.Pods, func(pods netip.Prefix) bool { return ones >= pods.Bits() && pods.Contains(a.Unmap()) })
}

func (p routePart) find() ([]string, error) {
	all, err := p.routes()
	var out []string
	for _, r := range all {
		out = append(out, "route to "+r.Dst.String())
	}
	slices.Sort(out)
	return slices.Compact(out), err
}

func (p routePart) remove() error {
	all, err := p.routes()
	for i := range all {
		if e := netlink.RouteDel(&all[i]); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("removing the route to %s: %w", all[i].Dst, e))
		}
	}
	return err
}

// setPart are ipsets.
type setPart struct{ NetworkTraces }

func (p setPart) names() ([]string, error) {
	if len(p.Sets) == 0 {
		return nil, nil
	}
	all, err := netlink.IpsetListAll()
	if errors.Is(err, unix.ENOPROTOOPT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil // the kernel has no ipsets
	}
	if err != nil {
		return nil, fmt.Errorf("listing ipsets: %w", err)
	}
	var out []string
	for _, s := range all {
		if hasPrefix(p.Sets, s.SetName) {
			out = append(out, s.SetName)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil // a long one is listed in parts
}

func (p setPart) find() ([]string, error) {
	all, err := p.names()
	for i := range all {
		all[i] = "ipset " + all[i]
	}
	return all, err
}

func (p setPart) remove() error {
	all, err := p.names()
	// A set of sets holds on to its members: what cannot go in the first round can in the second.
	for range 2 {
		var left []string
		for _, name := range all {
			if e := netlink.IpsetDestroy(name); e != nil {
				left = append(left, name)
				err = errors.Join(err, fmt.Errorf("removing ipset %s: %w", name, e))
			}
		}
		if all = left; len(all) == 0 {
			return nil
		}
	}
	return err
}
