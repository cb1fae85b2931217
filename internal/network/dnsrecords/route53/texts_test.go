package route53

import (
	"slices"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

func TestTexts(t *testing.T) {
	s := &service{records: []rrset{
		{
			Name:    "a-api.example.test.",
			Type:    "TXT",
			TTL:     300,
			Records: values(`"heritage=external-dns,external-dns/owner=x"`, `"two " "parts"`),
		},
		{Name: "a-api.example.test.", Type: "TXT", SetIdentifier: "blue", TTL: 300, Records: values(`"of one more"`)},
		{Name: "a-apj.example.test.", Type: "TXT", TTL: 300, Records: values(`"other"`)},
		{Name: `a-\052.example.test.`, Type: "TXT", TTL: 300, Records: values(`"any"`)},
	}}
	z := open(t, s, &dnsrecords.Client{})
	for name, want := range map[string][]string{
		"a-api.example.test":    {"heritage=external-dns,external-dns/owner=x", "two parts", "of one more"},
		"a-*.example.test":      {"any"},
		"aaaa-api.example.test": nil,
	} {
		if got, err := z.Texts(t.Context(), "api.example.test", name); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

// TestWildcard: Route 53 writes the asterisk as a code, and takes it as it is.
func TestWildcard(t *testing.T) {
	s := &service{records: []rrset{{Name: `\052.example.test.`, Type: "A", TTL: 300, Records: values("192.0.2.1")}}}
	z := open(t, s, &dnsrecords.Client{})
	was, err := z.Get(t.Context(), "*.example.test", v1alpha1.RecordA)
	if err != nil || !slices.Equal(was.Values, []string{"192.0.2.1"}) {
		t.Fatalf("got %v, %v", was, err)
	}
	want := was
	want.TTL, want.Values = time.Minute, []string{"198.51.100.1"}
	if err := z.Replace(t.Context(), was, want); err != nil {
		t.Fatal(err)
	}
	if now, err := z.Get(t.Context(), "*.example.test", v1alpha1.RecordA); err != nil || !now.Same(want) || len(s.records) != 1 {
		t.Errorf("it became %v, %v", now, err)
	}
}
