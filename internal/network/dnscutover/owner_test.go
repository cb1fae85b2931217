package dnscutover

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

// said is the TXT records of a zone.
type said map[string][]string

func (s said) Texts(_ context.Context, _, name string) ([]string, error) {
	if s == nil {
		return nil, errors.New("no answer")
	}
	return s[name], nil
}

const ours = "heritage=external-dns,external-dns/owner=ours,external-dns/resource=ingress/shop/cart"

func TestOwners(t *testing.T) {
	theirs := strings.Replace(ours, "ours", "theirs", 1)
	sealedText := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 80)))
	for _, tt := range []struct {
		name     string
		registry Registry
		record   string
		typ      v1alpha1.RecordType
		texts    said
		problem  string
	}{
		{name: "without an owner", texts: said{}},
		{name: "ours, new format", texts: said{"a-shop.example.com": {ours}}},
		{name: "ours, old format and quoted", texts: said{"shop.example.com": {`"` + ours + `"`}}},
		{name: "ours, quoted as miekg/dns does", texts: said{"shop.example.com": {`\"` + ours + `\"`}}},
		{name: "theirs, new format", texts: said{"a-shop.example.com": {theirs}}, problem: `a-shop.example.com says that it belongs to "theirs"`},
		{name: "theirs, old format", texts: said{"shop.example.com": {theirs}}, problem: "(for ingress/shop/cart)"},
		{name: "ours in one, theirs in the other", texts: said{"a-shop.example.com": {ours}, "shop.example.com": {theirs}}, problem: "theirs"},
		{name: "no owner at all", texts: said{"shop.example.com": {"heritage=external-dns"}}, problem: `belongs to ""`},
		{name: "an alias of Route 53", texts: said{"cname-shop.example.com": {theirs}}, problem: "cname-shop.example.com"},
		{name: "another type", texts: said{"aaaa-shop.example.com": {theirs}}},
		{name: "that type", typ: v1alpha1.RecordAAAA, texts: said{"aaaa-shop.example.com": {theirs}}, problem: "aaaa-shop"},
		{name: "CNAME", typ: v1alpha1.RecordCNAME, texts: said{"cname-shop.example.com": {theirs}}, problem: "cname-shop"},
		{name: "something else", texts: said{"shop.example.com": {"v=spf1 -all", "google-site-verification=x"}}},
		{name: "another program's", texts: said{"shop.example.com": {"heritage=mate,mate/owner=ours"}}, problem: `says that "mate" keeps it`},
		{name: "encrypted", texts: said{"a-shop.example.com": {sealedText}}, problem: "cannot be read"},
		{name: "base64 at the name itself", texts: said{"shop.example.com": {sealedText}}},
		{name: "among others", texts: said{"shop.example.com": {"v=spf1 -all", theirs}}, problem: "theirs"},
		{
			name: "prefix", registry: Registry{Prefix: "xdns-"},
			texts: said{"xdns-a-shop.example.com": {theirs}}, problem: "xdns-a-shop.example.com",
		},
		{name: "prefix, old format", registry: Registry{Prefix: "xdns."}, texts: said{"xdns.shop.example.com": {theirs}}, problem: "xdns.shop"},
		{name: "prefix, and one without", registry: Registry{Prefix: "xdns."}, texts: said{"a-shop.example.com": {theirs}}, problem: " a-shop"},
		{
			name: "type in the prefix", registry: Registry{Prefix: "%{record_type}-X."},
			texts: said{"a-x.shop.example.com": {theirs}}, problem: "a-x.shop.example.com",
		},
		{
			name: "type in the suffix", registry: Registry{Suffix: "-%{record_type}"},
			texts: said{"shop-a.example.com": {theirs}}, problem: "shop-a.example.com",
		},
		{name: "suffix", registry: Registry{Suffix: "-txt"}, texts: said{"a-shop-txt.example.com": {theirs}}, problem: "a-shop-txt"},
		{
			name: "wildcard", record: "*.example.com",
			texts: said{"a-*.example.com": {theirs}}, problem: "a-*.example.com",
		},
		{
			name: "wildcard, replaced", record: "*.example.com", registry: Registry{Wildcard: "any"},
			texts: said{"a-any.example.com": {theirs}}, problem: "a-any.example.com",
		},
		{name: "no answer", texts: nil, problem: "finding out whose A record shop.example.com is: no answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name, typ := "shop.example.com", v1alpha1.RecordA
			if tt.record != "" {
				name = tt.record
			}
			if tt.typ != "" {
				typ = tt.typ
			}
			tt.registry.Owners = []string{"ours"}
			marks, err := tt.registry.Marks(t.Context(), tt.texts, name, typ)
			if err == nil {
				err = tt.registry.Check(name, typ, marks)
				var whole *dnsrecords.Error
				if err != nil && (!errors.As(err, &whole) || whole.Hint == "") {
					t.Errorf("%#v has no hint", err)
				}
			}
			if tt.problem == "" && err != nil || tt.problem != "" && (err == nil || !strings.Contains(err.Error(), tt.problem)) {
				t.Errorf("got %v, not %q", err, tt.problem)
			}
		})
	}
}

// TestNamesOfTXTRecords are as external-dns's own mapper makes them.
func TestNamesOfTXTRecords(t *testing.T) {
	var got []string
	for _, place := range (Registry{Prefix: "p-%{record_type}."}).places("example.com.", v1alpha1.RecordA) {
		got = append(got, place.name)
	}
	want := []string{"example.com", "a-example.com", "cname-example.com", "p-.example.com", "p-a.example.com", "p-cname.example.com"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, not %v", got, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(ours)
	f.Add(`"heritage=external-dns"`)
	f.Add("v=spf1 -all")
	f.Fuzz(func(t *testing.T, text string) {
		m := Parse(text)
		if m != nil && !strings.Contains(text, "heritage") {
			t.Errorf("%q is taken for %+v", text, m)
		}
		if m == nil && strings.HasPrefix(text, "heritage=external-dns,") {
			t.Errorf("%q is not known", text)
		}
	})
}
