package servicecidr

import (
	"net/netip"
	"slices"
	"strconv"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

// Resolve fills in the ranges that the Migration leaves open. To empty: every ready ServiceCIDR of the target's family that
// is not the target. As the target of mode Retire: every other ready ServiceCIDR of the family of the one that goes.
func Resolve(spec Spec, snap *cluster.Snapshot) Spec {
	switch {
	case spec.Mode == v1alpha1.ModeRetire && len(spec.To) == 0 && len(spec.From) > 0:
		spec.To = others(snap, spec.From)
	case spec.Mode == v1alpha1.ModeMove && len(spec.From) == 0 && len(spec.To) > 0:
		spec.From = others(snap, spec.To)
	}
	return spec
}

// others are the ready ranges of the family of the given ones that are none of them and do not serve a migration.
func others(snap *cluster.Snapshot, given []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for i := range snap.ServiceCIDRs {
		c := &snap.ServiceCIDRs[i]
		if !rangeReady(c) || c.Labels[v1alpha1.LabelRole] != "" {
			continue
		}
		for _, p := range cidrsOf(c) {
			if p.Addr().Is4() == given[0].Addr().Is4() && !slices.Contains(given, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

// cidrsOf are the ranges of a ServiceCIDR.
func cidrsOf(c *networkingv1.ServiceCIDR) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range c.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// rangeReady follows the API server, which takes a ServiceCIDR without conditions for ready (isReady in
// k8s.io/kubernetes pkg/registry/core/service/ipallocator/cidrallocator.go).
func rangeReady(c *networkingv1.ServiceCIDR) bool {
	cond := meta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	return c.DeletionTimestamp.IsZero() && (cond == nil || cond.Status == metav1.ConditionTrue)
}

// addresses gives every entry its target. What a bridge, a hold or the Service itself already names is kept; otherwise
// the offset is kept where it is free, and else the next free address taken.
func (s *Survey) addresses(snap *cluster.Snapshot) {
	holds := map[types.NamespacedName]netip.Addr{}
	held := map[types.NamespacedName]map[netip.Addr]types.UID{}
	var used []netip.Addr
	for i := range snap.IPAddresses {
		ip := &snap.IPAddresses[i]
		a, err := netip.ParseAddr(ip.Name)
		if err != nil {
			continue
		}
		used = append(used, a)
		key, ok := bridge.HeldFor(ip)
		if ok && held[key] == nil {
			held[key] = map[netip.Addr]types.UID{}
		}
		if ok {
			held[key][a] = ip.UID
		}
		if ok && cidr.Contains(s.Spec.To, a) {
			holds[key] = a
		}
	}
	for i := range snap.Services {
		for _, text := range snap.Services[i].Spec.ClusterIPs {
			if a, err := netip.ParseAddr(text); err == nil {
				used = append(used, a)
			}
		}
	}
	s.Used = slices.Compact(slices.SortedFunc(slices.Values(used), netip.Addr.Compare))
	s.Pool = cidr.NewPool(s.Spec.To, used)
	for _, e := range s.Moves {
		e.held = held[e.BridgeKey()]
		s.known(e, holds)
	}
	s.reserve()
	for _, e := range s.Moves {
		s.choose(e)
	}
	s.strays(snap)
}

// reserve keeps the addresses that the cluster's own Services will want for them: the first one for kubernetes, which is
// where API servers look for it (k8s.io/kubernetes pkg/controlplane/apiserver/options, ServiceIPRange), and for cluster
// DNS the offset it has.
func (s *Survey) reserve() {
	for _, e := range s.Moves {
		if e.New.IsValid() {
			continue
		}
		switch {
		case e.IsKubernetes():
			first, _ := cidr.Bounds(s.Spec.To[0])
			if s.Pool.Use(first) {
				e.New = first
			}
		case s.DNS[e.Key()]:
			if a, ok := s.Pool.Keep(e.Old, s.Spec.From); ok {
				e.New = a
			}
		}
	}
	for _, to := range s.Spec.To {
		first, _ := cidr.Bounds(to)
		s.Pool.Use(first)
	}
	for _, e := range s.Stays { // told to stay now, they may move later
		if s.isClusters(e.Service) && e.Old.IsValid() && cidr.Contains(s.Spec.From, e.Old) {
			s.Pool.Keep(e.Old, s.Spec.From)
		}
	}
}

func (s *Survey) known(e *Entry, holds map[types.NamespacedName]netip.Addr) {
	if e.New.IsValid() {
		s.Pool.Use(e.New)
		return
	}
	if e.Bridge != nil {
		if a, err := netip.ParseAddr(e.Bridge.Annotations[v1alpha1.AnnotationTargetIP]); err == nil {
			e.New = a
			s.Pool.Use(a)
			return
		}
	}
	if a, ok := holds[e.BridgeKey()]; ok {
		e.New, e.Touched = a, true
	}
}

func (s *Survey) choose(e *Entry) {
	if e.New.IsValid() {
		return
	}
	if a, ok := s.Pool.Keep(e.Old, s.Spec.From); ok {
		e.New = a
		return
	}
	if a, err := s.Pool.Lowest(); err == nil {
		e.New = a
	}
}

func (s *Survey) strays(snap *cluster.Snapshot) {
	known := map[types.NamespacedName]bool{}
	for _, e := range s.Moves {
		known[e.BridgeKey()] = true
	}
	for _, e := range s.Stays {
		known[e.BridgeKey()] = e.Damaged
	}
	for _, b := range s.Orphans {
		known[types.NamespacedName{Namespace: b.Namespace, Name: b.Name}] = false
	}
	for i := range snap.IPAddresses {
		ip := snap.IPAddresses[i]
		if key, ok := bridge.HeldFor(&ip); ok && ip.Labels[v1alpha1.LabelMigration] == s.Spec.Name && !known[key] {
			s.Strays = append(s.Strays, ip)
		}
	}
}

// KeepRanges are the ranges in which pinned Services stay legitimate.
func (s *Survey) KeepRanges() []netip.Prefix {
	var pinned []netip.Addr
	for _, e := range s.Pins {
		for _, text := range e.Service.Spec.ClusterIPs {
			if a, err := netip.ParseAddr(text); err == nil {
				pinned = append(pinned, a)
			}
		}
	}
	return cidr.Cover(pinned, s.Spec.From)
}

// Usage is how full a Service range is.
type Usage struct {
	Range netip.Prefix
	// Name of the ServiceCIDR.
	Name string
	// Used counts the addresses in use.
	Used int
	// Size counts the addresses there are, for people.
	Size string
}

// Usage of every Service range, in the order of their names.
func (s *Survey) Usage() []Usage {
	var all []Usage
	for i := range s.Ranges {
		for _, r := range cidrsOf(&s.Ranges[i]) {
			u := Usage{Range: r, Name: s.Ranges[i].Name, Size: sizeOf(r)}
			for _, a := range s.Used {
				if r.Contains(a) {
					u.Used++
				}
			}
			all = append(all, u)
		}
	}
	return all
}

func sizeOf(r netip.Prefix) string {
	const many = 1 << 24
	if n := cidr.Size([]netip.Prefix{r}, many); n < many {
		return strconv.Itoa(n)
	}
	return "over 16 million"
}

// inside reports whether all ranges of a ServiceCIDR lie in others.
func inside(c *networkingv1.ServiceCIDR, ranges []netip.Prefix) bool {
	for _, p := range cidrsOf(c) {
		if !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(p.Addr()) && r.Bits() <= p.Bits() }) {
			return false
		}
	}
	return true
}
