package services

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

// Resolve fills in open ranges: every ready ServiceCIDR of the target's family to empty, and every
// other of the family of a retired one as target.
func Resolve(spec Spec, snap *inventory.Snapshot) Spec {
	switch {
	case spec.Mode == v1alpha1.ModeRetire && len(spec.To) == 0 && len(spec.From) > 0:
		spec.To = others(snap, spec.From)
	case spec.Mode == v1alpha1.ModeMove && len(spec.From) == 0 && len(spec.To) > 0:
		spec.From = others(snap, spec.To)
	}
	return spec
}

func others(snap *inventory.Snapshot, given []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for i := range snap.ServiceCIDRs {
		c := &snap.ServiceCIDRs[i]
		if !RangeReady(c) || c.Labels[v1alpha1.LabelRole] != "" {
			continue
		}
		for _, p := range CIDRsOf(c) {
			if p.Addr().Is4() == given[0].Addr().Is4() && !slices.Contains(given, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

// CIDRsOf are the ranges of a ServiceCIDR.
func CIDRsOf(c *networkingv1.ServiceCIDR) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range c.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// RangeReady follows the API server, which takes a ServiceCIDR without conditions for ready
// (isReady in k8s.io/kubernetes pkg/registry/core/service/ipallocator/cidrallocator.go).
func RangeReady(c *networkingv1.ServiceCIDR) bool {
	cond := meta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	return c.DeletionTimestamp.IsZero() && (cond == nil || cond.Status == metav1.ConditionTrue)
}

// assignTargets takes the address of bridge, reservation or Service, else the free offset, else the
// next free address.
func (s *Inventory) assignTargets(snap *inventory.Snapshot) {
	s.Used = usedAddresses(snap)
	s.Pool = cidr.NewPool(s.Spec.To, s.Used)
	for _, b := range s.Orphans { // they answer there until they are removed
		for _, a := range AnswersAt(b) {
			s.Pool.Use(a)
		}
	}
	moving := slices.Concat(s.Moves, s.Probes) // which take what is left
	owners := givenOut(snap)
	for _, e := range moving {
		s.takeRecorded(e, owners)
	}
	s.retainFirst()
	for _, e := range moving {
		s.chooseTarget(e)
	}
	s.addOrphanedReservations(snap)
}

func usedAddresses(snap *inventory.Snapshot) []netip.Addr {
	var used []netip.Addr
	for i := range snap.IPAddresses {
		if a, err := netip.ParseAddr(snap.IPAddresses[i].Name); err == nil {
			used = append(used, a)
		}
	}
	for i := range snap.Services {
		for _, text := range snap.Services[i].Spec.ClusterIPs {
			if a, err := netip.ParseAddr(text); err == nil {
				used = append(used, a)
			}
		}
	}
	return slices.Compact(slices.SortedFunc(slices.Values(used), netip.Addr.Compare))
}

// Addresses are those that may be reserved for the Service's bridge, in order.
func (e *Entry) Addresses() []netip.Addr {
	all := slices.Collect(maps.Keys(e.Reserved))
	for _, a := range []netip.Addr{e.Old, e.New} {
		if a.IsValid() {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// AnswersAt are the addresses at which a bridge answers beside its own.
func AnswersAt(b *corev1.Service) []netip.Addr {
	texts := slices.Clone(b.Spec.ExternalIPs)
	for _, i := range b.Status.LoadBalancer.Ingress {
		texts = append(texts, i.IP)
	}
	var all []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// retainFirst retains the addresses of the cluster's own Services: the first for kubernetes
// (k8s.io/kubernetes pkg/controlplane/apiserver/options, ServiceIPRange), and cluster DNS's offset.
func (s *Inventory) retainFirst() {
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
			if a, ok := s.Pool.TakeSameOffset(e.Old, s.Spec.From); ok {
				e.New = a
			}
		}
	}
	for _, to := range s.Spec.To {
		first, _ := cidr.Bounds(to)
		s.Pool.Use(first)
	}
	for _, e := range s.Stays { // they stay now, and may move later
		if s.IsClusterService(e.Service) && e.Old.IsValid() && cidr.Contains(s.Spec.From, e.Old) {
			s.Pool.TakeSameOffset(e.Old, s.Spec.From)
		}
	}
}

func (s *Inventory) takeRecorded(e *Entry, owners map[netip.Addr]string) {
	if !e.New.IsValid() {
		e.New = e.recordedTarget(s.Spec.To)
	}
	if !e.New.IsValid() {
		e.New = s.givenAhead(e, owners)
	}
	if e.New.IsValid() {
		s.Pool.Use(e.New)
	}
}

// givenAhead is the target whose IPAddress is the Service's own before it has the address, since
// strategy Etcd was killed in between; invalid, if there is none. The Service answers there
// already.
func (s *Inventory) givenAhead(e *Entry, owners map[netip.Addr]string) netip.Addr {
	if e.Strategy != v1alpha1.StrategyOfEtcd {
		return netip.Addr{}
	}
	for _, a := range AnswersAt(e.Service) {
		if cidr.Contains(s.Spec.To, a) && owners[a] == "services "+e.Key().String() {
			return a
		}
	}
	return netip.Addr{}
}

func (s *Inventory) chooseTarget(e *Entry) {
	if e.New.IsValid() {
		return
	}
	if a, ok := s.Pool.TakeSameOffset(e.Old, s.Spec.From); ok {
		e.New = a
		return
	}
	if a, err := s.Pool.Lowest(); err == nil {
		e.New = a
	}
}

func (s *Inventory) addOrphanedReservations(snap *inventory.Snapshot) {
	known := map[types.NamespacedName]bool{}
	for _, e := range s.All() {
		known[e.BridgeKey()] = true
	}
	for _, e := range s.Stays {
		known[e.BridgeKey()] = e.Reason.Kind == Unconfirmed
	}
	for _, e := range s.Removed { // released with what else there is of them
		known[e.BridgeKey()] = true
	}
	for _, b := range s.Orphans {
		known[types.NamespacedName{Namespace: b.Namespace, Name: b.Name}] = false
	}
	for i := range snap.IPAddresses {
		ip := snap.IPAddresses[i]
		if key, ok := bridge.HeldFor(&ip); ok && ip.Labels[v1alpha1.LabelMigration] == s.Spec.Name && !known[key] {
			s.OrphanedReservations = append(s.OrphanedReservations, ip)
		}
	}
}

func (s *Inventory) KeepRanges() []netip.Prefix {
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
	Name  string
	Used  int
	Size  string
}

// Usage of every Service range, in the order of their names.
func (s *Inventory) Usage() []Usage {
	var all []Usage
	for i := range s.Ranges {
		for _, r := range CIDRsOf(&s.Ranges[i]) {
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
