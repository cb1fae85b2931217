package servicecidr

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/network/cidr"
)

// A migration is of one family. A Service may have an address of each: then the one moves, and the other is kept. It too is given up by the
// first patch of a hop, and asked for by the second. See docs/design/hop.md.

// addressesOf a Service, one for each of its families, in its own order; none of a headless one.
func addressesOf(svc *corev1.Service) []netip.Addr {
	texts := svc.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{svc.Spec.ClusterIP}
	}
	return parsed(texts)
}

func parsed(texts []string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// current is the address of a Service in the family of the migration; its first, if it has none of that family.
func (s Spec) current(svc *corev1.Service) netip.Addr {
	all := addressesOf(svc)
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

// among is that of some addresses which is in one of the ranges; invalid, if none is.
func among(all []netip.Addr, ranges []netip.Prefix) netip.Addr {
	i := slices.IndexFunc(all, func(a netip.Addr) bool { return cidr.Contains(ranges, a) })
	if i < 0 {
		return netip.Addr{}
	}
	return all[i]
}

// besides is that of some addresses which is of the other family than a; invalid, if there is none.
func besides(all []netip.Addr, a netip.Addr) netip.Addr {
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

// kept is the address of the other family, which the Service keeps; invalid, if it has none. Between its patches a Service has no address:
// then it is the one that was noted where no tenant writes.
func (e *Entry) kept(svc *corev1.Service) netip.Addr {
	if svc.Spec.Type != corev1.ServiceTypeExternalName {
		return besides(addressesOf(svc), e.moving())
	}
	if e.leaving == "" {
		return netip.Addr{}
	}
	original, err := e.original(svc)
	if err != nil {
		return netip.Addr{}
	}
	return besides(parsed(original.ClusterIPs), e.moving())
}

// arrivesAt are the addresses of a Service that arrives at one, in the order of its families.
func arrivesAt(dest netip.Addr, original *corev1.ServiceSpec) []string {
	all := parsed(original.ClusterIPs)
	kept := besides(all, dest)
	switch {
	case !kept.IsValid():
		return []string{dest.String()}
	case all[0] == kept:
		return []string{kept.String(), dest.String()}
	}
	return []string{dest.String(), kept.String()}
}

// otherFamily is the one in which Services that move keep an address; empty, if none does. Nodes have to know bridges in it, too.
func (s *Survey) otherFamily() corev1.IPFamily {
	for _, e := range s.everything() {
		switch kept := e.kept(e.Service); {
		case kept.Is4():
			return corev1.IPv4Protocol
		case kept.Is6():
			return corev1.IPv6Protocol
		}
	}
	return ""
}

// sameFamily reports whether one of some ranges is of the family of another.
func sameFamily(ranges []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Addr().Is4() == p.Addr().Is4() })
}
