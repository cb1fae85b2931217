package ranges

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/safety/freeze"
)

// IsEmptied reports whether a ServiceCIDR is to be emptied, and holds more than pinned Services
// need.
func IsEmptied(s *services.Inventory, c *networkingv1.ServiceCIDR) bool {
	return c.Labels[v1alpha1.LabelRole] == "" && len(leavingRanges(s, c)) > 0 && !staysWhole(s, c) && !keepsPinned(s, c)
}

// keepsPinned reports whether a ServiceCIDR is just what pinned Services need. It stays, as the API
// server keeps it while no other holds their addresses.
func keepsPinned(s *services.Inventory, c *networkingv1.ServiceCIDR) bool {
	if c.Name == DefaultRange || !c.DeletionTimestamp.IsZero() {
		return false
	}
	kept := s.KeepRanges()
	return !slices.ContainsFunc(leavingRanges(s, c), func(p netip.Prefix) bool { return !slices.Contains(kept, p) })
}

// IsRetired reports whether a ServiceCIDR goes, and no Service of the cluster stays in it.
func IsRetired(s *services.Inventory, c *networkingv1.ServiceCIDR) bool {
	return IsEmptied(s, c) && !slices.ContainsFunc(s.Blockers(), func(e *services.Entry) bool {
		return e.Reason.Kind == services.ClusterService && cidr.Contains(services.CIDRsOf(c), e.Old)
	})
}

// ToRetire are the ServiceCIDRs that apply deletes, or waits for.
func ToRetire(s *services.Inventory) []*networkingv1.ServiceCIDR {
	if s.Spec.Mode == v1alpha1.ModeExtend || s.Bitmap {
		return nil
	}
	var all []*networkingv1.ServiceCIDR
	for i := range s.Ranges {
		if c := &s.Ranges[i]; IsRetired(s, c) {
			all = append(all, c)
		}
	}
	return all
}

// formerDefault is the range that kubernetes was in; false, if it does not move.
func formerDefault(s *services.Inventory) (was netip.Prefix, moves bool) {
	e := s.Kubernetes()
	if e == nil {
		return netip.Prefix{}, false
	}
	for _, r := range s.Spec.From {
		if r.Contains(e.Old) {
			return r, true
		}
	}
	return netip.Prefix{}, false
}

func currentDefault(s *services.Inventory) *networkingv1.ServiceCIDR {
	for i := range s.Ranges {
		if c := &s.Ranges[i]; c.Name == DefaultRange && c.DeletionTimestamp.IsZero() {
			return c
		}
	}
	return nil
}

func within(p netip.Prefix, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(p.Addr()) && r.Bits() <= p.Bits() })
}

// leavingRanges are the ranges to be emptied; none, if another of their family would be left.
func leavingRanges(s *services.Inventory, c *networkingv1.ServiceCIDR) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range services.CIDRsOf(c) {
		switch {
		case !services.SameFamily(s.Spec.From, p):
		case !within(p, s.Spec.From):
			return nil
		default:
			all = append(all, p)
		}
	}
	return all
}

func otherFamilyRange(s *services.Inventory, ranges []netip.Prefix) (other netip.Prefix, there bool) {
	for _, p := range ranges {
		if !services.SameFamily(s.Spec.From, p) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// staysWhole reports whether the default ServiceCIDR of both families stays, as the cluster's own
// Services and the API servers' flag do.
func staysWhole(s *services.Inventory, c *networkingv1.ServiceCIDR) bool {
	_, both := otherFamilyRange(s, services.CIDRsOf(c))
	return both && c.Name == DefaultRange && s.Spec.ClusterServices == v1alpha1.ClusterServicesStay
}

// DefaultRanges are the ranges of the default ServiceCIDR before and after, in the order of the
// flag. moves says whether API servers may have been asked for the latter.
func DefaultRanges(s *services.Inventory) (was, becomes []netip.Prefix, moves bool) {
	have := rangeNamed(s, DefaultRange)
	was, moves = recordedDefaults(s)
	if first, hops := formerDefault(s); !moves && hops {
		was, moves = swapped(rangesIn(have), first), true
	}
	if !moves && have != nil && IsRetired(s, have) {
		was = services.CIDRsOf(have)
	}
	if len(was) > 0 && len(s.Spec.To) > 0 {
		becomes = swapped(was, s.Spec.To[0])
	}
	return was, becomes, moves
}

// lacksDefault reports whether the default ServiceCIDR, with all its ranges, is still to be made.
func lacksDefault(s *services.Inventory, becomes []netip.Prefix) bool {
	now := currentDefault(s)
	return now == nil || len(becomes) > 1 && !slices.Equal(services.CIDRsOf(now), becomes)
}

// recordedDefaults are the ranges of the retired default, as noted on the ServiceCIDR kept apart.
func recordedDefaults(s *services.Inventory) (was []netip.Prefix, noted bool) {
	c := rangeNamed(s, s.Spec.Name+KeepOf+DefaultRange)
	if c == nil || !keepsOtherFamily(s, c) {
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

// keepsOtherFamily reports whether a ServiceCIDR was made to keep a range of the other family.
func keepsOtherFamily(s *services.Inventory, c *networkingv1.ServiceCIDR) bool {
	return c.Labels[v1alpha1.LabelMigration] == s.Spec.Name && c.Labels[v1alpha1.LabelRole] == v1alpha1.RoleKeep &&
		strings.HasPrefix(c.Name, s.Spec.Name+KeepOf) && len(services.CIDRsOf(c)) == 1
}

func rangeNamed(s *services.Inventory, name string) *networkingv1.ServiceCIDR {
	for i := range s.Ranges {
		if s.Ranges[i].Name == name {
			return &s.Ranges[i]
		}
	}
	return nil
}

func rangesIn(c *networkingv1.ServiceCIDR) []netip.Prefix {
	if c == nil {
		return nil
	}
	return services.CIDRsOf(c)
}

// restoredDefaults is DefaultRanges for the way back.
func restoredDefaults(s *services.Inventory) (was, becomes []netip.Prefix, restores bool) {
	was, becomes, moves := DefaultRanges(s)
	_, noted := recordedDefaults(s)
	return was, becomes, moves && (noted || s.Kubernetes().Touched())
}

func swapped(all []netip.Prefix, r netip.Prefix) []netip.Prefix {
	i := slices.IndexFunc(all, func(p netip.Prefix) bool { return p.Addr().Is4() == r.Addr().Is4() })
	if i < 0 {
		return []netip.Prefix{r}
	}
	all = slices.Clone(all)
	all[i] = r
	return all
}

func without(all, others []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return slices.Contains(others, p) })
}

// FlagText is how --service-cluster-ip-range names ranges.
func FlagText(ranges []netip.Prefix) string {
	return strings.ReplaceAll(lists.Join(ranges, ", "), ", ", ",")
}

func immovableIn(s *services.Inventory, in []netip.Prefix) (names []string) {
	for _, e := range s.Blockers() {
		if e.Reason.Kind == services.Refused && cidr.Contains(in, e.Old) {
			names = append(names, fmt.Sprintf("services %s (%s), which %s", e.Key(), e.Old, e.Reason))
		}
	}
	return names
}

// GivesOutAllOf reports whether the API server that was asked gives out addresses of all of some
// ranges.
func GivesOutAllOf(s *services.Inventory, ranges []netip.Prefix) bool {
	var all []netip.Prefix
	for i := range s.Ranges {
		all = append(all, services.CIDRsOf(&s.Ranges[i])...)
	}
	return !slices.ContainsFunc(ranges, func(want netip.Prefix) bool {
		return !slices.ContainsFunc(all, func(r netip.Prefix) bool { return r.Contains(want.Addr()) && r.Bits() <= want.Bits() })
	})
}

// unreservedIn are addresses of targets and bridges in a range that nothing but a note reserves, so
// that an API server could give them to others.
func unreservedIn(s *services.Inventory, in netip.Prefix) []freeze.Owned {
	var all []freeze.Owned
	for _, e := range s.All() {
		if !e.Begun() {
			continue
		}
		for _, a := range e.Addresses() {
			r, reserved := e.Reserved[a]
			if in.Contains(a) && !services.IsAt(e.Service, a) && (!reserved || r.Noted) {
				all = append(all, freeze.Owned{Address: a, Owner: e.Key().String()})
			}
		}
	}
	for i := range s.OrphanedReservations {
		all = append(all, owned(in, s.OrphanedReservations[i].Name)...)
	}
	for _, b := range s.Orphans {
		for _, a := range services.AnswersAt(b) {
			all = append(all, owned(in, a.String())...)
		}
	}
	return all
}

func owned(in netip.Prefix, text string) []freeze.Owned {
	a, err := netip.ParseAddr(text)
	if err != nil || !in.Contains(a) {
		return nil
	}
	return []freeze.Owned{{Address: a}}
}

// MovingFamily is that of the ranges that Services move between.
func MovingFamily(s *services.Inventory) corev1.IPFamily {
	if len(s.Spec.To) > 0 && s.Spec.To[0].Addr().Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// Unmoved names Services still to move, which hold old ranges.
func Unmoved(s *services.Inventory) []string {
	var all []string
	for _, e := range s.Pending() {
		all = append(all, fmt.Sprintf("service %s (%s) has not moved", e.Key(), e.Old))
	}
	return all
}

// KeepersOfOldRanges names Services that stay, and the ranges themselves.
func KeepersOfOldRanges(s *services.Inventory) []string {
	var all []string
	for _, e := range s.Blockers() {
		all = append(all, fmt.Sprintf("service %s (%s) %s", e.Key(), e.Old, e.Reason))
	}
	for i := range s.Ranges {
		if c := &s.Ranges[i]; IsEmptied(s, c) && !s.Bitmap {
			all = append(all, fmt.Sprintf("servicecidr %s (%s)", c.Name, lists.Join(services.CIDRsOf(c), ", ")))
		}
	}
	return all
}

// KeepOf comes before the name of the ServiceCIDR whose other family is kept.
const KeepOf = "-keep-of-"

// DefaultRange is the name of the ServiceCIDR that API servers make from their flag
// (DefaultServiceCIDRName in k8s.io/kubernetes pkg/controlplane/controller/defaultservicecidr).
const DefaultRange = "kubernetes"
