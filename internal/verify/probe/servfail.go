package probe

import (
	"errors"
	"net"
	"sync"

	"github.com/miekg/dns"
)

// serverFailures notes which questions of one look-up have been answered SERVFAIL, or not at all, and by no later answer. Go's resolver asks
// for IPv4 and IPv6 addresses at once and returns the error that came first: of a name that has IPv4 addresses alone it says "no such
// host" when IPv6 was answered first, whatever became of the question for IPv4 (net/dnsclient_unix.go, goLookupIPCNAMEOrder). Who is
// paged would look for a Service that is missing, where it is the name server, or the way there, that is in trouble.
type serverFailures struct {
	mu sync.Mutex
	// of is the failure of each kind of record that was asked for.
	of map[uint16]net.DNSError
}

// watch returns a socket that is written and read as before.
func (s *serverFailures) watch(conn net.Conn) net.Conn {
	if datagrams, ok := conn.(*net.UDPConn); ok {
		return &watchedConn{UDPConn: datagrams, failures: s}
	}
	return conn
}

// set notes how the last question for a kind of record ended.
func (s *serverFailures) set(kind uint16, failure *net.DNSError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if failure == nil {
		delete(s.of, kind)
		return
	}
	if s.of == nil {
		s.of = map[uint16]net.DNSError{}
	}
	s.of[kind] = *failure
}

// explain says of a name that was not found what a server failed with, or why there was no answer.
func (s *serverFailures) explain(err error) error {
	var missing *net.DNSError
	if !errors.As(err, &missing) || !missing.IsNotFound {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		if failure, ok := s.of[kind]; ok {
			failure.Name, failure.Server = missing.Name, missing.Server
			return &failure
		}
	}
	return err
}

// watchedConn is a UDP socket, which Go's resolver tells by its methods from one of TCP. One question goes through each.
type watchedConn struct {
	*net.UDPConn
	failures *serverFailures
	kind     uint16
}

// Write notes which kind of record is asked for.
func (c *watchedConn) Write(question []byte) (int, error) {
	var m dns.Msg
	if m.Unpack(question) == nil && len(m.Question) == 1 {
		c.kind = m.Question[0].Qtype
	}
	return c.UDPConn.Write(question)
}

// Read looks at the lower four bits of an answer's fourth byte: the response code (RFC 1035, section 4.1.1).
func (c *watchedConn) Read(answer []byte) (int, error) {
	n, err := c.UDPConn.Read(answer)
	switch {
	case err != nil:
		c.failures.set(c.kind, &net.DNSError{UnwrapErr: err, Err: err.Error(), IsTimeout: isTimeout(err), IsTemporary: true})
	case n > 3 && answer[3]&0xf == dns.RcodeServerFailure:
		c.failures.set(c.kind, &net.DNSError{Err: "server misbehaving", IsTemporary: true})
	default:
		c.failures.set(c.kind, nil)
	}
	return n, err
}
