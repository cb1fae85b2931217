package probe

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// dialer resolves and connects in two steps, so that a failure is blamed on the right one.
type dialer struct {
	server  string // host:port of the name server; that of resolv.conf if empty
	strict  bool   // a look-up fails unless both kinds of addresses were answered for
	apart   bool   // addresses of the machine and its link are refused
	memory  *memory
	connect net.Dialer
	// plain makes connections that one goroutine uses at a time; nil where Go is to.
	plain  *plain
	opened openedFunc
}

type openedFunc func(network string, local, remote netip.AddrPort)

func newDialer(target Target, opened openedFunc) *dialer {
	d := &dialer{
		server: target.Resolver, strict: target.Kind == DNS, apart: target.Elsewhere, connect: net.Dialer{KeepAlive: -1}, opened: opened,
	}
	switch target.Kind {
	case TCP, UDP:
		d.plain = &plain{}
	case HTTP:
		if !target.TLS { // whose handshake closes the connection from another goroutine
			d.plain = &plain{}
		}
	}
	if target.Remember {
		d.memory = &memory{server: target.Resolver, opened: d.report}
	}
	return d
}

// resolver is Go's own, without a cache, and new for each look-up: look-ups of a shared one wait
// for each other, so that one lost datagram would count as five seconds of losses.
func (d *dialer) resolver(sent *questions) *net.Resolver {
	return &net.Resolver{PreferGo: true, StrictErrors: d.strict, Dial: func(ctx context.Context, network, server string) (net.Conn, error) {
		if d.server != "" {
			server = d.server
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, server)
		d.report(network, conn)
		return sent.watch(conn), err
	}}
}

func (d *dialer) lookUp(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	if d.memory != nil {
		return d.memory.lookUp(ctx, host)
	}
	var sent questions
	addrs, err := d.resolver(&sent).LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", host, sent.explain(err))
	}
	if sent.askedAgain() {
		tryOf(ctx).again = true
	}
	if len(addrs) == 0 {
		return nil, failf(DNSNotFound, "look up %s: no address", host)
	}
	return addrs, nil
}

// dial connects to the first address that accepts. Over "udp" it sends nothing.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	addrs, err := d.lookUp(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		if d.apart && Near(addr) {
			return nil, fmt.Errorf("%s is an address of the machine itself, or of its link alone", addr)
		}
		var conn net.Conn
		if conn, err = d.dialAddr(ctx, network, addr.Unmap(), port); err == nil {
			d.report(network, conn)
			return conn, nil
		}
	}
	return nil, err
}

func (d *dialer) dialAddr(ctx context.Context, network string, addr netip.Addr, port string) (net.Conn, error) {
	if number, err := strconv.ParseUint(port, 10, 16); err == nil && d.plain != nil {
		if conn, ok, err := d.plain.dial(ctx, network, netip.AddrPortFrom(addr, uint16(number))); ok {
			return conn, err
		}
	}
	return d.connect.DialContext(ctx, network, net.JoinHostPort(addr.String(), port))
}

// Near says that an address leads to the machine itself, or no further than its own link.
func Near(addr netip.Addr) bool {
	addr = addr.Unmap()
	return addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified()
}

func (d *dialer) report(network string, conn net.Conn) {
	if d.opened == nil || conn == nil {
		return
	}
	d.opened(network, addrPort(conn.LocalAddr()), addrPort(conn.RemoteAddr()))
}

func addrPort(addr net.Addr) netip.AddrPort {
	socket, ok := addr.(interface{ AddrPort() netip.AddrPort })
	if !ok {
		return netip.AddrPort{}
	}
	at := socket.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
