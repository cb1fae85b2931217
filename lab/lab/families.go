package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Family is one of the two kinds of addresses.
type Family string

// The families.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// FamilyOf is that of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// ParseFamilies reads "IPv4", "IPv6", "IPv4,IPv6" or "IPv6,IPv4": the first is that of nodes, control planes and cluster DNS.
func ParseFamilies(s string) ([]Family, error) {
	families := []Family{}
	for text := range strings.SplitSeq(s, ",") {
		f := Family(strings.TrimSpace(text))
		if (f != IPv4 && f != IPv6) || slices.Contains(families, f) {
			return nil, &InvalidError{"ip-families", fmt.Sprintf("%q are no families", s), "use IPv4, IPv6, IPv4,IPv6 or IPv6,IPv4"}
		}
		families = append(families, f)
	}
	return families, nil
}

// defaultRanges of a family.
func defaultRanges(f Family) (services, pods, network netip.Prefix) {
	if f == IPv6 {
		return netip.MustParsePrefix(
				"fd00:10:96::/112",
			), netip.MustParsePrefix(
				"fd00:10:244::/56",
			), netip.MustParsePrefix(
				"fd00:172:30::/64",
			)
	}
	return netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("172.30.0.0/24")
}

// InFamilies is the topology with the ranges that labs of those families have by default.
func (t Topology) InFamilies(families ...Family) Topology {
	network := Network{Name: "a"}
	t.ServiceCIDR, t.PodCIDR, network.CIDR = defaultRanges(families[0])
	t.SecondServiceCIDR, t.SecondPodCIDR = netip.Prefix{}, netip.Prefix{}
	if len(families) > 1 {
		t.SecondServiceCIDR, t.SecondPodCIDR, network.Second = defaultRanges(families[1])
	}
	t.Networks = []Network{network}
	return t
}

// Families of the lab, the first one first.
func (t Topology) Families() []Family {
	var all []Family
	for _, p := range t.ServiceCIDRs() {
		all = append(all, FamilyOf(p.Addr()))
	}
	return all
}

// ServiceCIDRs are the ranges of Services, one for each family.
func (t Topology) ServiceCIDRs() []netip.Prefix { return valid(t.ServiceCIDR, t.SecondServiceCIDR) }

// PodCIDRs are the ranges of pods, one for each family.
func (t Topology) PodCIDRs() []netip.Prefix { return valid(t.PodCIDR, t.SecondPodCIDR) }

func (n Network) cidrs() []netip.Prefix { return valid(n.CIDR, n.Second) }

func valid(all ...netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return !p.IsValid() })
}

// addresses of a member, one for each family.
func (m *Member) addresses() []netip.Addr {
	return slices.DeleteFunc([]netip.Addr{m.Address, m.Second}, func(a netip.Addr) bool { return !a.IsValid() })
}

// commas joins what programs take as one list.
func commas[T fmt.Stringer](all []T) string {
	var texts []string
	for _, one := range all {
		texts = append(texts, one.String())
	}
	return strings.Join(texts, ",")
}

// unspecified is the address by which a program of that family listens at all addresses.
func (f Family) unspecified() netip.Addr {
	if f == IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// everywhere is the range of all addresses of the family.
func (f Family) everywhere() netip.Prefix { return netip.PrefixFrom(f.unspecified(), 0) }

// validateFamilies checks that everything has addresses of the same families, and that the lab does with IPv6 what it is asked for.
func (t Topology) validateFamilies() error {
	same := func(field string, all []netip.Prefix) error {
		for i, f := range t.Families() {
			if i >= len(all) || FamilyOf(all[i].Addr()) != f || len(all) != len(t.Families()) {
				return &InvalidError{
					field, fmt.Sprintf("%s is not of the families of service-cidr %s", commas(all), commas(t.ServiceCIDRs())),
					"name one range for each of --ip-families, in that order",
				}
			}
		}
		return nil
	}
	if t.SecondServiceCIDR.IsValid() && FamilyOf(t.SecondServiceCIDR.Addr()) == FamilyOf(t.ServiceCIDR.Addr()) {
		return &InvalidError{"service-cidr", commas(t.ServiceCIDRs()) + " are of one family", "name one range for each of --ip-families"}
	}
	err := same("pod-cidr", t.PodCIDRs())
	for _, n := range t.Networks {
		err = cmp.Or(err, same("networks", n.cidrs()))
	}
	if err != nil || !slices.Contains(t.Families(), IPv6) {
		return err
	}
	for _, o := range []struct {
		field string
		asked bool
	}{
		{"cni", t.CNI != HostLocal},
		{"edge", t.Edge},
		{"fabric", t.Fabric != ""},
		{"with", len(t.With) > 0},
	} {
		if o.asked {
			return &InvalidError{o.field, "labs do not do that with IPv6", "leave it away, or use --ip-families IPv4"}
		}
	}
	return nil
}
