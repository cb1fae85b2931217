package dnsrecords

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/dnstest"
)

// TestManualLooksForItself: the zone and its servers are found by a resolver, and all of them have
// to agree before it is known what is there.
func TestManualLooksForItself(t *testing.T) {
	const typ = v1alpha1.RecordA
	zoneRecords := []string{
		"example.test. 60 IN SOA ns1.example.test. root.example.test. 1 1 1 1 1",
		"example.test. 60 IN NS ns1.example.test.", "example.test. 60 IN NS ns2.example.test.",
		"ns1.example.test. 60 IN A 127.0.0.1", "ns2.example.test. 60 IN A 127.0.0.2",
	}
	at := func(value string) []string {
		return append([]string{"api.example.test. 30 IN A " + value}, zoneRecords...)
	}
	port := dnstest.FreePort(t, "127.0.0.1", "127.0.0.2")
	first := &zone{name: "example.test.", records: at("192.0.2.1")}
	second := &zone{name: "example.test.", records: at("192.0.2.1")}
	resolver := dnstest.Serve(t, "127.0.0.1", port, nil, first.serve)
	dnstest.Serve(t, "127.0.0.2", port, nil, second.serve)
	m := &Manual{Client: &Client{Port: port, Recursive: []string{resolver}, Timeout: time.Second}}

	now, err := m.Get(t.Context(), "api.example.test", typ)
	if err != nil || list(now.Values) != "192.0.2.1" || now.TTL != 30*time.Second {
		t.Fatalf("%s, %v", describe(now), err)
	}
	want := now
	want.Values = []string{"192.0.2.2"}
	if err := m.Replace(t.Context(), now, want); !engine.Retryable(err) {
		t.Errorf("it does not wait: %v", err)
	}
	if guide := m.Guide(now, want); !strings.Contains(guide, "A record api.example.test") || !strings.Contains(guide, "192.0.2.2") {
		t.Errorf("people are told: %s", guide)
	}
	if guide := m.Guide(now, RecordSet{Name: now.Name, Type: now.Type}); !strings.Contains(guide, "delete it") {
		t.Errorf("people are told: %s", guide)
	}

	first.set(at("192.0.2.2")...)
	if _, err := m.Get(t.Context(), "api.example.test", typ); !engine.Retryable(err) || !strings.Contains(err.Error(), "ns2.example.test") {
		t.Errorf("while they differ: %v", err)
	}
	second.set(at("192.0.2.2")...)
	if now, err := m.Get(t.Context(), "api.example.test", typ); err != nil || !now.Same(want) {
		t.Errorf("%s, %v", describe(now), err)
	}

	first.set(append(at("192.0.2.2"), `a-api.example.test. 60 IN TXT "one " "text"`)...)
	if texts, err := m.Texts(
		t.Context(),
		"api.example.test",
		"a-api.example.test",
	); err != nil ||
		!slices.Equal(texts, []string{"one text"}) {
		t.Errorf("of two servers one has a text, and together they say %q (%v)", texts, err)
	}
	if texts, err := m.Texts(t.Context(), "api.example.test", "a-api.example.org"); err != nil || len(texts) > 0 {
		t.Errorf("another zone says %q (%v)", texts, err)
	}
	second.lose()
	if _, err := m.Texts(t.Context(), "api.example.test", "a-api.example.test"); !engine.Retryable(err) {
		t.Errorf("texts with a server that is lame: %v", err)
	}
	if _, err := m.Get(
		t.Context(),
		"api.example.test",
		typ,
	); !engine.Retryable(err) ||
		!strings.Contains(err.Error(), "does not serve the zone") {
		t.Errorf("with a server that is lame: %v", err)
	}
	m.Client = &Client{Recursive: []string{dnstest.Serve(t, "127.0.0.1", dnstest.FreePort(t, "127.0.0.1"), nil, rcode(dns.RcodeRefused))}}
	if _, err := m.Get(t.Context(), "api.example.test", typ); !engine.Retryable(err) || !strings.Contains(err.Error(), "REFUSED") {
		t.Errorf("without a resolver: %v", err)
	}
}

// TestNothingToAsk: what a private zone's API says is not what clients are told.
func TestNothingToAsk(t *testing.T) {
	w := newWorld(t, 1, oldOnes, time.Minute)
	m := w.move(nil)
	m.provider = unseen{w}
	var whole *Error
	if err := w.drive(m.Lower()); !errors.As(err, &whole) || !strings.Contains(whole.Hint, "resolvers") {
		t.Errorf("got %v", err)
	}
}

// unseen is a provider whose servers cannot be asked.
type unseen struct{ *world }

func (u unseen) Authoritative(context.Context, string, v1alpha1.RecordType) ([]Answer, error) {
	return []Answer{{Server: NameServer{Name: "its API"}, Set: u.primary}}, nil
}
