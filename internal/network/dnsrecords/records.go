// Package dnsrecords changes DNS records without losing an answer: the TTL goes down, new values
// join the old ones, and these go once every server has both. Unknown values stay.
package dnsrecords

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
)

// RecordSet is all records of one name and type. Without values there is none.
type RecordSet struct {
	Name   string
	Type   v1alpha1.RecordType
	TTL    time.Duration
	Values []string
}

// NewSet normalizes: sorted, short addresses, names in lower case with a final dot.
func NewSet(name string, typ v1alpha1.RecordType, ttl time.Duration, values []string) (RecordSet, error) {
	s := RecordSet{Name: dns.CanonicalName(name), Type: typ, TTL: ttl}
	for _, v := range values {
		value, err := canonical(typ, v)
		if err != nil {
			return RecordSet{}, err
		}
		s.Values = append(s.Values, value)
	}
	slices.Sort(s.Values)
	s.Values = slices.Compact(s.Values)
	return s, nil
}

func canonical(typ v1alpha1.RecordType, value string) (string, error) {
	if IsAlias(value) {
		a, err := ParseAlias(value)
		if err == nil && typ == v1alpha1.RecordCNAME {
			err = fmt.Errorf("%q is an alias, and a CNAME has a name", value)
		}
		return a.String(), err
	}
	if typ == v1alpha1.RecordCNAME {
		if _, err := netip.ParseAddr(strings.TrimSuffix(value, ".")); err == nil {
			return "", fmt.Errorf("%q is an address and no name", value)
		}
		if !hostname(value) {
			return "", fmt.Errorf("%q is not a name in full", value)
		}
		return dns.CanonicalName(value), nil
	}
	a, err := netip.ParseAddr(value)
	switch {
	case err != nil || a.Zone() != "":
		return "", fmt.Errorf("%q is not an address", value)
	case typ == v1alpha1.RecordA && !a.Is4():
		return "", fmt.Errorf("%q is not an IPv4 address", value)
	case typ == v1alpha1.RecordAAAA && (!a.Is6() || a.Is4In6()):
		return "", fmt.Errorf("%q is not an IPv6 address", value)
	}
	return a.String(), nil
}

// hostname allows two or more labels of letters, digits, hyphens and underscores, which all formats
// write alike.
func hostname(name string) bool {
	name = strings.TrimSuffix(name, ".")
	labels := strings.Split(name, ".")
	if len(labels) < 2 || len(name) > 253 {
		return false
	}
	return !slices.ContainsFunc(labels, func(l string) bool {
		return l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' || strings.Trim(l, labelCharacters) != ""
	})
}

const labelCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// Same reports whether both have the same values, whatever their time to live.
func (s RecordSet) Same(other RecordSet) bool { return slices.Equal(s.Values, other.Values) }
func (s RecordSet) String() string            { return Title(s.Name, s.Type) }

// Title is how people read about a record.
func Title(name string, typ v1alpha1.RecordType) string {
	return string(typ) + " record " + strings.TrimSuffix(name, ".")
}

func list(values []string) string {
	if len(values) == 0 {
		return "nothing"
	}
	return strings.Join(values, ", ")
}

func both(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// kind is the type of a record with such values: CNAME for a name, else the one type with
// addresses.
func kind(values []string, own v1alpha1.RecordType, others ...v1alpha1.RecordType) v1alpha1.RecordType {
	if len(values) == 0 {
		return own
	}
	name := strings.HasSuffix(values[0], ".") && !IsAlias(values[0])
	for _, typ := range append([]v1alpha1.RecordType{own}, others...) {
		if name == (typ == v1alpha1.RecordCNAME) {
			return typ
		}
	}
	return own
}

func without(values []string, others ...string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(v string) bool { return slices.Contains(others, v) })
}

// seconds of a TTL have 31 bits (RFC 2181, section 8).
func seconds(d time.Duration) uint32 { return uint32(wholeSeconds(d)) } //nolint:gosec // it is not negative

func wholeSeconds(d time.Duration) int32 {
	return int32(min(max(d/time.Second, 0), math.MaxInt32))
}

func (s RecordSet) rrs() []dns.RR {
	var all []dns.RR
	for _, v := range s.Values {
		h := dns.RR_Header{Name: s.Name, Rrtype: s.rrtype(), Class: dns.ClassINET, Ttl: seconds(s.TTL)}
		switch s.Type {
		case v1alpha1.RecordA:
			all = append(all, &dns.A{Hdr: h, A: netip.MustParseAddr(v).AsSlice()})
		case v1alpha1.RecordAAAA:
			all = append(all, &dns.AAAA{Hdr: h, AAAA: netip.MustParseAddr(v).AsSlice()})
		case v1alpha1.RecordCNAME:
			all = append(all, &dns.CNAME{Hdr: h, Target: v})
		}
	}
	return all
}

func (s RecordSet) rrtype() uint16 { return rrtype(s.Type) }

func rrtype(typ v1alpha1.RecordType) uint16 { return dns.StringToType[string(typ)] }

// setOf reads an answer; of several TTLs the longest counts.
func setOf(name string, typ v1alpha1.RecordType, answer []dns.RR) (RecordSet, error) {
	var values []string
	var ttl uint32
	for _, rr := range answer {
		h := rr.Header()
		if dns.CanonicalName(h.Name) != dns.CanonicalName(name) || h.Class != dns.ClassINET {
			continue
		}
		if h.Rrtype == dns.TypeCNAME && typ != v1alpha1.RecordCNAME {
			return RecordSet{}, &Error{
				Record: Title(name, typ), Problem: "the name is a CNAME of " + rr.(*dns.CNAME).Target,
				Hint: "move the CNAME, or the name that it leads to; write fromType: CNAME to have it become a record of another type",
			}
		}
		if h.Rrtype != rrtype(typ) {
			continue
		}
		ttl = max(ttl, h.Ttl)
		switch r := rr.(type) {
		case *dns.A:
			values = append(values, r.A.String())
		case *dns.AAAA:
			values = append(values, aaaa(r))
		case *dns.CNAME:
			values = append(values, r.Target)
		}
	}
	return NewSet(name, typ, time.Duration(ttl)*time.Second, values)
}

// textsOf joins the strings of each record (RFC 7208, section 3.3).
func textsOf(name string, answer []dns.RR) []string {
	var all []string
	for _, rr := range answer {
		if t, ok := rr.(*dns.TXT); ok && dns.CanonicalName(t.Hdr.Name) == dns.CanonicalName(name) {
			all = append(all, strings.Join(t.Txt, ""))
		}
	}
	return all
}

// aaaa keeps IPv4-mapped addresses, which net.IP prints as IPv4.
func aaaa(r *dns.AAAA) string {
	a, ok := netip.AddrFromSlice(r.AAAA)
	if !ok {
		return r.AAAA.String()
	}
	return a.String()
}

// Nameable accepts full names, with or without a final dot, and wildcards.
func Nameable(name string) bool { return hostname(strings.TrimPrefix(name, "*.")) }
