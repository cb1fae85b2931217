package probe

import (
	"errors"
	"net"
	"sync/atomic"

	"github.com/miekg/dns"
)

// serverFailures notes whether a name server answered SERVFAIL in one look-up. Go's resolver asks for IPv4 and IPv6 addresses at once and
// returns the error that came first: of a name that has IPv4 addresses alone it says "no such host" when IPv6 was answered first and
// IPv4 with SERVFAIL (net/dnsclient_unix.go, goLookupIPCNAMEOrder). Who is paged would look for a Service that is missing, where it is the name
// server that is in trouble.
type serverFailures struct{ seen atomic.Bool }

// watch returns a socket that is read as before.
func (s *serverFailures) watch(conn net.Conn) net.Conn {
	if datagrams, ok := conn.(*net.UDPConn); ok {
		return &watchedConn{UDPConn: datagrams, failures: s}
	}
	return conn
}

// explain says of a name that was not found that a server failed, if one did.
func (s *serverFailures) explain(err error) error {
	var missing *net.DNSError
	if !s.seen.Load() || !errors.As(err, &missing) || !missing.IsNotFound {
		return err
	}
	return &net.DNSError{Err: "server misbehaving", Name: missing.Name, Server: missing.Server, IsTemporary: true}
}

// watchedConn is a UDP socket, which Go's resolver tells by its methods from one of TCP.
type watchedConn struct {
	*net.UDPConn
	failures *serverFailures
}

// Read looks at the lower four bits of an answer's fourth byte: the response code (RFC 1035, section 4.1.1).
func (c *watchedConn) Read(answer []byte) (int, error) {
	n, err := c.UDPConn.Read(answer)
	if n > 3 && answer[3]&0xf == dns.RcodeServerFailure {
		c.failures.seen.Store(true)
	}
	return n, err
}
