package servicecidr

import (
	"fmt"
	"net/netip"
	"sort"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/addr"
	"github.com/replumb/replumb/internal/bridge"
	"github.com/replumb/replumb/internal/cluster"
)

// Place is where a Service stands in the move.
type Place string

// The places, in the order of the move.
const (
	Waiting    Place = "waiting"
	Bridged    Place = "bridged"
	HalfHopped Place = "half-hopped"
	Moved      Place = "moved"
	Stays      Place = "stays"
)

// inTarget is the reason why Services stay that were made, or once moved, where the others go.
const inTarget = "is in the target range already"

// damaged is the reason why a Service is left alone with its bridge and holds, until somebody mends its annotations.
const damaged = "has annotations of this migration that cannot be read"

// InTarget reports whether a Service stays because its address is in the target range.
func (e *Entry) InTarget() bool { return e.Place == Stays && e.Reason == inTarget }

// Entry is one Service in the picture.
type Entry struct {
	Service  *corev1.Service
	Old, New netip.Addr
	Place    Place
	// Reason says why a Service stays.
	Reason string
	// Bridge as observed; nil if there is none.
	Bridge *corev1.Service
	// Touched is true if something of this migration is on the Service itself or an address is held for its bridge.
	Touched bool
	// Damaged is true if the Service is in the migration, but does not say any more from where to where.
	Damaged bool
}

// Key of the Service.
func (e *Entry) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: e.Service.Namespace, Name: e.Service.Name}
}

// BridgeKey is where the Service's bridge is or would be.
func (e *Entry) BridgeKey() types.NamespacedName {
	return types.NamespacedName{Namespace: e.Service.Namespace, Name: bridge.Name(e.Service.Name, e.Service.UID)}
}

// Survey is everything a plan needs to know of the Services of a cluster, worked out from the objects alone.
type Survey struct {
	Spec  Spec
	Moves []*Entry
	Stays []*Entry
	// Orphans are bridges whose Service is gone.
	Orphans []*corev1.Service
	// Strays are holds that belong to no bridge and to no Service that moves.
	Strays []networkingv1.IPAddress
	// Pool has the addresses of the target that are still free.
	Pool *addr.Pool
}

// Resolve fills in the ranges to empty, when the Migration leaves them open: every ready ServiceCIDR of the target's
// family that is not the target.
func Resolve(spec Spec, snap *cluster.Snapshot) Spec {
	if len(spec.From) > 0 {
		return spec
	}
	for i := range snap.ServiceCIDRs {
		c := &snap.ServiceCIDRs[i]
		if !rangeReady(c) || c.Labels[v1alpha1.LabelRole] == v1alpha1.RoleRange {
			continue
		}
		for _, text := range c.Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			if err == nil && p.Addr().Is4() == spec.To[0].Addr().Is4() && !isOneOf(p, spec.To) {
				spec.From = append(spec.From, p)
			}
		}
	}
	return spec
}

// rangeReady follows the API server, which takes a ServiceCIDR without conditions for ready (isReady in
// k8s.io/kubernetes pkg/registry/core/service/ipallocator/cidrallocator.go).
func rangeReady(c *networkingv1.ServiceCIDR) bool {
	cond := meta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	return c.DeletionTimestamp.IsZero() && (cond == nil || cond.Status == metav1.ConditionTrue)
}

func isOneOf(p netip.Prefix, all []netip.Prefix) bool {
	for _, o := range all {
		if p == o {
			return true
		}
	}
	return false
}

// Look surveys a picture of the cluster.
func Look(snap *cluster.Snapshot, spec Spec) *Survey {
	s := &Survey{Spec: Resolve(spec, snap)}
	bridges := map[types.NamespacedName]*corev1.Service{}
	var candidates []*corev1.Service
	for i := range snap.Services {
		svc := &snap.Services[i]
		switch svc.Labels[v1alpha1.LabelRole] {
		case v1alpha1.RoleBridge:
			bridges[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = svc
		case v1alpha1.RoleSentinel:
		default:
			candidates = append(candidates, svc)
		}
	}
	sort.Slice(candidates, func(i, j int) bool {
		a, b := candidates[i], candidates[j]
		return a.Namespace < b.Namespace || (a.Namespace == b.Namespace && a.Name < b.Name)
	})
	for _, svc := range candidates {
		e := s.entry(svc, snap.Ending[svc.Namespace])
		e.Bridge = bridges[e.BridgeKey()]
		delete(bridges, e.BridgeKey())
		if e.Place == Stays {
			s.Stays = append(s.Stays, e)
			continue
		}
		if e.Place == Waiting && e.Bridge != nil {
			e.Place = Bridged
		}
		s.Moves = append(s.Moves, e)
	}
	s.orphans(bridges)
	s.addresses(snap)
	return s
}

func (s *Survey) orphans(left map[types.NamespacedName]*corev1.Service) {
	for _, b := range left {
		if b.Labels[v1alpha1.LabelMigration] == s.Spec.Name {
			s.Orphans = append(s.Orphans, b)
		}
	}
	sort.Slice(s.Orphans, func(i, j int) bool {
		return s.Orphans[i].Namespace+"/"+s.Orphans[i].Name < s.Orphans[j].Namespace+"/"+s.Orphans[j].Name
	})
}

// entry sorts one Service: in this migration already, staying, or waiting to be moved.
func (s *Survey) entry(svc *corev1.Service, ending bool) *Entry {
	e := &Entry{Service: svc, Place: Waiting}
	if ending { // whatever it was before: no bridge can be made any more, and soon none is needed
		e.Place, e.Reason = Stays, "is in a namespace that is being removed"
		return e
	}
	owner := svc.Annotations[v1alpha1.LabelMigration]
	current, _ := netip.ParseAddr(svc.Spec.ClusterIP)
	if owner == s.Spec.Name {
		e.Touched = true
		old, errOld := netip.ParseAddr(svc.Annotations[v1alpha1.AnnotationOldIP])
		target, errNew := netip.ParseAddr(svc.Annotations[v1alpha1.AnnotationTargetIP])
		if errOld == nil && errNew == nil {
			e.Old, e.New = old, target
			switch {
			case svc.Spec.Type == corev1.ServiceTypeExternalName:
				e.Place = HalfHopped
			case current == target:
				e.Place = Moved
			}
			return e
		}
		e.Place, e.Damaged, e.Reason = Stays, true, damaged
		return e
	}
	e.Old = current
	if e.Reason = s.stays(svc, owner, current); e.Reason != "" {
		e.Place = Stays
	}
	return e
}

// stays says why a Service is left alone; nothing, if it moves.
func (s *Survey) stays(svc *corev1.Service, owner string, current netip.Addr) string {
	switch {
	case owner != "":
		return fmt.Sprintf("belongs to migration %s", owner)
	case svc.Namespace == "default" && svc.Name == "kubernetes", svc.Namespace == "kube-system" && svc.Name == "kube-dns":
		return "the cluster's own Services stay in this version"
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return "is an ExternalName and has no address"
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		return "is headless and has no address"
	case len(svc.Spec.ClusterIPs) > 1:
		return "is dual-stack, which cannot be moved in this version"
	case !current.IsValid():
		return "has no address"
	case current.Is4() != s.Spec.To[0].Addr().Is4():
		return "is not of the family of the target"
	case addr.Contains(s.Spec.To, current):
		return inTarget
	case !addr.Contains(s.Spec.From, current):
		return "is in none of the ranges to empty"
	}
	return unsupported(svc)
}

// unsupported says what of a Service with an address to move cannot be moved without losing something.
func unsupported(svc *corev1.Service) string {
	internalLocal := svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	switch {
	case svc.Spec.Type != corev1.ServiceTypeClusterIP:
		return fmt.Sprintf("is of type %s, which cannot be moved in this version", svc.Spec.Type)
	case len(svc.Spec.Selector) == 0:
		return "has no selector, and such Services cannot be moved in this version"
	case len(svc.Spec.ExternalIPs) > 0:
		return "has externalIPs, which would stop answering for a moment"
	case internalLocal:
		return "has internalTrafficPolicy Local, which a bridge cannot keep"
	case !svc.DeletionTimestamp.IsZero():
		return "is being deleted"
	}
	return ""
}

// addresses gives every entry its target. What a bridge, a hold or the Service itself already names is kept; otherwise
// the offset is kept where it is free, and else the next free address taken.
func (s *Survey) addresses(snap *cluster.Snapshot) {
	holds := map[types.NamespacedName]netip.Addr{}
	var used []netip.Addr
	for i := range snap.IPAddresses {
		ip := &snap.IPAddresses[i]
		a, err := netip.ParseAddr(ip.Name)
		if err != nil {
			continue
		}
		used = append(used, a)
		if key, ok := bridge.HeldFor(ip); ok && addr.Contains(s.Spec.To, a) {
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
	s.Pool = addr.NewPool(s.Spec.To, used)
	s.reserve(snap)
	for _, e := range s.Moves {
		s.known(e, holds)
	}
	for _, e := range s.Moves {
		s.choose(e)
	}
	s.strays(snap)
}

// reserve keeps the addresses that the cluster's own Services will want: the first one for kubernetes, and the offset
// of kube-dns.
func (s *Survey) reserve(snap *cluster.Snapshot) {
	for _, to := range s.Spec.To {
		first, _ := addr.Bounds(to)
		s.Pool.Use(first)
	}
	dns := snap.Service(types.NamespacedName{Namespace: "kube-system", Name: "kube-dns"})
	if dns == nil {
		return
	}
	if a, err := netip.ParseAddr(dns.Spec.ClusterIP); err == nil {
		s.Pool.Keep(a, s.Spec.From)
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

// Counts sums the survey up.
func (s *Survey) Counts() v1alpha1.Counts {
	c := v1alpha1.Counts{Total: len(s.Moves), Stays: len(s.Stays)}
	for _, e := range s.Moves {
		if e.Place == Moved {
			c.Moved++
		}
		if e.Bridge != nil {
			c.Bridged++
		}
	}
	return c
}

// Pending are the entries that are not at their new address yet.
func (s *Survey) Pending() []*Entry {
	var out []*Entry
	for _, e := range s.Moves {
		if e.Place != Moved {
			out = append(out, e)
		}
	}
	return out
}
