package dnsrecords

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/testing/dnstest"
)

func rcode(code int) dns.HandlerFunc {
	return func(w dns.ResponseWriter, r *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetRcode(r, code)) }
}

// TestAskTellsOddAnswersFromAnswers: only a server that has the zone, and answers what it was
// asked, says something.
func TestAskTellsOddAnswersFromAnswers(t *testing.T) {
	z := &zone{name: "example.test.", records: []string{"api.example.test. 30 IN A 192.0.2.1", "api.example.test. 30 IN A 192.0.2.2"}}
	lame := &zone{name: z.name, records: z.records, lame: true}
	for _, tt := range []struct {
		name, record string
		handler      dns.HandlerFunc
		values       []string
		problem      string
	}{
		{"an answer", "api.example.test.", z.serve, []string{"192.0.2.1", "192.0.2.2"}, ""},
		{"no such name", "www.example.test.", z.serve, nil, ""},
		{"failed", "api.example.test.", rcode(dns.RcodeServerFailure), nil, "it answered SERVFAIL"},
		{"refused", "api.example.test.", rcode(dns.RcodeRefused), nil, "it answered REFUSED"},
		{"a code of no use, and no question", "api.example.test.", func(w dns.ResponseWriter, r *dns.Msg) {
			m := new(dns.Msg).SetRcode(r, dns.RcodeFormatError)
			m.Question = nil
			_ = w.WriteMsg(m)
		}, nil, "it answered FORMERR"},
		{"from its cache", "api.example.test.", lame.serve, nil, "it does not serve the zone"},
		{"something else", "api.example.test.", func(w dns.ResponseWriter, r *dns.Msg) {
			m := new(dns.Msg).SetReply(r)
			m.Question[0].Name = "www.example.test."
			_ = w.WriteMsg(m)
		}, nil, "something else"},
		{"nothing", "api.example.test.", func(dns.ResponseWriter, *dns.Msg) {}, nil, "i/o timeout"},
		{"too long for UDP", "api.example.test.", func(w dns.ResponseWriter, r *dns.Msg) {
			if _, udp := w.RemoteAddr().(*net.UDPAddr); !udp {
				z.serve(w, r)
				return
			}
			m := new(dns.Msg).SetReply(r)
			m.Authoritative, m.Truncated = true, true
			_ = w.WriteMsg(m)
		}, []string{"192.0.2.1", "192.0.2.2"}, ""},
		{"lost over UDP", "api.example.test.", func(w dns.ResponseWriter, r *dns.Msg) {
			if _, udp := w.RemoteAddr().(*net.UDPAddr); !udp {
				z.serve(w, r)
			}
		}, []string{"192.0.2.1", "192.0.2.2"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			at := dnstest.Serve(t, "127.0.0.1", dnstest.FreePort(t, "127.0.0.1"), nil, tt.handler)
			c := &Client{Timeout: 300 * time.Millisecond}
			a := c.Ask(t.Context(), []NameServer{{Name: "ns1.example.test.", Addr: at}}, tt.record, v1alpha1.RecordA)[0]
			switch {
			case tt.problem == "" && (a.Err != nil || !slices.Equal(a.Set.Values, tt.values)):
				t.Errorf("%v, %v", a.Set.Values, a.Err)
			case tt.problem != "" && (a.Err == nil || !strings.Contains(a.Err.Error(), tt.problem)):
				t.Errorf("%v, %v", a.Set.Values, a.Err)
			}
		})
	}
}

func TestAskStopsWhenItIsToldTo(t *testing.T) {
	at := dnstest.Serve(t, "127.0.0.1", dnstest.FreePort(t, "127.0.0.1"), nil, func(dns.ResponseWriter, *dns.Msg) {})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	a := (&Client{Timeout: time.Minute}).Ask(ctx, []NameServer{{Addr: at}}, "api.example.test.", v1alpha1.RecordA)[0]
	if a.Err == nil || time.Since(start) > 10*time.Second {
		t.Errorf("%v after %s", a.Err, time.Since(start))
	}
}

// TestReachableForgivesFamilies: of a server with two addresses one is enough, if there is no way
// to the other.
func TestReachableForgivesFamilies(t *testing.T) {
	unreachable := &net.OpError{Op: "dial", Err: &os.SyscallError{Syscall: "connect", Err: syscall.ENETUNREACH}}
	closed := &net.OpError{Op: "dial", Err: &os.SyscallError{Syscall: "connect", Err: syscall.ECONNREFUSED}}
	answer := func(server string, err error) Answer { return Answer{Server: NameServer{Name: server}, Err: err} }
	for _, tt := range []struct {
		name string
		all  []Answer
		left int
	}{
		{"both answer", []Answer{answer("ns1", nil), answer("ns1", nil)}, 2},
		{"no way to one", []Answer{answer("ns1", nil), answer("ns1", unreachable)}, 1},
		{"one is down", []Answer{answer("ns1", nil), answer("ns1", closed)}, 2},
		{"one is down, no way to the other", []Answer{answer("ns1", closed), answer("ns1", unreachable)}, 2},
		{"no way to another server", []Answer{answer("ns1", nil), answer("ns2", unreachable)}, 2},
	} {
		if got := reachable(tt.all); len(got) != tt.left {
			t.Errorf("%s: %d of %d are left", tt.name, len(got), len(tt.all))
		}
	}
}

func TestFind(t *testing.T) {
	z := &zone{name: "example.test.", records: []string{
		"example.test. 60 IN SOA ns1.example.test. root.example.test. 1 1 1 1 1",
		"example.test. 60 IN NS ns1.example.test.",
		"example.test. 60 IN NS ns2.example.test.",
		"ns1.example.test. 60 IN A 192.0.2.53",
		"ns2.example.test. 60 IN A 192.0.2.54",
		"ns2.example.test. 60 IN AAAA 2001:db8::54",
		"api.example.test. 60 IN A 192.0.2.1",
		"www.example.test. 60 IN CNAME lb.example.net.",
	}}
	resolver := dnstest.Serve(t, "127.0.0.1", dnstest.FreePort(t, "127.0.0.1"), nil, func(w dns.ResponseWriter, r *dns.Msg) {
		if q := r.Question[0]; q.Qtype == dns.TypeSOA && q.Name == "www.example.test." {
			m := new(dns.Msg).SetReply(r) // follows the alias, as recursive servers do
			for _, text := range []string{"www.example.test. 60 IN CNAME lb.example.net.", "example.net. 60 IN SOA a. b. 1 1 1 1 1"} {
				rr, err := dns.NewRR(text)
				if err != nil {
					panic(err)
				}
				if rr.Header().Rrtype == dns.TypeSOA {
					m.Ns = append(m.Ns, rr)
				} else {
					m.Answer = append(m.Answer, rr)
				}
			}
			_ = w.WriteMsg(m)
			return
		}
		z.serve(w, r)
	})
	dead := dnstest.Serve(t, "127.0.0.1", dnstest.FreePort(t, "127.0.0.1"), nil, rcode(dns.RcodeServerFailure))
	c := &Client{Recursive: []string{dead, resolver}, Timeout: time.Second}
	want := []string{"192.0.2.53:53", "192.0.2.54:53", "[2001:db8::54]:53"}
	for _, name := range []string{"api.example.test", "www.example.test.", "not.there.example.test."} {
		servers, err := c.Find(t.Context(), name)
		var got []string
		for _, s := range servers {
			got = append(got, s.Addr)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := (&Client{Recursive: []string{dead}}).Find(t.Context(), "api.example.test"); err == nil ||
		!strings.Contains(err.Error(), dead) || !strings.Contains(err.Error(), "SERVFAIL") {
		t.Errorf("with a resolver that fails: %v", err)
	}
}
