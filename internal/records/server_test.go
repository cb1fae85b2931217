package records

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// freePort is one that is free on every address, over UDP and TCP.
func freePort(t *testing.T, addresses ...string) string {
	t.Helper()
	var l net.ListenConfig
	for range 50 {
		var all []interface{ Close() error }
		port, ok := "0", true
		for _, a := range addresses {
			tcp, err := l.Listen(context.Background(), "tcp", net.JoinHostPort(a, port))
			if err != nil {
				ok = false
				break
			}
			all = append(all, tcp)
			port = strconv.Itoa(tcp.Addr().(*net.TCPAddr).Port)
			udp, err := l.ListenPacket(context.Background(), "udp", net.JoinHostPort(a, port))
			if err != nil {
				ok = false
				break
			}
			all = append(all, udp)
		}
		for _, c := range all {
			_ = c.Close()
		}
		if ok {
			return port
		}
	}
	t.Fatal("no port is free on all of ", addresses)
	return ""
}

// serve answers at address:port over UDP and TCP until the test ends.
func serve(t *testing.T, address, port string, secrets map[string]string, h dns.HandlerFunc) string {
	t.Helper()
	at := net.JoinHostPort(address, port)
	for _, network := range []string{"udp", "tcp"} {
		up := make(chan struct{})
		s := &dns.Server{
			Addr: at, Net: network, Handler: h, TsigSecret: secrets, NotifyStartedFunc: func() { close(up) },
			MsgAcceptFunc: func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept }, // updates as well
		}
		failed := make(chan error, 1)
		go func() { failed <- s.ListenAndServe() }()
		select {
		case <-up:
		case err := <-failed:
			t.Fatal(err)
		case <-time.After(5 * time.Second):
			t.Fatal("the server does not come up")
		}
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return at
}

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
