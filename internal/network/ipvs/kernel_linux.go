package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// read reads a file of this thread's network namespace; /proc/self is the first thread's. One that
// the kernel does not have is empty.
func read(name string) (string, error) {
	body, err := os.ReadFile("/proc/thread-self/net/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(body), err
}

// Servers are the virtual servers of kube-proxy.
func Servers() ([]VirtualServer, error) {
	text, err := read("ip_vs")
	if err != nil || text == "" {
		return nil, err
	}
	all, err := parseServers(text)
	if err != nil {
		return nil, err
	}
	o, err := look()
	if err != nil {
		return nil, err
	}
	return o.own(all), nil
}

// Open are the connections that end when what mode ipvs has left is removed: those that go through
// kube-proxy's virtual servers, and those that programs of the node itself have from an address of
// its device, of IPv4.
func Open() ([]OpenConnection, error) {
	servers, err := Servers()
	if err != nil {
		return nil, err
	}
	text, err := read("ip_vs_conn")
	if err != nil {
		return nil, err
	}
	all, err := parseConnections(text)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(c OpenConnection) bool {
		return !slices.ContainsFunc(servers, func(s VirtualServer) bool { return s.Frontend == c.To })
	})
	own, err := ownConnections()
	return append(all, own...), err
}

func ownConnections() (all []OpenConnection, err error) {
	o, err := look()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"tcp", "tcp6", "udp", "udp6"} {
		text, err := read(name)
		if err != nil {
			return nil, err
		}
		more, err := parseSockets(strings.TrimSuffix(name, "6"), text, o.bound)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return slices.DeleteFunc(all, func(c OpenConnection) bool { return !c.From.Is4() }), nil
}

// look finds what is kube-proxy's.
func look() (*Ownership, error) {
	o := newOwnership()
	_, addresses, err := device()
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			o.bound[ip.Unmap()] = true
		}
	}
	sets, err := netlink.IpsetListAll()
	if err != nil && !noSets(err) {
		return nil, fmt.Errorf("listing ipsets: %w", err)
	}
	for i := range sets {
		if slices.ContainsFunc(Sets(), func(p string) bool { return strings.HasPrefix(sets[i].SetName, p) }) {
			o.takeSet(&sets[i])
		}
	}
	return o, nil
}

// noSets reports a kernel without ipsets.
func noSets(err error) bool {
	return errors.Is(err, unix.ENOPROTOOPT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT)
}

func (o *Ownership) takeSet(set *netlink.IPSetResult) {
	protocols := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}
	for _, e := range set.Entries {
		if e.Port == nil {
			continue
		}
		protocol := ""
		if e.Protocol != nil {
			protocol = protocols[*e.Protocol]
		}
		ip, _ := netip.AddrFromSlice(e.IP)
		o.take(set.SetName, protocol, netip.AddrPortFrom(ip.Unmap(), *e.Port))
	}
}

// device is kube-proxy's, with the addresses of Services; nil, if there is none.
func device() (netlink.Link, []netlink.Addr, error) {
	link, err := netlink.LinkByName(Device)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("interface %s: %w", Device, err)
	}
	all, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, fmt.Errorf("addresses of %s: %w", Device, err)
	}
	return link, slices.DeleteFunc(all, func(a netlink.Addr) bool { return a.IP.IsLinkLocalUnicast() }), nil
}

// LeaveAddresses has new connections of the node's own programs come from an address of the node,
// not from that of the Service that they go to, which is on the device: without it they would end
// with the device. It is for IPv4.
func LeaveAddresses() error {
	link, addresses, err := device()
	if err != nil || link == nil {
		return err
	}
	const of = netlink.RT_FILTER_TABLE | netlink.RT_FILTER_OIF
	like := &netlink.Route{Table: unix.RT_TABLE_LOCAL, LinkIndex: link.Attrs().Index}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, like, of)
	if err != nil {
		return fmt.Errorf("routes of %s: %w", Device, err)
	}
	routes = slices.DeleteFunc(routes, func(r netlink.Route) bool {
		return r.Type != unix.RTN_LOCAL || r.Dst == nil || !r.Src.Equal(r.Dst.IP)
	})
	if len(routes) == 0 {
		return nil
	}
	source, err := ownAddress(link, addresses)
	if err != nil {
		return err
	}
	for i := range routes {
		routes[i].Src = source
		if err := netlink.RouteReplace(&routes[i]); err != nil {
			return fmt.Errorf("the source of the route to %s: %w", routes[i].Dst, err)
		}
	}
	return nil
}

// elsewhere is where no route leads but the default one (RFC 5737).
const elsewhere = "198.51.100.1"

// ownAddress is the one that the node calls others from.
func ownAddress(link netlink.Link, bound []netlink.Addr) (net.IP, error) {
	routes, err := netlink.RouteGet(net.ParseIP(elsewhere))
	if err == nil && len(routes) > 0 && routes[0].Src != nil &&
		!slices.ContainsFunc(bound, func(a netlink.Addr) bool { return a.IP.Equal(routes[0].Src) }) {
		return routes[0].Src, nil
	}
	all, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("addresses of the node: %w", err)
	}
	for _, a := range all {
		if a.LinkIndex != link.Attrs().Index && a.Scope == unix.RT_SCOPE_UNIVERSE {
			return a.IP, nil
		}
	}
	return nil, errors.New("the node has no address of IPv4 but those of Services")
}

// The numbers are those of include/uapi/linux/ip_vs.h of Linux.
const (
	deleteService  = 3
	setDestination = 6
	version        = 1

	ofService     = 1
	ofDestination = 2

	serviceFamily   = 1
	serviceProtocol = 2
	serviceAddress  = 3
	servicePort     = 4

	destinationAddress = 1
	destinationPort    = 2
	destinationMethod  = 3
	destinationWeight  = 4
	destinationUpper   = 5
	destinationLower   = 6
)

func portAttr(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }

// order has IPVS carry out a command for a virtual server. One that is gone is no error.
func order(command uint8, s VirtualServer, more ...*nl.RtAttr) error {
	f, err := netlink.GenlFamilyGet("IPVS")
	if err != nil {
		return fmt.Errorf("asking for IPVS: %w", err)
	}
	r := nl.NewNetlinkRequest(int(f.ID), unix.NLM_F_ACK)
	r.AddData(&nl.Genlmsg{Command: command, Version: version})
	of := nl.NewRtAttr(ofService, nil)
	number := map[string]uint16{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}[s.Protocol]
	kind := uint16(unix.AF_INET)
	if s.At.Addr().Is6() {
		kind = unix.AF_INET6
	}
	of.AddRtAttr(serviceFamily, nl.Uint16Attr(kind))
	of.AddRtAttr(serviceProtocol, nl.Uint16Attr(number))
	of.AddRtAttr(serviceAddress, s.At.Addr().AsSlice())
	of.AddRtAttr(servicePort, portAttr(s.At.Port()))
	r.AddData(of)
	for _, m := range more {
		r.AddData(m)
	}
	if _, err := r.Execute(unix.NETLINK_GENERIC, 0); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("virtual server %s: %w", s, err)
	}
	return nil
}

// Delete deletes a virtual server.
func Delete(s VirtualServer) error { return order(deleteService, s) }

// Quiesce has the servers of a virtual one keep their connections, and take no new ones.
func Quiesce(s VirtualServer) (err error) {
	for _, d := range s.Servers {
		if d.Weight == 0 {
			continue
		}
		of := nl.NewRtAttr(ofDestination, nil)
		of.AddRtAttr(destinationAddress, d.At.Addr().AsSlice())
		of.AddRtAttr(destinationPort, portAttr(d.At.Port()))
		for _, attr := range []int{destinationMethod, destinationWeight, destinationUpper, destinationLower} { // by translation, and no limits
			of.AddRtAttr(attr, nl.Uint32Attr(0))
		}
		err = errors.Join(err, order(setDestination, s, of))
	}
	return err
}
