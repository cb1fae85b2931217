package nodeipam

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
)

// Range is the IPv4 range in a Node's spec; the zero one, if it has none.
func Range(podCIDRs []string) netip.Prefix {
	for _, text := range podCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is4() {
			return p
		}
	}
	return netip.Prefix{}
}

// PodCIDRs are the ranges in a Node's spec.
func PodCIDRs(n *corev1.Node) []string {
	if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		return []string{n.Spec.PodCIDR}
	}
	return n.Spec.PodCIDRs
}

// With replaces the IPv4 range of a Node, and keeps the others and the order, since the first is
// spec.podCIDR.
func With(podCIDRs []string, p netip.Prefix) []string {
	out := slices.Clone(podCIDRs)
	for i, text := range out {
		if old, err := netip.ParsePrefix(text); err == nil && old.Addr().Is4() {
			out[i] = p.String()
			return out
		}
	}
	return append([]string{p.String()}, out...)
}

// RangeHolder is a node and the range it has; the zero one, if it has none.
type RangeHolder struct {
	Name string
	Has  netip.Prefix
}

// Within reports whether one range lies in another.
func Within(outer, inner netip.Prefix) bool {
	return inner.IsValid() && outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// Allocate gives each node a range of so many bits in to, and keeps one there. Others keep their
// place in their range (the seventh node of 10.244.0.0/16 gets the seventh range) if it is free,
// else take the lowest free one. It depends on nodes alone, so that a resumed run finds the same.
func Allocate(nodes []RangeHolder, from []netip.Prefix, to netip.Prefix, bits int) (map[string]netip.Prefix, error) {
	return allocate(nodes, to, bits,
		func(n RangeHolder, taken *netipx.IPSetBuilder) (netip.Prefix, bool) {
			p, ok := samePlace(n.Has, from, to, bits)
			return p, ok && free(taken, p)
		},
		func(_ RangeHolder, taken *netipx.IPSetBuilder) (netip.Prefix, bool) {
			rest := spare(taken, to, bits)
			if len(rest) == 0 {
				return netip.Prefix{}, false
			}
			return netip.PrefixFrom(rest[0].Addr(), bits), true
		},
	)
}

// AllocateLast is Allocate from the end of to: where somebody else gives nodes further ranges from
// its beginning.
func AllocateLast(nodes []RangeHolder, to netip.Prefix, bits int) (map[string]netip.Prefix, error) {
	return allocate(nodes, to, bits, func(_ RangeHolder, taken *netipx.IPSetBuilder) (netip.Prefix, bool) {
		rest := spare(taken, to, bits)
		if len(rest) == 0 {
			return netip.Prefix{}, false
		}
		return netip.PrefixFrom(netipx.RangeOfPrefix(rest[len(rest)-1]).To(), bits).Masked(), true
	})
}

// allocate gives all nodes a range by the first choice, before it gives any by the next one.
func allocate(
	nodes []RangeHolder,
	to netip.Prefix,
	bits int,
	choices ...func(RangeHolder, *netipx.IPSetBuilder) (netip.Prefix, bool),
) (map[string]netip.Prefix, error) {
	if bits < to.Bits() {
		return nil, fmt.Errorf("a range of /%d for each node is larger than %s", bits, to)
	}
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b RangeHolder) int { return strings.Compare(a.Name, b.Name) })
	given := map[string]netip.Prefix{}
	var taken netipx.IPSetBuilder
	has := func(n RangeHolder, _ *netipx.IPSetBuilder) (netip.Prefix, bool) { return n.Has, Within(to, n.Has) }
	for _, choose := range slices.Insert(choices, 0, has) {
		for _, n := range nodes {
			if _, ok := given[n.Name]; ok {
				continue
			}
			if p, ok := choose(n, &taken); ok {
				given[n.Name] = p
				taken.AddPrefix(p)
			}
		}
	}
	for _, n := range nodes {
		if _, ok := given[n.Name]; !ok {
			return nil, fmt.Errorf("%s has no range of /%d left for node %s", to, bits, n.Name)
		}
	}
	return given, nil
}

// samePlace is the range in to that is as manieth as has is in the one of from that it lies in.
func samePlace(has netip.Prefix, from []netip.Prefix, to netip.Prefix, bits int) (netip.Prefix, bool) {
	i := slices.IndexFunc(from, func(f netip.Prefix) bool { return Within(f, has) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	place := new(big.Int).Sub(number(has.Addr()), number(from[i].Addr()))
	place.Rsh(place, uint(has.Addr().BitLen()-has.Bits()))
	return nth(to, bits, place)
}

// nth is the n-th range of so many bits in to, from zero.
func nth(to netip.Prefix, bits int, n *big.Int) (netip.Prefix, bool) {
	if n.BitLen() > bits-to.Bits() {
		return netip.Prefix{}, false
	}
	at := new(big.Int).Lsh(n, uint(to.Addr().BitLen()-bits))
	at.Add(at, number(to.Masked().Addr()))
	a, ok := netip.AddrFromSlice(at.FillBytes(make([]byte, to.Addr().BitLen()/8)))
	return netip.PrefixFrom(a, bits), ok
}

func number(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }

func free(taken *netipx.IPSetBuilder, p netip.Prefix) bool {
	set, err := taken.IPSet()
	return err == nil && !set.OverlapsPrefix(p)
}

// spare is what is left of to, in order, as far as a range of so many bits fits.
func spare(taken *netipx.IPSetBuilder, to netip.Prefix, bits int) []netip.Prefix {
	set, err := taken.IPSet()
	if err != nil {
		return nil
	}
	var left netipx.IPSetBuilder
	left.AddPrefix(to)
	left.RemoveSet(set)
	rest, err := left.IPSet()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(rest.Prefixes(), func(r netip.Prefix) bool { return r.Bits() > bits })
}

// Cover is the smallest range that holds all of them.
func Cover(all []netip.Prefix) netip.Prefix {
	var cover netip.Prefix
	for _, p := range all {
		if !cover.IsValid() {
			cover = p.Masked()
		}
		for !Within(cover, p) {
			cover = netip.PrefixFrom(cover.Addr(), cover.Bits()-1).Masked()
		}
	}
	return cover
}
