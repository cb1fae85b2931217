package services

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/network/cidr"
)

// A migration is of one family. A Service's address of the other is kept, though the first patch of
// a hop gives it up and the second asks for it (docs/design/hop.md).

// AddressesOf a Service, one for each of its families, in its own order; none of a headless one.
func AddressesOf(svc *corev1.Service) []netip.Addr {
	texts := svc.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{svc.Spec.ClusterIP}
	}
	return ParseAddresses(texts)
}

// ParseAddresses passes over texts that are no addresses.
func ParseAddresses(texts []string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// Current is the address of a Service in the migration's family; else its first.
func (s Spec) Current(svc *corev1.Service) netip.Addr {
	all := AddressesOf(svc)
	if len(all) == 0 {
		return netip.Addr{}
	}
	for _, r := range slices.Concat(s.To, s.From) {
		for _, a := range all {
			if a.Is4() == r.Addr().Is4() {
				return a
			}
		}
	}
	return all[0]
}

// AddressWithin is that of some addresses which is in one of the ranges; invalid, if none is.
func AddressWithin(all []netip.Addr, ranges []netip.Prefix) netip.Addr {
	i := slices.IndexFunc(all, func(a netip.Addr) bool { return cidr.Contains(ranges, a) })
	if i < 0 {
		return netip.Addr{}
	}
	return all[i]
}

// AddressBeside is the address of the other family than a; invalid, if there is none.
func AddressBeside(all []netip.Addr, a netip.Addr) netip.Addr {
	i := slices.IndexFunc(all, func(other netip.Addr) bool { return other.Is4() != a.Is4() })
	if i < 0 || !a.IsValid() {
		return netip.Addr{}
	}
	return all[i]
}

// moving is an address of the family in which the Service moves.
func (e *Entry) moving() netip.Addr {
	if e.Old.IsValid() {
		return e.Old
	}
	return e.New
}

// Kept is the address of the other family; invalid, if there is none. Between the patches it is the
// one noted where no tenant writes.
func (e *Entry) Kept(svc *corev1.Service) netip.Addr {
	if svc.Spec.Type != corev1.ServiceTypeExternalName {
		return AddressBeside(AddressesOf(svc), e.moving())
	}
	if e.Original == "" {
		return netip.Addr{}
	}
	original, err := e.OriginalSpec(svc)
	if err != nil {
		return netip.Addr{}
	}
	return AddressBeside(ParseAddresses(original.ClusterIPs), e.moving())
}

// OtherFamily is the one in which Services that move keep an address, and nodes have to know
// bridges; empty, if there is none.
func (s *Inventory) OtherFamily() corev1.IPFamily {
	for _, e := range s.All() {
		switch kept := e.Kept(e.Service); {
		case kept.Is4():
			return corev1.IPv4Protocol
		case kept.Is6():
			return corev1.IPv6Protocol
		}
	}
	return ""
}

// SameFamily reports whether one of some ranges is of the family of another.
func SameFamily(ranges []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Addr().Is4() == p.Addr().Is4() })
}

// IsAt reports whether a Service has an address and is at it.
func IsAt(svc *corev1.Service, a netip.Addr) bool {
	return svc.Spec.Type != corev1.ServiceTypeExternalName && slices.Contains(AddressesOf(svc), a)
}

// AddressIn is the address that a Service has in some ranges.
func AddressIn(svc *corev1.Service, ranges []netip.Prefix) (a netip.Addr, in bool) {
	for _, text := range svc.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil && cidr.Contains(ranges, a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// FirstTen names the first few of many.
func FirstTen(all []string) string { return lists.FirstN(all, 10) }

// Allocator manages IPAddresses of Services (ControllerName in k8s.io/kubernetes
// pkg/registry/core/service/ipallocator).
const Allocator = "ipallocator.k8s.io"
