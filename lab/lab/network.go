package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// bridgeOf joins the machines of a network.
func bridgeOf(network string) string { return "br-" + network }

// fabricSysctls keep the fabric a plain switch and, if there are several networks, the router between them. Packets for
// addresses that none has reach its own address, the machines' default gateway, and are dropped there without an answer, as by
// a data centre's router.
func fabricSysctls(routes bool) map[string]string {
	forward := "0"
	if routes {
		forward = "1"
	}
	return map[string]string{
		"net.ipv4.ip_forward":                 forward,
		"net.ipv6.conf.all.forwarding":        forward,
		"net.bridge.bridge-nf-call-iptables":  "0",
		"net.bridge.bridge-nf-call-ip6tables": "0",
	}
}

// nodeSysctls are what kubeadm's preflight checks ask for.
func nodeSysctls() map[string]string {
	return map[string]string{
		"net.bridge.bridge-nf-call-iptables": "1",
		"net.ipv4.ip_forward":                "1",
		"net.ipv6.conf.all.forwarding":       "1",
		// A client of tests looks up names a hundred times a second, and uses its ports again while the node still
		// remembers where it sent their last datagram: after a name server has ended, that is nowhere. The shorter the
		// memory, the more the client is like the many that share the load in a real cluster.
		"net.netfilter.nf_conntrack_udp_timeout": "10",
	}
}

// namespace is the network of a running machine, by the process that holds it.
type namespace struct {
	pid int
	*netlink.Handle
}

func openNamespace(pid int) (*namespace, error) {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return nil, fmt.Errorf("network of process %d: %w", pid, err)
	}
	defer func() { _ = ns.Close() }()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, fmt.Errorf("network of process %d: %w", pid, err)
	}
	return &namespace{pid: pid, Handle: h}, nil
}

// removeNetworks takes down the bridges of networks that nothing is plugged into any more. It is no error if there is none.
func (n *namespace) removeNetworks(networks []Network) error {
	for _, network := range networks {
		bridge, err := n.LinkByName(bridgeOf(network.Name))
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return fmt.Errorf("fabric: %w", err)
		}
		if err := n.LinkDel(bridge); err != nil {
			return fmt.Errorf("removing bridge %s: %w", bridgeOf(network.Name), err)
		}
	}
	return nil
}

// addNetworks sets up a bridge for each network, with the gateway's address.
func (n *namespace) addNetworks(networks []Network) error {
	for _, network := range networks {
		name := bridgeOf(network.Name)
		if err := n.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
			return fmt.Errorf("adding bridge %s: %w", name, err)
		}
		for _, gateway := range network.gateways() {
			if err := n.setAddress(name, network.in(gateway)); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeFabric adds the first networks, and drops what is for none that there will be.
func (n *namespace) makeFabric(networks []Network) error {
	if err := n.addNetworks(networks); err != nil {
		return err
	}
	for _, p := range networks[0].cidrs() {
		everything := ipNet(FamilyOf(p.Addr()).everywhere())
		if err := n.RouteReplace(&netlink.Route{Dst: everything, Type: unix.RTN_BLACKHOLE}); err != nil {
			return fmt.Errorf("adding the fabric's default route: %w", err)
		}
	}
	return nil
}

// plug connects a member's machine to its network by a pair of links made inside the two network namespaces, so that the
// host never has either end. The fabric's end has the name.
func (n *namespace) plug(machine *namespace, m *Member, network Network, name string) error {
	bridge, err := n.LinkByName(bridgeOf(network.Name))
	if err != nil {
		return fmt.Errorf("fabric: %w", err)
	}
	pair := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index, Flags: net.FlagUp},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsPid(machine.pid),
	}
	if err := n.LinkAdd(pair); err != nil {
		return fmt.Errorf("connecting %s to the fabric: %w", m.Name, err)
	}
	if err := n.LinkSetUp(pair); err != nil {
		return fmt.Errorf("connecting %s to the fabric: %w", m.Name, err)
	}
	for _, a := range m.addresses() {
		if err := machine.setAddress("eth0", network.in(a)); err != nil {
			return err
		}
	}
	for _, gateway := range network.gateways() {
		if err := machine.addRoute(FamilyOf(gateway).everywhere(), gateway); err != nil {
			return err
		}
	}
	return nil
}

// awaitUnplugged waits until a member's link is gone. The kernel takes it back a moment after the last process on the member's machine has ended.
func (n *namespace) awaitUnplugged(ctx context.Context, name string) error {
	return until(ctx, "link "+name+" to go", func(context.Context) error {
		switch _, err := n.LinkByName(name); {
		case errors.As(err, new(netlink.LinkNotFoundError)):
			return nil
		case err != nil:
			return err
		}
		return errors.New("it is still there")
	})
}

func (n *namespace) setAddress(link string, addr netip.Prefix) error {
	l, err := n.LinkByName(link)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	set := &netlink.Addr{IPNet: ipNet(addr)}
	if addr.Addr().Is6() { // no other has it: the kernel need not ask, for a second in which it could not be used
		set.Flags = unix.IFA_F_NODAD
	}
	if err := n.AddrAdd(l, set); err != nil {
		return fmt.Errorf("setting address %s of %s: %w", addr, link, err)
	}
	return n.LinkSetUp(l)
}

func (n *namespace) addRoute(to netip.Prefix, via netip.Addr) error {
	if err := n.RouteReplace(&netlink.Route{Dst: ipNet(to), Gw: ip(via)}); err != nil {
		return fmt.Errorf("adding route to %s via %s: %w", to, via, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: ip(p.Addr()), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
