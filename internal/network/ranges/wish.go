package ranges

import "slices"

// Sizes are the prefix lengths that are asked for instead of those that a cluster has.
type Sizes struct {
	Services, Pods []int
}

func (s Sizes) of(use Use, ipv6 bool) int {
	all := s.Services
	if use == Pods {
		all = s.Pods
	}
	if i := slices.IndexFunc(all, func(bits int) bool { return IPv6Size(bits) == ipv6 }); i >= 0 {
		return all[i]
	}
	return 0
}

// IPv6Size reports whether a prefix length is taken for one of IPv6.
func IPv6Size(bits int) bool { return bits >= widest6 }

// Wishes are the ranges to propose for a cluster's Services and pods, by family; Bits is zero for
// an unknown size.
func Wishes(cluster, seed string, all []Range, sizes Sizes) (wishes []Wish) {
	for _, use := range []Use{Services, Pods} {
		for _, ipv6 := range []bool{false, true} {
			has := slices.ContainsFunc(all, func(r Range) bool {
				return r.Cluster == cluster && (r.Use == Services || r.Use == Pods) && r.Prefix.Addr().Is6() == ipv6
			})
			asked := sizes.of(use, ipv6)
			if !has && asked == 0 {
				continue
			}
			w := Wish{Cluster: cluster, Use: use, Bits: asked, IPv6: ipv6, Seed: seed}
			if asked == 0 {
				own := slices.DeleteFunc(slices.Clone(all), func(r Range) bool { return r.Cluster != cluster })
				w.Bits = fitting(Size(own, use, ipv6), ipv6)
			}
			wishes = append(wishes, w)
		}
	}
	return wishes
}

func fitting(bits int, ipv6 bool) int {
	switch {
	case bits == 0:
		return 0
	case ipv6:
		return min(max(bits, widest6), narrowest6)
	}
	return min(max(bits, widest4), narrowest4)
}
