package cidr

import (
	"net/netip"

	"go4.org/netipx"
)

// smallest is the longest prefix a Service range can usefully have: one with an address between the first, which names
// the network, and the last, which IPv4 keeps for broadcast.
const smallest4, smallest6 = 30, 126

// Cover is a set of ranges, as small as they can be, in which every address can belong to a Service. The API server does
// not count the first address of a range, nor the last of an IPv4 range, as part of it (PrefixContainsIP in
// k8s.io/kubernetes pkg/api/servicecidr/servicecidr.go), so that an address at an edge needs a wider one. No range is
// wider than the one of within that contains it; addresses outside of all of them are left out. The result is sorted and
// does not overlap itself.
func Cover(addresses []netip.Addr, within []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, a := range addresses {
		for _, w := range within {
			if w.Contains(a) {
				b.AddPrefix(narrowest(a, w.Bits()))
				break
			}
		}
	}
	set, err := b.IPSet()
	if err != nil { // only of invalid prefixes, and narrowest makes none
		return nil
	}
	// Neighbours have become one range. That moves no address to an edge: each of the ranges made above is whole inside
	// one of these.
	return set.Prefixes()
}

// narrowest is the longest prefix, but not wider than limit bits, inside which a is neither first nor last.
func narrowest(a netip.Addr, limit int) netip.Prefix {
	bits := smallest4
	if a.Is6() {
		bits = smallest6
	}
	for ; bits > limit; bits-- {
		if p := netip.PrefixFrom(a, bits).Masked(); inside(p, a) {
			return p
		}
	}
	return netip.PrefixFrom(a, limit).Masked()
}

func inside(p netip.Prefix, a netip.Addr) bool {
	first, last := Bounds(p)
	return !a.Less(first) && !last.Less(a)
}
