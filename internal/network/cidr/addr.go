// Package cidr has arithmetic on ranges, and chooses addresses in a Service range.
package cidr

import (
	"fmt"
	"math/big"
	"net/netip"

	"go4.org/netipx"
)

// HostBitsError says that a range was written with bits set behind its mask.
type HostBitsError struct {
	Prefix netip.Prefix
}

func (e *HostBitsError) Error() string {
	return fmt.Sprintf("range %s has host bits set", e.Prefix)
}

// Parse refuses host bits behind the mask, as the API server does.
func Parse(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a range in CIDR form", s)
	}
	if p != p.Masked() {
		return netip.Prefix{}, &HostBitsError{Prefix: p}
	}
	return p, nil
}

// Contains reports whether any of the ranges holds the address.
func Contains(ranges []netip.Prefix, a netip.Addr) bool {
	for _, p := range ranges {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Bounds are the first and last address that the allocator gives out: neither the network's nor the
// IPv4 broadcast address (NewIPAllocator in k8s.io/kubernetes
// pkg/registry/core/service/ipallocator).
func Bounds(p netip.Prefix) (first, last netip.Addr) {
	first = p.Masked().Addr().Next()
	last = netipx.PrefixLastIP(p)
	if last.Is4() {
		last = last.Prev()
	}
	return first, last
}

// Size is how many addresses the allocator can give out of the ranges, counted up to limit.
func Size(ranges []netip.Prefix, limit int) int {
	total := new(big.Int)
	for _, p := range ranges {
		bits := p.Addr().BitLen() - p.Bits()
		n := new(big.Int).Lsh(big.NewInt(1), uint(bits))
		n.Sub(n, big.NewInt(1))
		if p.Addr().Is4() {
			n.Sub(n, big.NewInt(1))
		}
		if n.Sign() > 0 {
			total.Add(total, n)
		}
	}
	if !total.IsInt64() || total.Int64() > int64(limit) {
		return limit
	}
	return int(total.Int64())
}

// Offset is how far an address lies behind the start of its range.
func Offset(p netip.Prefix, a netip.Addr) *big.Int {
	return new(big.Int).Sub(toInt(a), toInt(p.Masked().Addr()))
}

// At is the address at an offset in a range, if the allocator would give it out.
func At(p netip.Prefix, offset *big.Int) (netip.Addr, bool) {
	sum := new(big.Int).Add(toInt(p.Masked().Addr()), offset)
	size := len(p.Addr().AsSlice())
	if sum.Sign() < 0 || sum.BitLen() > size*8 {
		return netip.Addr{}, false
	}
	a, ok := netip.AddrFromSlice(sum.FillBytes(make([]byte, size)))
	if !ok {
		return netip.Addr{}, false
	}
	first, last := Bounds(p)
	if a.Less(first) || last.Less(a) {
		return netip.Addr{}, false
	}
	return a, true
}

func toInt(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }
