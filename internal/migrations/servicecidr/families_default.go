package servicecidr

import (
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// The default ServiceCIDR of a cluster of both families has a range of each, since API servers make it from a flag that names both. No range can be
// taken out of a ServiceCIDR: the whole of it goes, and the range of the other family, in which all Services stay, is kept by one of its own until
// the API servers have made the next one. See docs/design/retire.md.

// keepOf is in the name of a ServiceCIDR that keeps the range of the other family, before the name of the one it was in.
const keepOf = "-keep-of-"

// leaving are the ranges of a ServiceCIDR that are to be emptied; none, if another range of their family would be left in it.
func (s *Survey) leaving(c *networkingv1.ServiceCIDR) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range cidrsOf(c) {
		switch {
		case !sameFamily(s.Spec.From, p):
		case !within(p, s.Spec.From):
			return nil
		default:
			all = append(all, p)
		}
	}
	return all
}

// otherOf is that of some ranges which is of the other family than those to be emptied.
func (s *Survey) otherOf(ranges []netip.Prefix) (other netip.Prefix, there bool) {
	for _, p := range ranges {
		if !sameFamily(s.Spec.From, p) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// stays reports whether a ServiceCIDR is left as it is: the default one of both families, where the cluster's own Services stay, and with them what
// API servers have as their flag. That none of them is in the range of a family, as kubernetes is in one alone, does not say that it may go.
func (s *Survey) stays(c *networkingv1.ServiceCIDR) bool {
	_, both := s.otherOf(cidrsOf(c))
	return both && c.Name == defaultRange && s.Spec.ClusterServices == v1alpha1.ClusterServicesStay
}

// defaults are the ranges that the default ServiceCIDR had before the migration, and those that it is to have, each in the order in which API servers
// have them as a flag. moves says whether API servers may have been asked for the latter.
func (s *Survey) defaults() (was, becomes []netip.Prefix, moves bool) {
	have := s.serviceCIDR(defaultRange)
	was, moves = s.defaultNoted()
	if first, hops := s.defaultWas(); !moves && hops {
		was, moves = swapped(rangesIn(have), first), true
	}
	if !moves && have != nil && s.retires(have) {
		was = cidrsOf(have)
	}
	if len(was) > 0 && len(s.Spec.To) > 0 {
		becomes = swapped(was, s.Spec.To[0])
	}
	return was, becomes, moves
}

// defaultLacks reports whether the default ServiceCIDR is still to be made: there is none, or not with both ranges, where it is to have two.
func (s *Survey) defaultLacks(becomes []netip.Prefix) bool {
	now := s.defaultNow()
	return now == nil || len(becomes) > 1 && !slices.Equal(cidrsOf(now), becomes)
}

// swapped has a range in the place of that of the same family.
func swapped(all []netip.Prefix, r netip.Prefix) []netip.Prefix {
	i := slices.IndexFunc(all, func(p netip.Prefix) bool { return p.Addr().Is4() == r.Addr().Is4() })
	if i < 0 {
		return []netip.Prefix{r}
	}
	all = slices.Clone(all)
	all[i] = r
	return all
}

// defaultNoted is what the default ServiceCIDR had before it was retired, as noted on the one that keeps its range of the other family.
func (s *Survey) defaultNoted() (was []netip.Prefix, noted bool) {
	c := s.serviceCIDR(s.Spec.Name + keepOf + defaultRange)
	if c == nil || !s.keepsOther(c) {
		return nil, false
	}
	for text := range strings.SplitSeq(c.Annotations[v1alpha1.AnnotationRanges], ",") {
		if p, err := netip.ParsePrefix(text); err == nil {
			was = append(was, p)
		}
	}
	if len(was) < 2 {
		return nil, false
	}
	return was, true
}

// keepsOther reports whether a ServiceCIDR is one that the migration made to keep a range of the other family.
func (s *Survey) keepsOther(c *networkingv1.ServiceCIDR) bool {
	return c.Labels[v1alpha1.LabelMigration] == s.Spec.Name && c.Labels[v1alpha1.LabelRole] == v1alpha1.RoleKeep &&
		strings.HasPrefix(c.Name, s.Spec.Name+keepOf) && len(cidrsOf(c)) == 1
}

// serviceCIDR is the one of a name, also if it is going; nil, if there is none.
func (s *Survey) serviceCIDR(name string) *networkingv1.ServiceCIDR {
	for i := range s.Ranges {
		if s.Ranges[i].Name == name {
			return &s.Ranges[i]
		}
	}
	return nil
}

// rangesIn are the ranges of a ServiceCIDR; none, if it is nil.
func rangesIn(c *networkingv1.ServiceCIDR) []netip.Prefix {
	if c == nil {
		return nil
	}
	return cidrsOf(c)
}

// apart keeps the range of the other family which is in a ServiceCIDR of some ranges that goes; none, if there is no such range.
func (r *rangePlan) apart(name string, was []netip.Prefix) []ownRange {
	other, both := r.survey.otherOf(was)
	if !both {
		return nil
	}
	o := r.own(r.survey.Spec.Name+keepOf+name, other, v1alpha1.RoleKeep)
	o.was = was
	return []ownRange{o}
}

// aparts are the ServiceCIDRs that keep ranges of the other family while those go that they were in.
func (r *rangePlan) aparts() []ownRange {
	var all []ownRange
	for _, c := range r.survey.retiring() {
		all = append(all, r.apart(c.Name, cidrsOf(c))...)
	}
	return all
}

// isApart reports whether a range that is kept is one of the other family.
func (r *rangePlan) isApart(k ownRange) bool {
	return r.survey.keepsOther(r.survey.serviceCIDR(k.name))
}

// keptApart are those of them that are there.
func (r *rangePlan) keptApart() []ownRange {
	return slices.DeleteFunc(r.keeping(), func(k ownRange) bool { return !r.isApart(k) })
}

// leftApart are those that are there at the end of a rollback.
func (r *rangePlan) leftApart() []ownRange {
	all := r.keptApart()
	for _, back := range r.restoredApart() {
		if !slices.ContainsFunc(all, func(k ownRange) bool { return k.name == back.name }) {
			all = append(all, back)
		}
	}
	return all
}

// restoredApart keeps the range of the other family while the default ServiceCIDR goes that API servers made from their new flag.
func (r *rangePlan) restoredApart() []ownRange {
	if was, _, restores := r.survey.restores(); restores {
		return r.apart(defaultRange, was)
	}
	return nil
}

// restores is defaults for the way back. never says that the default ServiceCIDR is what it was.
func (s *Survey) restores() (was, becomes []netip.Prefix, restores bool) {
	was, becomes, moves := s.defaults()
	_, noted := s.defaultNoted()
	return was, becomes, moves && (noted || s.Kubernetes().Touched())
}

// without are the ranges that are none of others.
func without(all, others []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return slices.Contains(others, p) })
}

// flagOf is how --service-cluster-ip-range names ranges.
func flagOf(ranges []netip.Prefix) string { return strings.ReplaceAll(joinRanges(ranges), ", ", ",") }

// fits reports whether the default ServiceCIDR is one that is wanted. Where it has both families, it is so in each, and in their order.
func (d newDefault) fits(have []netip.Prefix) bool {
	if len(d.want) > 1 && d.want[0].Addr().Is4() != d.want[1].Addr().Is4() {
		return slices.Equal(have, d.want)
	}
	return len(have) > 0 && slices.Contains(d.want, have[0])
}

// dnsKept are the addresses of the other family that cluster DNS keeps.
func (s *Survey) dnsKept() []netip.Addr {
	var all []netip.Addr
	for _, e := range s.DNSMoves() {
		if a := e.kept(e.Service); a.IsValid() {
			all = append(all, a)
		}
	}
	return all
}
