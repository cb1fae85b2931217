package cidr

import (
	"net/netip"

	"go4.org/netipx"
)

// smallest is the longest prefix with an address between the first and, in IPv4, the last.
const smallest4, smallest6 = 30, 126

// Cover is the smallest set of ranges in which every address can belong to a Service: the API
// server excludes the first address, and the last of IPv4 (PrefixContainsIP in k8s.io/kubernetes
// pkg/api/servicecidr/servicecidr.go), so an edge needs a wider range. No range exceeds the one of
// within that contains it, and addresses outside of these are left out.
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
	// Merged neighbours move no address to an edge: each range above is whole inside one of these.
	return set.Prefixes()
}

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
