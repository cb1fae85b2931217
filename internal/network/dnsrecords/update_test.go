package dnsrecords

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/dnstest"
)

// TestUpdateNamesWhatStandsInTheWay compares the messages with what RFC 2136 wants, sections 2.4
// and 2.5.
func TestUpdateNamesWhatStandsInTheWay(t *testing.T) {
	d := &Dynamic{Zone: "example.com"}
	const name = "api.example.com.\t"
	for _, tt := range []struct {
		name      string
		was, want RecordSet
		prereq    []string
		update    []string
	}{
		{
			"replace", record(oldOnes[:1], time.Hour), record(newOnes[:1], time.Minute),
			[]string{name + "0\tIN\tA\t192.0.2.1"},
			[]string{name + "0\tANY\tA", name + "60\tIN\tA\t198.51.100.1"},
		},
		{
			"create", record(nil, 0), record(newOnes[:1], time.Minute),
			[]string{name + "0\tNONE\tA", name + "0\tNONE\tCNAME"},
			[]string{name + "60\tIN\tA\t198.51.100.1"},
		},
		{
			"create an alias",
			RecordSet{Name: "api.example.com.", Type: v1alpha1.RecordCNAME},
			RecordSet{Name: "api.example.com.", Type: v1alpha1.RecordCNAME, TTL: time.Minute, Values: []string{"lb.example.com."}},
			[]string{name + "0\tNONE\tANY"},
			[]string{name + "60\tIN\tCNAME\tlb.example.com."},
		},
		{
			"delete", record(oldOnes[:1], time.Hour), record(nil, 0),
			[]string{name + "0\tIN\tA\t192.0.2.1"},
			[]string{name + "0\tANY\tA"},
		},
		{
			"a CNAME becomes an address", cname("old.example.net.", time.Hour), record(newOnes[:1], time.Minute),
			[]string{name + "0\tIN\tCNAME\told.example.net."},
			[]string{name + "0\tANY\tCNAME", name + "60\tIN\tA\t198.51.100.1"},
		},
		{
			"an address becomes a CNAME", record(oldOnes[:1], time.Hour), cname("new.example.net.", time.Minute),
			append([]string{name + "0\tIN\tA\t192.0.2.1"}, noOthers(name)...),
			[]string{name + "0\tANY\tA", name + "60\tIN\tCNAME\tnew.example.net."},
		},
	} {
		m := d.update(tt.was, tt.want)
		for _, section := range []struct {
			name string
			got  []dns.RR
			want []string
		}{{"prerequisites", m.Answer, tt.prereq}, {"changes", m.Ns, tt.update}} {
			var got []string
			for _, rr := range section.got {
				h := rr.Header()
				text := rr.String()
				if _, empty := rr.(*dns.ANY); empty {
					text = h.Name + "\t0\t" + dns.ClassToString[h.Class] + "\t" + dns.TypeToString[h.Rrtype]
				}
				got = append(got, text)
			}
			if strings.Join(got, "\n") != strings.Join(section.want, "\n") {
				t.Errorf("%s: %s are %q, not %q", tt.name, section.name, got, section.want)
			}
		}
		if _, err := m.Pack(); err != nil {
			t.Errorf("%s cannot be sent: %v", tt.name, err)
		}
	}
}

// cname is the record of these tests as a CNAME.
func cname(value string, ttl time.Duration) RecordSet {
	return RecordSet{Name: "api.example.com.", Type: v1alpha1.RecordCNAME, TTL: ttl, Values: []string{value}}
}

// noOthers are prerequisites that there is nothing beside an address.
func noOthers(name string) []string {
	var all []string
	for _, typ := range strings.Fields("AAAA TXT MX NS SRV CAA HTTPS SVCB SSHFP TLSA NAPTR PTR LOC SPF DS") {
		all = append(all, name+"0\tNONE\t"+typ)
	}
	return all
}

// TestDynamicExplains is about primaries that do not do what they are asked to: what cannot pass
// ends a run, with advice; what may pass is tried again.
func TestDynamicExplains(t *testing.T) {
	key, err := NewKey("replumb", "hmac-sha256", secret)
	if err != nil {
		t.Fatal(err)
	}
	unsigned := func(w dns.ResponseWriter, r *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetReply(r)) }
	badKey := func(code uint16) dns.HandlerFunc {
		return func(w dns.ResponseWriter, r *dns.Msg) {
			m := new(dns.Msg).SetRcode(r, dns.RcodeNotAuth)
			m.Extra = append(m.Extra, &dns.TSIG{
				Hdr:       dns.RR_Header{Name: key.name, Rrtype: dns.TypeTSIG, Class: dns.ClassANY},
				Algorithm: key.algorithm, Error: code, OrigId: r.Id,
			})
			out, err := m.Pack() // not WriteMsg, which would sign it
			if err == nil {
				_, _ = w.Write(out)
			}
		}
	}
	for _, tt := range []struct {
		name    string
		handler dns.HandlerFunc
		key     *TSIGKey
		again   bool
		problem string
	}{
		{"no such key", badKey(dns.RcodeBadKey), key, false, "refused key replumb: it answered BADKEY"},
		{"another secret", badKey(dns.RcodeBadSig), key, false, "BADSIG"},
		{"another time", badKey(dns.RcodeBadTime), key, false, "BADTIME"},
		{"an answer that is not signed", unsigned, key, false, "not signed"},
		{"refused", rcode(dns.RcodeRefused), nil, false, "REFUSED"},
		{"not the primary", rcode(dns.RcodeNotAuth), nil, false, "NOTAUTH"},
		{"not in the zone", rcode(dns.RcodeNotZone), nil, false, "NOTZONE"},
		{"no updates", rcode(dns.RcodeNotImplemented), nil, false, "NOTIMP"},
		{"failed", rcode(dns.RcodeServerFailure), nil, true, "SERVFAIL"},
		{"hung up", func(w dns.ResponseWriter, _ *dns.Msg) { _ = w.Close() }, nil, true, "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := dnstest.Serve(t, "127.0.0.1", dnstest.FreePort(t, "127.0.0.1"), nil, tt.handler)
			d := &Dynamic{Server: at, Zone: "example.com", Key: tt.key, Client: &Client{}}
			err := d.Replace(t.Context(), record(oldOnes, time.Hour), record(newOnes, time.Minute))
			if err == nil || !strings.Contains(err.Error(), tt.problem) || !strings.Contains(err.Error(), "A record api.example.com") {
				t.Fatalf("got %v", err)
			}
			var whole *Error
			if engine.Retryable(err) != tt.again || !tt.again && (!errors.As(err, &whole) || whole.Hint == "") {
				t.Errorf("again: %v, hint: %v", engine.Retryable(err), whole)
			}
			if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), secret) {
				t.Errorf("the text is wrong: %v", err)
			}
		})
	}
}

// TestDynamicRefusesForgedAnswers: an answer written without the key counts for nothing.
func TestDynamicRefusesForgedAnswers(t *testing.T) {
	key, err := NewKey("replumb", "hmac-sha256", secret)
	if err != nil {
		t.Fatal(err)
	}
	forge := func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		m.SetTsig(key.name, key.algorithm, 300, time.Now().Unix())
		_ = w.WriteMsg(m)
	}
	at := dnstest.Serve(t, "127.0.0.1", dnstest.FreePort(t, "127.0.0.1"), map[string]string{key.name: "YW5vdGhlciBzZWNyZXQ="}, forge)
	d := &Dynamic{Server: at, Zone: "example.com", Key: key, Client: &Client{}}
	err = d.Replace(t.Context(), record(oldOnes, time.Hour), record(newOnes, time.Minute))
	var whole *Error
	if !errors.As(err, &whole) || whole.Hint == "" {
		t.Errorf("got %v", err)
	}
}

// TestDynamicAsksEveryServer: the primary and those that it names for the zone, of which one is
// slow to follow.
func TestDynamicAsksEveryServer(t *testing.T) {
	zoneRecords := []string{
		"example.test. 60 IN NS ns1.example.test.", "example.test. 60 IN NS ns2.example.test.", "example.test. 60 IN NS ns3.example.test.",
		"ns1.example.test. 60 IN A 127.0.0.1", "ns2.example.test. 60 IN A 127.0.0.2", "ns3.example.test. 60 IN A 127.0.0.3",
	}
	at := func(value string) []string {
		return append([]string{"api.example.test. 30 IN A " + value}, zoneRecords...)
	}
	port := dnstest.FreePort(t, "127.0.0.1", "127.0.0.2", "127.0.0.3")
	primary := dnstest.Serve(t, "127.0.0.1", port, nil, (&zone{name: "example.test.", records: at("192.0.2.2")}).serve)
	dnstest.Serve(t, "127.0.0.2", port, nil, (&zone{name: "example.test.", records: at("192.0.2.2")}).serve)
	slow := &zone{name: "example.test.", records: at("192.0.2.1")}
	dnstest.Serve(t, "127.0.0.3", port, nil, slow.serve)
	d := &Dynamic{Server: primary, Zone: "example.test", Client: &Client{Port: port}}
	answers, err := d.Authoritative(t.Context(), "api.example.test.", v1alpha1.RecordA)
	if err != nil || len(answers) != 3 {
		t.Fatalf("%v, %v", answers, err)
	}
	want := RecordSet{Name: "api.example.test.", Type: v1alpha1.RecordA, TTL: 30 * time.Second, Values: []string{"192.0.2.2"}}
	err = agreed(want, narrow, answers, nil)
	if err == nil || !strings.Contains(err.Error(), "ns3.example.test (127.0.0.3:"+port+") still says 192.0.2.1, not 192.0.2.2") {
		t.Errorf("got %v", err)
	}
	slow.set(at("192.0.2.2")...)
	if answers, err = d.Authoritative(t.Context(), "api.example.test.", v1alpha1.RecordA); err != nil {
		t.Fatal(err)
	}
	if err := agreed(want, narrow, answers, nil); err != nil {
		t.Error(err)
	}
}
