package named

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"time"

	"github.com/miekg/dns"
)

// updateTimeout bounds one exchange with a server a few links away.
const updateTimeout = 2 * time.Second

// Update has the server at the other end of a TCP connection replace the addresses of names in the zone by those of the records,
// signed with the key that NewKey made. Records without an address are removed.
func (z Zone) Update(ctx context.Context, conn net.Conn, key []byte, records ...Record) error {
	secret := regexp.MustCompile(`secret "([^"]+)"`).FindSubmatch(key)
	if secret == nil {
		return fmt.Errorf("updating zone %s: there is no secret in the key", z.Name)
	}
	owner := dns.Fqdn(KeyName)
	m := new(dns.Msg).SetUpdate(dns.Fqdn(z.Name))
	for _, r := range records {
		header := dns.RR_Header{Name: r.Name + "." + dns.Fqdn(z.Name), Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: uint32(z.Seconds())}
		m.RemoveRRset([]dns.RR{&dns.A{Hdr: header}})
		if r.Address.IsValid() {
			m.Insert([]dns.RR{&dns.A{Hdr: header, A: net.IP(r.Address.AsSlice())}})
		}
	}
	m.SetTsig(owner, dns.HmacSHA256, 300, time.Now().Unix())
	client := &dns.Client{Net: "tcp", Timeout: updateTimeout, TsigSecret: map[string]string{owner: string(secret[1])}}
	answer, _, err := client.ExchangeWithConnContext(ctx, m, &dns.Conn{Conn: conn, TsigSecret: client.TsigSecret})
	if err != nil {
		return fmt.Errorf("updating zone %s: %w", z.Name, err)
	}
	if answer.Rcode != dns.RcodeSuccess {
		return fmt.Errorf("updating zone %s: the server says %s", z.Name, dns.RcodeToString[answer.Rcode])
	}
	return nil
}
