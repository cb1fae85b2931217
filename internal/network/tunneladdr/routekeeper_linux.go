package tunneladdr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// pollEvery is the pause between looks, beside those when the kernel reports a change.
	pollEvery = 200 * time.Millisecond
	// calmTime is how long all must have converged before Run ends, and convergeLimit its limit.
	calmTime      = 2 * time.Second
	convergeLimit = time.Minute
)

// RouteKeeper is one node's.
type RouteKeeper struct {
	// Fresh is the address that the tunnel gets; invalid, if it keeps its own.
	Fresh    netip.Addr
	followed followed
}

// Add sets the routes, and the interface's new address. It can be repeated.
func (f *RouteKeeper) Add() error {
	link, err := netlink.LinkByName(Device)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil // a node without tunnels
	}
	if err != nil {
		return fmt.Errorf("interface %s: %w", Device, err)
	}
	if f.Fresh.IsValid() {
		if err := Give(Device, f.Fresh); err != nil {
			return err
		}
	}
	kernel, err := readKernel(link)
	if err != nil {
		return err
	}
	set, gone := f.followed.follow(kernel.Routes(), time.Now())
	for _, r := range set {
		if err := setRoute(link, r); err != nil {
			return err
		}
	}
	for _, block := range gone {
		err := netlink.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Table: routeTable, Dst: ipNet(block)})
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("removing the route to %s: %w", block, err)
		}
	}
	for _, r := range rules() {
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("adding a rule: %w", err)
		}
	}
	return nil
}

// setRoute leads a block to a machine, whose own address stands for its tunnel: a neighbour that
// Felix leaves alone, as it is not permanent.
func setRoute(link netlink.Link, r BlockRoute) error {
	mac, err := net.ParseMAC(r.MAC)
	if err != nil {
		return err
	}
	err = netlink.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_NOARP, Flags: netlink.NTF_EXT_LEARNED,
		IP: r.Machine.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("neighbour %s: %w", r.Machine, err)
	}
	err = netlink.RouteReplace(&netlink.Route{
		LinkIndex: link.Attrs().Index, Table: routeTable, Dst: ipNet(r.Block), Gw: r.Machine.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
	})
	if err != nil {
		return fmt.Errorf("route to %s: %w", r.Block, err)
	}
	return nil
}

// rules look up single addresses, which are the node's own pods, in the main table, then the
// temporary routes, and then the rest of the main table.
func rules() []*netlink.Rule {
	own, kept := netlink.NewRule(), netlink.NewRule()
	own.Table, own.Priority, own.SuppressPrefixlen = unix.RT_TABLE_MAIN, rulePriority-1, 31
	kept.Table, kept.Priority = routeTable, rulePriority
	own.Family, kept.Family = unix.AF_INET, unix.AF_INET
	return []*netlink.Rule{own, kept}
}

// Run follows Felix until ctx ends and all nodes have converged. It then removes all but the
// address, which is the tunnel's.
func (f *RouteKeeper) Run(ctx context.Context, warn func(error)) error {
	done := make(chan struct{})
	defer close(done)
	changed := make(chan struct{}, 1)
	if err := listen(changed, done); err != nil {
		return err
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var limit, calm time.Time
	for {
		if err := f.Add(); err != nil {
			warn(err)
		}
		if now := time.Now(); ctx.Err() != nil {
			if limit.IsZero() {
				limit = now.Add(convergeLimit)
			}
			if yes, err := f.converged(); err != nil || !yes {
				calm = time.Time{}
			} else if calm.IsZero() {
				calm = now
			}
			if now.After(limit) || !calm.IsZero() && now.Sub(calm) > calmTime {
				return RemoveRoutes()
			}
		}
		select {
		case <-changed:
		case <-tick.C:
		}
	}
}

func (f *RouteKeeper) converged() (bool, error) {
	link, err := netlink.LinkByName(Device)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	kernel, err := readKernel(link)
	if err != nil {
		return false, err
	}
	return f.followed.converged(kernel, f.Fresh), nil
}

// listen reports changes by Felix, which removes what it does not know.
func listen(changed chan<- struct{}, done <-chan struct{}) error {
	addresses, routes := make(chan netlink.AddrUpdate), make(chan netlink.RouteUpdate)
	if err := netlink.AddrSubscribe(addresses, done); err != nil {
		return fmt.Errorf("listening for addresses: %w", err)
	}
	if err := netlink.RouteSubscribe(routes, done); err != nil {
		return fmt.Errorf("listening for routes: %w", err)
	}
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	go func() {
		for range addresses {
			tell()
		}
	}()
	go func() {
		for r := range routes {
			if r.Table != routeTable {
				tell()
			}
		}
	}()
	return nil
}

// RemoveRoutes takes away what a RouteKeeper set, first of all the rules.
func RemoveRoutes() error {
	all := rules()
	for i := len(all) - 1; i >= 0; i-- {
		if err := netlink.RuleDel(all[i]); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("removing a rule: %w", err)
		}
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: routeTable}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("listing routes: %w", err)
	}
	for i := range routes {
		if err := netlink.RouteDel(&routes[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("removing the route to %s: %w", routes[i].Dst, err)
		}
	}
	link, err := netlink.LinkByName(Device)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	return removeNeighbours(link)
}

func removeNeighbours(link netlink.Link) error {
	neighbours, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing neighbours: %w", err)
	}
	for i := range neighbours {
		n := &neighbours[i]
		if n.State&netlink.NUD_NOARP == 0 || n.Flags&netlink.NTF_EXT_LEARNED == 0 {
			continue
		}
		if err := netlink.NeighDel(n); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("removing neighbour %s: %w", n.IP, err)
		}
	}
	return nil
}

func readKernel(link netlink.Link) (*Kernel, error) {
	s := &Kernel{Gateways: map[netip.Prefix]netip.Addr{}, Hardware: map[netip.Addr]string{}, Machines: map[string]netip.Addr{}}
	index := link.Attrs().Index
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: index, Table: unix.RT_TABLE_MAIN},
		netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	for i := range routes {
		gateway, ok := netip.AddrFromSlice(routes[i].Gw.To4())
		if block, is := prefix(routes[i].Dst); ok && is {
			s.Gateways[block] = gateway
		}
	}
	if err := s.readNeighbours(index); err != nil {
		return nil, err
	}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	for i := range addresses {
		if a, ok := netip.AddrFromSlice(addresses[i].IP.To4()); ok {
			s.Addresses = append(s.Addresses, a)
		}
	}
	return s, nil
}

func (s *Kernel) readNeighbours(index int) error {
	neighbours, err := netlink.NeighList(index, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing neighbours: %w", err)
	}
	for i := range neighbours {
		if a, ok := netip.AddrFromSlice(neighbours[i].IP.To4()); ok && len(neighbours[i].HardwareAddr) > 0 {
			s.Hardware[a] = neighbours[i].HardwareAddr.String()
		}
	}
	forwards, err := netlink.NeighList(index, unix.AF_BRIDGE)
	if err != nil {
		return fmt.Errorf("listing forwards: %w", err)
	}
	for i := range forwards {
		if a, ok := netip.AddrFromSlice(forwards[i].IP.To4()); ok && len(forwards[i].HardwareAddr) > 0 {
			s.Machines[forwards[i].HardwareAddr.String()] = a
		}
	}
	return nil
}

func host(a netip.Addr) *net.IPNet { return ipNet(netip.PrefixFrom(a, a.BitLen())) }

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP.To4())
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a, bits), ok
}
