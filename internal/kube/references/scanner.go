package references

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
)

// Scanner knows what to look for. It is not changed by use, so that many goroutines can share it.
type Scanner struct {
	addresses map[netip.Addr]bool
	from, to  []netip.Prefix
	fromSet   *netipx.IPSet
	toSet     *netipx.IPSet
	// every takes all addresses and ranges for what is looked for.
	every bool
}

// New makes a Scanner for addresses, and for ranges that reach into from without covering to.
func New(from, to []netip.Prefix, addresses []netip.Addr) (*Scanner, error) {
	s := &Scanner{addresses: make(map[netip.Addr]bool, len(addresses)), from: from, to: to}
	for _, a := range addresses {
		s.addresses[a] = true
	}
	var err error
	if s.fromSet, err = set(from); err != nil {
		return nil, err
	}
	s.toSet, err = set(to)
	return s, err
}

func set(all []netip.Prefix) (*netipx.IPSet, error) {
	var b netipx.IPSetBuilder
	for _, p := range all {
		b.AddPrefix(p)
	}
	made, err := b.IPSet()
	if err != nil {
		return nil, fmt.Errorf("ranges %v: %w", all, err)
	}
	return made, nil
}

// InTarget reports whether an address lies in the range the Services move to.
func (s *Scanner) InTarget(a netip.Addr) bool { return s.toSet.Contains(a) }

func (s *Scanner) concerns(p netip.Prefix) bool {
	return s.fromSet.OverlapsPrefix(p) && !coversAll(p, s.to)
}

// coversAll reports whether a range covers those of its family, of which there must be one.
func coversAll(p netip.Prefix, all []netip.Prefix) bool {
	same := ofFamily(p, all)
	for _, o := range same {
		if p.Bits() > o.Bits() || !p.Contains(o.Addr()) {
			return false
		}
	}
	return len(same) > 0
}

func isRange(value string) bool {
	p, err := netip.ParsePrefix(value)
	return err == nil && !p.IsSingleIP()
}

// bypassed reports whether a list without proxy has the new ranges too: whole for an old range, and
// an address of them for an old address.
func (s *Scanner) bypassed(list string, asRange bool) bool {
	return slices.ContainsFunc(strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }), func(text string) bool {
		if p, err := netip.ParsePrefix(text); err == nil {
			return coversAll(p, s.to) || !asRange && s.toSet.OverlapsPrefix(p)
		}
		a, err := netip.ParseAddr(text)
		return err == nil && !asRange && s.toSet.Contains(a)
	})
}

func ofFamily(p netip.Prefix, all []netip.Prefix) []netip.Prefix {
	var same []netip.Prefix
	for _, o := range all {
		if o.Addr().Is4() == p.Addr().Is4() {
			same = append(same, o)
		}
	}
	return same
}
