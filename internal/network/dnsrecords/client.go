package dnsrecords

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	// exchangeTimeout is for one answer over UDP, and again over TCP.
	exchangeTimeout = 2 * time.Second
	// parallel is how many servers are asked at once.
	parallel = 8
)

// Client asks name servers. The zero value is ready.
type Client struct {
	// Timeout of one exchange. Default: 2s.
	Timeout time.Duration
	// Port that the servers of a zone answer at: records of type NS name none. Default: 53.
	Port string
	// Recursive are host:port of servers that find zones. Default: those of /etc/resolv.conf.
	Recursive []string
}

// NameServer is one address of a name server.
type NameServer struct {
	// Name for people. The addresses of one server share it.
	Name string
	// Addr is host:port.
	Addr string
}

func (s NameServer) String() string {
	if s.Addr == "" {
		return s.Name
	}
	return fmt.Sprintf("%s (%s)", strings.TrimSuffix(s.Name, "."), s.Addr)
}

// Answer is what a server says about a record.
type Answer struct {
	Server NameServer
	// Set is what it says; without values it says that there is no such record.
	Set RecordSet
	// Err is why it does not say anything of use.
	Err error
}

// Ask asks every server for what it has itself. The answers are in the order of the servers.
func (c *Client) Ask(ctx context.Context, servers []NameServer, name string, typ v1alpha1.RecordType) []Answer {
	return reachable(c.each(ctx, servers, name, typ, false))
}

// reachable ignores unroutable addresses if another one of the same server answers; one that does
// not answer counts.
func reachable(all []Answer) []Answer {
	return slices.DeleteFunc(slices.Clone(all), func(a Answer) bool {
		return noRoute(a.Err) && slices.ContainsFunc(all, func(b Answer) bool { return b.Err == nil && b.Server.Name == a.Server.Name })
	})
}

// AskResolvers asks recursive servers for what they hand out to their clients.
func (c *Client) AskResolvers(ctx context.Context, resolvers []string, name string, typ v1alpha1.RecordType) []Answer {
	servers := make([]NameServer, len(resolvers))
	for i, r := range resolvers {
		servers[i] = NameServer{Name: "resolver", Addr: r}
	}
	return c.each(ctx, servers, name, typ, true)
}

func (c *Client) each(ctx context.Context, servers []NameServer, name string, typ v1alpha1.RecordType, recursive bool) []Answer {
	answers := make([]Answer, len(servers))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, s := range servers {
		g.Go(func() error {
			answers[i] = Answer{Server: s}
			answers[i].Set, answers[i].Err = c.ask(ctx, s.Addr, name, typ, recursive)
			return nil
		})
	}
	_ = g.Wait() // every answer has its own error
	return answers
}

func (c *Client) ask(ctx context.Context, addr, name string, typ v1alpha1.RecordType, recursive bool) (RecordSet, error) {
	r, err := c.query(ctx, addr, name, rrtype(typ), recursive)
	if err != nil {
		return RecordSet{}, err
	}
	return setOf(name, typ, r.Answer)
}

// query accepts answers of authoritative and of recursive servers only.
func (c *Client) query(ctx context.Context, addr, name string, rrtype uint16, recursive bool) (*dns.Msg, error) {
	m := new(dns.Msg).SetQuestion(dns.CanonicalName(name), rrtype)
	m.RecursionDesired = recursive
	r, err := c.exchange(ctx, addr, m)
	switch {
	case err != nil:
		return nil, err
	case r.Rcode != dns.RcodeSuccess && r.Rcode != dns.RcodeNameError:
		return nil, &rcodeError{rcode: r.Rcode}
	case !recursive && !r.Authoritative:
		return nil, errLame
	}
	return r, nil
}

// exchange asks over UDP, and over TCP if the answer is too long or missing.
func (c *Client) exchange(ctx context.Context, addr string, m *dns.Msg) (*dns.Msg, error) {
	udp := &dns.Client{Net: "udp", Timeout: c.timeout()}
	if r, _, err := udp.ExchangeContext(ctx, m, addr); err == nil && !r.Truncated {
		return r, asked(m, r)
	}
	tcp := &dns.Client{Net: "tcp", Timeout: c.timeout()}
	r, _, err := tcp.ExchangeContext(ctx, m, addr)
	if err != nil {
		return nil, err
	}
	return r, asked(m, r)
}

func asked(m, r *dns.Msg) error {
	if !r.Response || len(r.Question) != len(m.Question) {
		// Servers leave the question out of answers to messages they cannot read.
		if r.Response && len(r.Question) == 0 && r.Rcode != dns.RcodeSuccess {
			return nil
		}
		return errOther
	}
	for i, q := range m.Question {
		if got := r.Question[i]; got.Qtype != q.Qtype || dns.CanonicalName(got.Name) != dns.CanonicalName(q.Name) {
			return errOther
		}
	}
	return nil
}

func (c *Client) timeout() time.Duration {
	if c.Timeout > 0 {
		return c.Timeout
	}
	return exchangeTimeout
}

var (
	errLame  = errors.New("it does not serve the zone")
	errOther = errors.New("it answered something else than what it was asked")
)

type rcodeError struct{ rcode int }

func (e *rcodeError) Error() string { return "it answered " + dns.RcodeToString[e.rcode] }

func noRoute(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}

func (c *Client) port() string {
	if c.Port != "" {
		return c.Port
	}
	return "53"
}

func (c *Client) at(host string, address string) NameServer {
	return NameServer{Name: host, Addr: net.JoinHostPort(address, c.port())}
}
