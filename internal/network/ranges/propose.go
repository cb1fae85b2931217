package ranges

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"net/netip"

	"go4.org/netipx"
)

// The prefix lengths to propose: within private address space, and with some addresses.
const (
	widest4, narrowest4 = 9, 30
	widest6, narrowest6 = 33, 126
	// site is how much of a unique local address is its prefix: fd, and 40 random bits (RFC 4193).
	site = 48
)

// ValidSize accepts prefix lengths that can be proposed; up to 32 they are IPv4's.
func ValidSize(bits int) bool {
	return bits >= widest4 && bits <= narrowest4 || bits >= widest6 && bits <= narrowest6
}

// Wish is what ranges are wanted for.
type Wish struct {
	Cluster string
	Use     Use
	// Bits is the prefix length, and IPv6 the family.
	Bits int
	IPv6 bool
	// Seed makes ranges of IPv6 the cluster's own, and the same whenever they are proposed.
	Seed string
}

// Proposal is a wish, and the ranges that are free for it: as many as were asked for, if there are.
type Proposal struct {
	Wish
	Free []netip.Prefix
}

// Propose finds up to count ranges for each wish, apart from taken ones and each other.
func Propose(taken *netipx.IPSet, wishes []Wish, count int) []Proposal {
	all := make([]Proposal, len(wishes))
	for i, w := range wishes {
		all[i].Wish = w
	}
	for n := range count { // in turn, so that each has one before the first has all
		for i := range all {
			p, ok := all[i].next(taken, n)
			if !ok {
				continue
			}
			all[i].Free = append(all[i].Free, p)
			taken = with(taken, p)
		}
	}
	return all
}

func with(set *netipx.IPSet, more ...netip.Prefix) *netipx.IPSet {
	var b netipx.IPSetBuilder
	b.AddSet(set)
	for _, p := range more {
		b.AddPrefix(p)
	}
	sum, err := b.IPSet()
	if err != nil { // only of invalid prefixes, and all of these are made here
		return set
	}
	return sum
}

func (p *Proposal) next(taken *netipx.IPSet, n int) (netip.Prefix, bool) {
	if p.Bits == 0 {
		return netip.Prefix{}, false
	}
	if p.IPv6 {
		return p.local(taken, n)
	}
	return private(taken, p.Bits)
}

// defaults are ranges that Podman, Docker and AWS take by themselves: the last to be proposed.
func defaults() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.88.0.0/16"), netip.MustParsePrefix("172.17.0.0/16"), netip.MustParsePrefix("172.31.0.0/16"),
	}
}

// private is the highest free range of RFC 1918, since networks are numbered from below.
func private(taken *netipx.IPSet, size int) (netip.Prefix, bool) {
	for _, avoid := range []*netipx.IPSet{with(taken, defaults()...), taken} {
		for _, block := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"} {
			if p, ok := highest(netip.MustParsePrefix(block), avoid, size); ok {
				return p, true
			}
		}
	}
	return netip.Prefix{}, false
}

func highest(block netip.Prefix, taken *netipx.IPSet, size int) (netip.Prefix, bool) {
	var b netipx.IPSetBuilder
	b.AddPrefix(block)
	b.RemoveSet(taken)
	free, err := b.IPSet()
	if err != nil {
		return netip.Prefix{}, false
	}
	// These are as wide as possible, so that each free range lies in one of them.
	parts := free.Prefixes()
	for i := len(parts) - 1; i >= 0; i-- {
		if parts[i].Bits() <= size {
			return netip.PrefixFrom(netipx.PrefixLastIP(parts[i]), size).Masked(), true
		}
	}
	return netip.Prefix{}, false
}

// attempts bound the search among 2^40 prefixes, few of which are taken.
const attempts = 1000

// local is the cluster's n-th range of unique local addresses (RFC 4193, 3.2).
func (p *Proposal) local(taken *netipx.IPSet, n int) (netip.Prefix, bool) {
	for try := range attempts {
		text := p.Seed + "\x00" + string(p.Use)
		sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(text), uint64(n*attempts+try))) //nolint:gosec // neither is negative
		var a [16]byte
		a[0] = 0xfd
		copy(a[1:site/8], sum[:])
		if r := netip.PrefixFrom(netip.AddrFrom16(a), p.Bits).Masked(); !taken.OverlapsPrefix(r) {
			return r, true
		}
	}
	return netip.Prefix{}, false
}

// Size is the common prefix length of the ranges of one use and family; zero without any. It is the
// widest one's, or one that holds all parts known from nodes.
func Size(all []Range, use Use, ipv6 bool) int {
	widest, total := 0, uint64(0)
	var parts netipx.IPSetBuilder
	for i := range all {
		r := &all[i]
		if r.Use != use || r.seen() || r.Prefix.Addr().Is6() != ipv6 {
			continue
		}
		if r.PerNode {
			parts.AddPrefix(r.Prefix)
			continue
		}
		if widest == 0 || r.Prefix.Bits() < widest {
			widest = r.Prefix.Bits()
		}
	}
	length := 32
	if ipv6 {
		length = 64 // of which parts of IPv6 are counted: no node has less
	}
	set, err := parts.IPSet()
	if widest > 0 || err != nil {
		return widest
	}
	for _, p := range set.Prefixes() {
		total += 1 << max(0, length-p.Bits())
	}
	if total == 0 {
		return 0
	}
	return length - bits.Len64(total-1)
}
