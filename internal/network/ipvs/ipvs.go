// Package ipvs knows what kube-proxy in mode ipvs keeps in the kernel of a node: virtual servers,
// and the connections that go through them. Those of others, such as keepalived's, are told apart.
package ipvs

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Device has the addresses of Services (defaultDummyDevice in pkg/proxy/ipvs of k8s.io/kubernetes).
const Device = "kube-ipvs0"

// Sets are prefixes of kube-proxy's ipsets, of IPv4 and IPv6 (ipsetInfo and NewIPSet, there).
// Others use names that begin with KUBE- as well, such as kube-router.
func Sets() (all []string) {
	for _, family := range []string{"KUBE-", "KUBE-6-"} {
		for _, name := range []string{"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "LOAD-BALANCER", "NODE-PORT-", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS"} {
			all = append(all, family+name)
		}
	}
	return all
}

// Frontend is an address and a port of a protocol, such as tcp.
type Frontend struct {
	Protocol string
	At       netip.AddrPort
}

func (f Frontend) String() string { return f.At.String() + " " + f.Protocol }

// VirtualServer is one virtual server.
type VirtualServer struct {
	Frontend
	// Servers are what it leads to.
	Servers []Destination
	// NodePort reports whether kube-proxy has it for a node port.
	NodePort bool
}

// Leads reports whether it has a server that takes new connections.
func (s VirtualServer) Leads() bool {
	return slices.ContainsFunc(s.Servers, func(d Destination) bool { return d.Weight > 0 })
}

// Destination is a server that a virtual one leads to, by translation of addresses as kube-proxy
// has it. With a weight of 0 it keeps its connections, and takes no new ones.
type Destination struct {
	At     netip.AddrPort
	Weight int
}

// parseServers reads /proc/net/ip_vs. Those of firewall marks are left out: kube-proxy has none.
func parseServers(text string) (all []VirtualServer, err error) {
	mine := false // whether the lines that follow are of the last of all
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case f[0] == "->" && mine:
			d, err := parseDestination(f)
			if err != nil {
				return nil, err
			}
			of := &all[len(all)-1]
			of.Servers = append(of.Servers, d)
		case slices.Contains([]string{"TCP", "UDP", "SCTP"}, f[0]):
			at, err := parseAddrPort(f[1])
			if err != nil {
				return nil, err
			}
			all, mine = append(all, VirtualServer{Frontend: Frontend{strings.ToLower(f[0]), at}}), true
		default:
			mine = false
		}
	}
	return all, nil
}

// parseDestination reads an arrow, an address, how packets are forwarded, and a weight.
func parseDestination(f []string) (d Destination, err error) {
	const weight = 3
	if len(f) <= weight {
		return d, fmt.Errorf("reading what IPVS has: %q is no server", f)
	}
	if d.At, err = parseAddrPort(f[1]); err != nil {
		return d, err
	}
	if d.Weight, err = strconv.Atoi(f[weight]); err != nil {
		return d, fmt.Errorf("reading what IPVS has: weight %q", f[weight])
	}
	return d, nil
}

// parseAddrPort reads 0A600014:0050, or [fd00:0000:...]:0050.
func parseAddrPort(text string) (netip.AddrPort, error) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return netip.AddrPort{}, fmt.Errorf("reading what IPVS has: no port in %q", text)
	}
	return joined(strings.Trim(text[:at], "[]"), text[at+1:])
}

// joined reads an address and a port as the kernel lists them, in hexadecimal digits.
func joined(address, port string) (netip.AddrPort, error) {
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("reading what IPVS has: port %q", port)
	}
	if strings.Contains(address, ":") {
		a, err := netip.ParseAddr(address)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("reading what IPVS has: %w", err)
		}
		return netip.AddrPortFrom(a, uint16(p)), nil
	}
	raw, err := hex.DecodeString(address)
	a, ok := netip.AddrFromSlice(raw)
	if err != nil || !ok {
		return netip.AddrPort{}, fmt.Errorf("reading what IPVS has: address %q", address)
	}
	return netip.AddrPortFrom(a, uint16(p)), nil
}

// OpenConnection is one that somebody holds open to a frontend.
type OpenConnection struct {
	To   Frontend
	From netip.Addr
}

// parseConnections reads /proc/net/ip_vs_conn. One that has ended is there for two minutes, and
// counts as well: when IPVS forgets it, it has connection tracking forget what has its addresses
// and ports by then (ip_vs_conn_drop_conntrack in net/netfilter/ipvs of Linux). One without a port
// of its client remembers where a client goes (sessionAffinity), and is none.
func parseConnections(text string) (all []OpenConnection, err error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		const fields = 8
		if len(f) < fields || f[0] == "Pro" {
			continue
		}
		client, err := joined(f[1], f[2])
		if err != nil {
			return nil, err
		}
		to, err := joined(f[3], f[4])
		if err != nil {
			return nil, err
		}
		if client.Port() != 0 {
			all = append(all, OpenConnection{Frontend{strings.ToLower(f[0]), to}, client.Addr()})
		}
	}
	return all, nil
}

// Ownership tells kube-proxy's virtual servers from those of others.
type Ownership struct {
	// bound are the addresses on its device.
	bound map[netip.Addr]bool
	// listed are the frontends of its ipsets, and nodePorts their ports, with protocols.
	listed    map[Frontend]bool
	nodePorts map[string]bool
}

func newOwnership() *Ownership {
	return &Ownership{bound: map[netip.Addr]bool{}, listed: map[Frontend]bool{}, nodePorts: map[string]bool{}}
}

func nodePort(protocol string, port uint16) string { return fmt.Sprintf("%s %d", protocol, port) }

// take adds a member of an ipset. One of a bitmap has no address, and its protocol is in the name.
func (o *Ownership) take(set, protocol string, at netip.AddrPort) {
	if !strings.Contains(set, "-NODE-PORT-") {
		o.listed[Frontend{protocol, at}] = true
		return
	}
	for _, p := range []string{"TCP", "UDP", "SCTP"} {
		if strings.Contains(set, "-"+p) {
			o.nodePorts[nodePort(strings.ToLower(p), at.Port())] = true
		}
	}
}

// own are those of kube-proxy, with what they are for.
func (o *Ownership) own(servers []VirtualServer) (own []VirtualServer) {
	for _, s := range servers {
		at := o.bound[s.At.Addr()] || o.listed[s.Frontend]
		s.NodePort = !at && o.nodePorts[nodePort(s.Protocol, s.At.Port())]
		if at || s.NodePort {
			own = append(own, s)
		}
	}
	return own
}

// Tell names connections, by frontend.
func Tell(open []OpenConnection) (lines []string) {
	count, one := map[Frontend]int{}, map[Frontend]netip.Addr{}
	for _, c := range open {
		count[c.To]++
		if have, ok := one[c.To]; !ok || c.From.Less(have) {
			one[c.To] = c.From
		}
	}
	for to, n := range count {
		lines = append(lines, fmt.Sprintf("%d to %s, from %s", n, to, one[to]))
	}
	slices.Sort(lines)
	return lines
}
