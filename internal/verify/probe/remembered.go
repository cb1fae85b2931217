package probe

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const resolvConf = "/etc/resolv.conf"

// memory resolves as clients do that cache by the TTL (RFC 1035, section 3.2.1), neither longer nor
// shorter.
type memory struct {
	server string
	opened func(network string, conn net.Conn)

	mu      sync.Mutex
	addrs   []netip.Addr
	expires time.Time
}

// lookUp answers from memory, or asks once for all waiting requests.
func (m *memory) lookUp(ctx context.Context, host string) ([]netip.Addr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Now().Before(m.expires) {
		return m.addrs, nil
	}
	asked := time.Now()
	answer, err := m.ask(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", host, err)
	}
	var addrs []netip.Addr
	ttl := uint32(0)
	for _, rr := range answer.Answer {
		if a, ok := rr.(*dns.A); ok {
			if addr, ok := netip.AddrFromSlice(a.A.To4()); ok {
				addrs, ttl = append(addrs, addr), a.Hdr.Ttl
			}
		}
	}
	if len(addrs) == 0 {
		return nil, failf(DNSNotFound, "look up %s: no address (%s)", host, dns.RcodeToString[answer.Rcode])
	}
	m.addrs, m.expires = addrs, asked.Add(time.Duration(ttl)*time.Second)
	return addrs, nil
}

func (m *memory) ask(ctx context.Context, host string) (*dns.Msg, error) {
	server := m.server
	if server == "" {
		config, err := dns.ClientConfigFromFile(resolvConf)
		if err != nil {
			return nil, err
		}
		server = net.JoinHostPort(config.Servers[0], config.Port)
	}
	question := new(dns.Msg).SetQuestion(dns.Fqdn(host), dns.TypeA)
	const attempt = time.Second
	client := &dns.Client{Timeout: attempt}
	for {
		answer, err := m.exchange(ctx, client, question, server)
		if err == nil || ctx.Err() != nil {
			return answer, err
		}
	}
}

func (m *memory) exchange(ctx context.Context, client *dns.Client, question *dns.Msg, server string) (*dns.Msg, error) {
	conn, err := client.DialContext(ctx, server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	m.opened("udp", conn)
	answer, _, err := client.ExchangeWithConnContext(ctx, question, conn)
	return answer, err
}
