package dnsrecords

import (
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
)

func TestNewSetHasOneSpelling(t *testing.T) {
	for _, tt := range []struct {
		typ    v1alpha1.RecordType
		values []string
		want   []string // nil: refused
	}{
		{v1alpha1.RecordA, []string{"192.0.2.2", "192.0.2.1", "192.0.2.2"}, []string{"192.0.2.1", "192.0.2.2"}},
		{v1alpha1.RecordA, []string{"2001:db8::1"}, nil},
		{v1alpha1.RecordA, []string{"192.0.2.01"}, nil},
		{v1alpha1.RecordA, []string{"lb.example.com"}, nil},
		{v1alpha1.RecordAAAA, []string{"2001:DB8:0::1"}, []string{"2001:db8::1"}},
		{v1alpha1.RecordAAAA, []string{"192.0.2.1"}, nil},
		{v1alpha1.RecordAAAA, []string{"::ffff:192.0.2.1"}, nil},
		{v1alpha1.RecordAAAA, []string{"fe80::1%eth0"}, nil},
		{v1alpha1.RecordCNAME, []string{"LB.Example.com"}, []string{"lb.example.com."}},
		{v1alpha1.RecordCNAME, []string{"192.0.2.1"}, nil},
		{v1alpha1.RecordCNAME, []string{"lb"}, nil},
		{v1alpha1.RecordCNAME, []string{"a b.example.com"}, nil},
	} {
		s, err := NewSet("API.example.com", tt.typ, time.Minute, tt.values)
		switch {
		case tt.want == nil && err == nil:
			t.Errorf("%s %v is taken as %v", tt.typ, tt.values, s.Values)
		case tt.want != nil && (err != nil || !slices.Equal(s.Values, tt.want) || s.Name != "api.example.com."):
			t.Errorf("%s %v: %v, %v", tt.typ, tt.values, s, err)
		}
	}
}

// TestSetOfReadsWhatSetWrites goes to the wire and back.
func TestSetOfReadsWhatSetWrites(t *testing.T) {
	for _, tt := range []struct {
		typ    v1alpha1.RecordType
		values []string
	}{
		{v1alpha1.RecordA, []string{"192.0.2.1", "192.0.2.2"}},
		{v1alpha1.RecordAAAA, []string{"2001:db8::1", "64:ff9b::c000:201"}},
		{v1alpha1.RecordCNAME, []string{"lb.example.com."}},
	} {
		want, err := NewSet("api.example.com", tt.typ, time.Minute, tt.values)
		if err != nil {
			t.Fatal(err)
		}
		m := &dns.Msg{Answer: want.rrs()}
		wire, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		back := &dns.Msg{}
		if err := back.Unpack(wire); err != nil {
			t.Fatal(err)
		}
		got, err := setOf("api.EXAMPLE.com", tt.typ, back.Answer)
		if err != nil || !got.Same(want) || got.TTL != want.TTL {
			t.Errorf("%v became %v (%v)", want, got, err)
		}
	}
}

func TestSetOfRefusesAnAliasInTheWay(t *testing.T) {
	rr, err := dns.NewRR("api.example.com. 60 IN CNAME lb.example.com.")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := setOf("api.example.com", v1alpha1.RecordA, []dns.RR{rr}); err == nil {
		t.Errorf("taken for %v", s)
	}
}

// FuzzHostname: a name that is taken can be sent, and comes back as it is.
func FuzzHostname(f *testing.F) {
	f.Add("api.example.com")
	f.Add(`a\.b.example.com.`)
	f.Fuzz(func(t *testing.T, name string) {
		if !hostname(name) {
			return
		}
		wire, err := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA).Pack()
		if err != nil {
			t.Fatalf("%q cannot be sent: %v", name, err)
		}
		m := &dns.Msg{}
		if err := m.Unpack(wire); err != nil || m.Question[0].Name != dns.Fqdn(name) {
			t.Fatalf("%q came back as %v, %v", name, m.Question, err)
		}
	})
}
