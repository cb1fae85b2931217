package probe

import (
	"errors"
	"net"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// questions are those of one look-up, with their outcomes. Go's resolver asks for both families and
// returns the first error: "no such host" for the missing IPv6, even if the name server failed for
// IPv4 (net/dnsclient_unix.go, goLookupIPCNAMEOrder), which would mislead the person who is paged.
type questions struct {
	mu sync.Mutex
	// failed is why the last question for each kind of record has no answer.
	failed map[uint16]net.DNSError
	// asked are the questions that were sent, again whether one of them was sent more than once.
	asked map[dns.Question]bool
	again bool
}

func (q *questions) watch(conn net.Conn) net.Conn {
	if datagrams, ok := conn.(*net.UDPConn); ok {
		return &watchedConn{UDPConn: datagrams, of: q}
	}
	return conn
}

// ask ignores case, which varies.
func (q *questions) ask(question dns.Question) {
	question.Name = strings.ToLower(question.Name)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.asked == nil {
		q.asked = map[dns.Question]bool{}
	}
	q.again = q.again || q.asked[question]
	q.asked[question] = true
}

func (q *questions) askedAgain() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.again
}

func (q *questions) end(kind uint16, failure *net.DNSError) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if failure == nil {
		delete(q.failed, kind)
		return
	}
	if q.failed == nil {
		q.failed = map[uint16]net.DNSError{}
	}
	q.failed[kind] = *failure
}

// explain adds to "no such host" what a server failed with, or why it did not answer.
func (q *questions) explain(err error) error {
	var missing *net.DNSError
	if !errors.As(err, &missing) || !missing.IsNotFound {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		if failure, ok := q.failed[kind]; ok {
			failure.Name, failure.Server = missing.Name, missing.Server
			return &failure
		}
	}
	return err
}

// watchedConn is a UDP socket for one question; Go's resolver tells it from TCP by its methods.
type watchedConn struct {
	*net.UDPConn
	of   *questions
	kind uint16
}

func (c *watchedConn) Write(question []byte) (int, error) {
	var m dns.Msg
	if m.Unpack(question) == nil && len(m.Question) == 1 {
		c.kind = m.Question[0].Qtype
		c.of.ask(m.Question[0])
	}
	return c.UDPConn.Write(question)
}

// Read looks at the response code (RFC 1035, section 4.1.1).
func (c *watchedConn) Read(answer []byte) (int, error) {
	n, err := c.UDPConn.Read(answer)
	switch {
	case err != nil:
		c.of.end(c.kind, &net.DNSError{UnwrapErr: err, Err: err.Error(), IsTimeout: isTimeout(err), IsTemporary: true})
	case n > 3 && answer[3]&0xf == dns.RcodeServerFailure:
		c.of.end(c.kind, &net.DNSError{Err: "server misbehaving", IsTemporary: true})
	default:
		c.of.end(c.kind, nil)
	}
	return n, err
}
