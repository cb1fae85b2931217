package dnscutover

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

const (
	// recordType is what --txt-prefix and --txt-suffix may have in the place of the type.
	recordType = "%{record_type}"
	// minSealed is the length of an encrypted empty text: nonce 12, tag 16, gzip 18 bytes
	// (endpoint/crypto.go of external-dns).
	minSealed = 46
)

// Registry reads the owners that external-dns v0.14 to v0.21 writes in TXT records (registry/txt
// and registry/mapper).
type Registry struct {
	// Owners whose records may be changed.
	Owners []string
	// Prefix and Suffix are --txt-prefix and --txt-suffix; plain marks are read as well.
	Prefix, Suffix string
	// Wildcard replaces an asterisk (--txt-wildcard-replacement).
	Wildcard string
}

// TXTMark is what a TXT record says about a record.
type TXTMark struct {
	// At is the name of the TXT record.
	At string
	// Owner is the ID, such as that of --txt-owner-id. Empty, if the mark names none.
	Owner string
	// Resource that wants the record, such as ingress/shop/cart.
	Resource string
	// By is who wrote the mark, external-dns as a rule.
	By string
	// Sealed is true for a mark that cannot be read, because it is encrypted.
	Sealed bool
}

// Parse reads the text of a TXT record. It returns nil for a text that is about something else.
func Parse(text string) *TXTMark {
	text = strings.ReplaceAll(strings.TrimSpace(text), `\"`, `"`)
	text = strings.Trim(text, `"`)
	m := &TXTMark{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case key == "heritage":
			m.By = value
		case strings.HasSuffix(key, "/owner"):
			m.Owner = value
		case strings.HasSuffix(key, "/resource"):
			m.Resource = value
		}
	}
	if m.By == "" {
		return nil
	}
	return m
}

// sealed reports whether external-dns may have encrypted a text: in base64, at typed names only.
func sealed(text string) bool {
	raw, err := base64.StdEncoding.DecodeString(strings.Trim(strings.ReplaceAll(text, `\"`, `"`), `"`))
	return err == nil && len(raw) >= minSealed
}

type at struct {
	name  string
	typed bool
}

// places: the name itself (up to v0.18), type-name, and both with prefix and suffix, in which the
// type may stand. Aliases of Route 53 were once noted as cname-.
func (r Registry) places(name string, typ v1alpha1.RecordType) []at {
	name = strings.TrimSuffix(dns.CanonicalName(name), ".")
	first, rest, _ := strings.Cut(name, ".")
	types := []string{strings.ToLower(string(typ))}
	if typ != v1alpha1.RecordCNAME {
		types = append(types, "cname")
	}
	if r.Wildcard != "" && first == "*" {
		return append(r.places(r.Wildcard+"."+rest, typ), Registry{Prefix: r.Prefix, Suffix: r.Suffix}.places(name, typ)...)
	}
	var all []at
	add := func(prefix, label, suffix string, typed bool) {
		a := at{name: strings.TrimPrefix(strings.ToLower(prefix+label+suffix)+"."+rest, "."), typed: typed}
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	for _, affix := range [][2]string{{"", ""}, {r.Prefix, r.Suffix}} {
		prefix, suffix := affix[0], affix[1]
		add(strings.ReplaceAll(prefix, recordType, ""), first, strings.ReplaceAll(suffix, recordType, ""), false)
		for _, t := range types {
			if strings.Contains(prefix+suffix, recordType) {
				add(strings.ReplaceAll(prefix, recordType, t), first, strings.ReplaceAll(suffix, recordType, t), true)
				continue
			}
			add(prefix, t+"-"+first, suffix, true)
		}
	}
	return all
}

func (r Registry) Marks(ctx context.Context, from dnsrecords.Texter, name string, typ v1alpha1.RecordType) ([]TXTMark, error) {
	var all []TXTMark
	for _, place := range r.places(name, typ) {
		if _, ok := dns.IsDomainName(place.name); !ok {
			continue // longer than names can be, so there is no such record
		}
		texts, err := from.Texts(ctx, name, place.name)
		if err != nil {
			return nil, fmt.Errorf("finding out whose %s is: %w", dnsrecords.Title(name, typ), err)
		}
		for _, t := range texts {
			m := Parse(t)
			if m == nil && place.typed && sealed(t) {
				m = &TXTMark{Sealed: true}
			}
			if m != nil {
				m.At = place.name
				all = append(all, *m)
			}
		}
	}
	return all, nil
}

// Check fails with a *records.Error for a mark of an owner whose records must not change.
func (r Registry) Check(name string, typ v1alpha1.RecordType, marks []TXTMark) error {
	record := dnsrecords.Title(name, typ)
	for _, m := range marks {
		switch {
		case m.Sealed:
			return &dnsrecords.Error{
				Record:  record,
				Problem: "the TXT record " + m.At + " cannot be read: it may be external-dns's, encrypted, so its owner is not known",
				Hint:    "find out who owns it; if it may be changed, have its external-dns write without --txt-encrypt-enabled meanwhile",
			}
		case m.By != "external-dns":
			return &dnsrecords.Error{
				Record: record, Problem: fmt.Sprintf("the TXT record %s says that %q keeps it", m.At, m.By),
				Hint: "have that program change it, or list the name with provider manual",
			}
		case !slices.Contains(r.Owners, m.Owner):
			return &dnsrecords.Error{
				Record:  record,
				Problem: fmt.Sprintf("the TXT record %s says that it belongs to %q of external-dns%s", m.At, m.Owner, wanted(m)),
				Hint: "if it may be changed, stop that external-dns first (scale it to 0), or it puts the record back, " +
					"and write its ID under spec.mirror.redirect.owners",
			}
		}
	}
	return nil
}

func wanted(m TXTMark) string {
	if m.Resource == "" {
		return ""
	}
	return " (for " + m.Resource + ")"
}

// Allowed is the ownership check of records.Move.
func (r Registry) Allowed(provider dnsrecords.Provider, name string, typ v1alpha1.RecordType) func(context.Context) error {
	return func(ctx context.Context) error {
		from, ok := provider.(dnsrecords.Texter)
		if !ok {
			return &dnsrecords.Error{
				Record:  dnsrecords.Title(name, typ),
				Problem: "its provider cannot read TXT records, so its owner is not known",
				Hint:    "use another provider",
			}
		}
		marks, err := r.Marks(ctx, from, name, typ)
		if err != nil {
			return err
		}
		return r.Check(name, typ, marks)
	}
}
