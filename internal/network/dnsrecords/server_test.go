package dnsrecords

import (
	"sync"

	"github.com/miekg/dns"
)

// zone is what a server in this process has.
type zone struct {
	mu      sync.Mutex
	name    string
	records []string
	// lame takes the zone's authority away.
	lame bool
	// updates are what was asked for.
	updates []*dns.Msg
}

func (z *zone) set(records ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.records = records
}

func (z *zone) lose() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.lame = true
}

// serve answers as an authoritative server does, and as a recursive one if it is asked to be.
func (z *zone) serve(w dns.ResponseWriter, r *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	m := new(dns.Msg).SetReply(r)
	m.Authoritative = !z.lame && !r.RecursionDesired
	if r.Opcode == dns.OpcodeUpdate {
		z.updates = append(z.updates, r)
		_ = w.WriteMsg(m)
		return
	}
	q, exists := r.Question[0], false
	for _, text := range z.records {
		rr, err := dns.NewRR(text)
		if err != nil {
			panic(err)
		}
		if dns.CanonicalName(rr.Header().Name) != dns.CanonicalName(q.Name) {
			continue
		}
		exists = true
		if rr.Header().Rrtype == q.Qtype || rr.Header().Rrtype == dns.TypeCNAME {
			m.Answer = append(m.Answer, rr)
		}
	}
	if len(m.Answer) == 0 {
		soa, err := dns.NewRR(z.name + " 60 IN SOA ns1." + z.name + " root." + z.name + " 1 1 1 1 1")
		if err != nil {
			panic(err)
		}
		m.Ns = append(m.Ns, soa)
		if !exists {
			m.Rcode = dns.RcodeNameError
		}
	}
	_ = w.WriteMsg(m)
}
