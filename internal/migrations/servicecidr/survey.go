package servicecidr

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/spec/tier"
)

// Place is where a Service stands in the move.
type Place string

// The places, in the order of the move.
const (
	Waiting    Place = "waiting"
	Bridged    Place = "bridged"
	HalfHopped Place = "half-hopped"
	Moved      Place = "moved"
	// Pinned Services keep their address, and the address stays legitimate when the range around it goes.
	Pinned Place = "pinned"
	Stays  Place = "stays"
)

// ClusterTier is the tier of the cluster's own Services.
const ClusterTier = tier.ClusterServices

// Entry is one Service in the picture.
type Entry struct {
	Service  *corev1.Service
	Old, New netip.Addr
	// Place is where the Service stands, Reason why, if it is Pinned or Stays, or why it may not return, if it has Moved.
	Place  Place
	Reason Reason
	// Tier is the class of the Service; tiers move one after another.
	Tier string
	// Bridge as observed; nil if there is none.
	Bridge *corev1.Service
	// reserved are the addresses that are reserved for the bridge, as far as they were seen.
	reserved map[netip.Addr]reservation
	// called says that API servers call the Service, for a webhook or an aggregated API: it moves in a batch by itself.
	called bool
	// routed says that an ingress controller or a gateway leads to the Service.
	routed bool
	// leaving is the spec that the Service has kept from before its latest hop, as far as reservations say it.
	leaving string
	// latest is what requests of this run were answered with.
	latest answer
}

// answer is a Service and its bridge as the API server has answered with them; nil for what is not known. They are good for a write
// that carries their resourceVersion, and for a proof of the write that they are the answer to.
type answer struct{ service, bridge *corev1.Service }

// Touched reports whether something of this migration is on the Service itself, or an address is reserved for a bridge that is
// not there.
func (e *Entry) Touched() bool {
	if e.Service.Annotations[v1alpha1.LabelMigration] != "" {
		return true
	}
	return e.Bridge == nil && len(e.reserved) > 0
}

// begun reports whether the migration has begun with the Service, and has something to take back or to remove.
func (e *Entry) begun() bool { return e.Place != Waiting || e.Touched() }

// away reports whether the Service has left its old address.
func (e *Entry) away() bool { return e.Place == Moved || e.Place == HalfHopped }

// settled reports whether the Service has moved, and was changed since in a way that keeps it from returning. Its old address goes on
// answering until finish or rollback, which leave it where it is.
func (e *Entry) settled() bool { return e.Place == Moved && e.Reason.Kind != "" }

// InTarget reports whether a Service stays because its address is in the target range.
func (e *Entry) InTarget() bool { return e.Reason.Kind == InTarget }

// Key of the Service.
func (e *Entry) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: e.Service.Namespace, Name: e.Service.Name}
}

// BridgeKey is where the Service's bridge is or would be.
func (e *Entry) BridgeKey() types.NamespacedName {
	return bridgeKey(e.Service)
}

func bridgeKey(svc *corev1.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: svc.Namespace, Name: bridge.Name(svc.Name, svc.UID)}
}

// reservation of an address for the Service's bridge.
func (e *Entry) reservation(migration string, a netip.Addr) *bridge.Hold {
	return &bridge.Hold{Migration: migration, Address: a, Bridge: e.BridgeKey(), UID: e.reserved[a].uid, Original: e.leaving}
}

// noted is the memo to be kept of the Service.
func (e *Entry) noted(migration string) *bridge.Hold {
	m := bridge.Memo(migration, e.Service, e.Old, e.New)
	m.Original = e.leaving
	return m
}

// placed remembers a reservation. The steps of one Service run one after the other.
func (e *Entry) placed(h *bridge.Hold) {
	if e.reserved == nil {
		e.reserved = map[netip.Addr]reservation{}
	}
	e.reserved[h.Address] = reservation{
		uid: h.UID, original: h.Original, old: h.Old, target: h.New, since: e.reserved[h.Address].since,
	}
}

// ends are the address that a direction leaves, and the one to which it goes.
func (e *Entry) ends(to engine.Direction) (src, dest netip.Addr) {
	if to == engine.Backward {
		return e.New, e.Old
	}
	return e.Old, e.New
}

// IsKubernetes reports whether it is the Service by which pods reach the API server.
func (e *Entry) IsKubernetes() bool { return e.Key() == kubernetesKey() }

// HasNodePorts reports whether the Service answers at ports of the nodes, which no bridge keeps.
func (e *Entry) HasNodePorts() bool {
	if e.Place == HalfHopped {
		original, err := e.original(e.Service)
		return err == nil && original.Type == corev1.ServiceTypeNodePort
	}
	return e.Service.Spec.Type == corev1.ServiceTypeNodePort
}

// Mirrored reports whether the endpoints of the bridge have to be copied, since no selector makes them.
func (e *Entry) Mirrored() bool { return len(e.Service.Spec.Selector) == 0 }

// kubernetesKey is the Service by which pods reach the API server.
func kubernetesKey() types.NamespacedName {
	return types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}
}

// kubeDNSKey is where installers put cluster DNS.
func kubeDNSKey() types.NamespacedName {
	return types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: "kube-dns"}
}

// Survey is everything a plan needs to know of the Services of a cluster, worked out from the objects alone.
type Survey struct {
	Spec Spec
	// Recorded is when the API server recorded the migration; zero, if it has not.
	Recorded metav1.Time
	Moves    []*Entry
	// Probes are the Services that agents call, which move like any other but are no user's.
	Probes []*Entry
	Pins   []*Entry
	Stays  []*Entry
	// Tiers in the order in which they move.
	Tiers []string
	// Ranges are the cluster's ServiceCIDRs.
	Ranges []networkingv1.ServiceCIDR
	// TierProblems are Services whose tier is not known for certain.
	TierProblems []tier.Problem
	// DNS are the Services that kubelets name to pods as cluster DNS.
	DNS map[types.NamespacedName]bool
	// Orphans are bridges whose Service is gone.
	Orphans []*corev1.Service
	// Departed are those of Pins and Stays with which the migration had begun: what it has of them is to be removed.
	Departed []*Entry
	// Unconfirmed are the Services whose annotations or labels say what replumb's own records do not. What they say is not
	// believed.
	Unconfirmed []Claim
	// Strays are reservations that belong to no bridge and to no Service that moves.
	Strays []networkingv1.IPAddress
	// Used are the addresses that are in use.
	Used []netip.Addr
	// Pool has the addresses of the target that are still free.
	Pool *cidr.Pool
}

// Look surveys a picture of the cluster. The record is asked for the addresses that Services had before the migration, where
// no reservation says so; see WantsRecord.
func Look(snap *cluster.Snapshot, spec Spec, record Record) *Survey {
	spec = Resolve(spec, snap)
	held := reservations(snap)
	s := &Survey{Spec: spec, Ranges: snap.ServiceCIDRs, DNS: dnsServices(snap, held)}
	w := witness{survey: s, held: held, record: record, given: givenOut(snap), names: namesOf(snap)}
	bridges, candidates := w.sift(snap)
	for _, svc := range candidates {
		e := w.entry(svc, snap.Ending[svc.Namespace])
		e.Bridge = bridges[e.BridgeKey()]
		delete(bridges, e.BridgeKey())
		w.bridgeable(e)
		if w.departed(e) {
			s.Departed = append(s.Departed, e)
		}
		s.add(e)
	}
	s.orphans(bridges)
	s.addresses(snap)
	return s
}

// add sorts an entry in.
func (s *Survey) add(e *Entry) {
	switch e.Place {
	case Stays:
		s.Stays = append(s.Stays, e)
		return
	case Pinned:
		s.Pins = append(s.Pins, e)
		return
	case Waiting:
		if e.Bridge != nil {
			e.Place = Bridged
		}
	}
	if isProbe(e.Service) {
		s.Probes = append(s.Probes, e)
		return
	}
	s.Moves = append(s.Moves, e)
}

// isProbe reports whether a Service is one that agents call. Roles count only where replumb alone makes Services.
func isProbe(svc *corev1.Service) bool {
	role := svc.Labels[v1alpha1.LabelRole]
	return svc.Namespace == v1alpha1.SystemNamespace && (role == v1alpha1.RoleProbe || role == v1alpha1.RoleSingle)
}

// dnsServices are kube-dns and whatever Service has an address that a kubelet names as cluster DNS.
func dnsServices(snap *cluster.Snapshot, held holds) map[types.NamespacedName]bool {
	named := map[netip.Addr]bool{}
	for _, k := range snap.Kubelets {
		for _, text := range k.DNS {
			if a, err := netip.ParseAddr(text); err == nil {
				named[a] = true
			}
		}
	}
	found := map[types.NamespacedName]bool{}
	for i := range snap.Services {
		svc := &snap.Services[i]
		key := client.ObjectKeyFromObject(svc)
		current, _ := netip.ParseAddr(svc.Spec.ClusterIP)
		known := named[current]
		for a := range held[bridgeKey(svc)] { // a kubelet may still name where the Service was, or already where it goes
			known = known || named[a]
		}
		if !replumbs(svc) && (key == kubeDNSKey() || known) {
			found[key] = true
		}
	}
	return found
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

// Counts sums the survey up.
func (s *Survey) Counts() v1alpha1.Counts {
	c := v1alpha1.Counts{Total: len(s.Moves), Pinned: len(s.Pins), Stays: len(s.Stays)}
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

// probeStays reports whether a Service that agents call is there and has not moved.
func (s *Survey) probeStays() bool {
	return slices.ContainsFunc(s.Probes, func(e *Entry) bool { return e.Place != Moved })
}

// hasProbes reports whether all Services that agents call are there.
func (s *Survey) hasProbes() bool {
	for _, role := range []string{v1alpha1.RoleProbe, v1alpha1.RoleSingle} {
		if !slices.ContainsFunc(s.Probes, func(e *Entry) bool { return e.Service.Labels[v1alpha1.LabelRole] == role }) {
			return false
		}
	}
	return true
}

// everything is all that moves.
func (s *Survey) everything() []*Entry {
	return slices.Concat(s.Probes, s.Moves)
}

// InTier are the entries of a tier that are not at their new address yet.
func (s *Survey) InTier(name string) []*Entry {
	var out []*Entry
	for _, e := range s.Pending() {
		if e.Tier == name {
			out = append(out, e)
		}
	}
	return out
}

// Kubernetes is the entry of the Service by which pods reach the API server; nil if it does not move.
func (s *Survey) Kubernetes() *Entry {
	for _, e := range s.Moves {
		if e.IsKubernetes() {
			return e
		}
	}
	return nil
}

// DNSMoves are the entries of cluster DNS.
func (s *Survey) DNSMoves() []*Entry {
	var out []*Entry
	for _, e := range s.Moves {
		if s.DNS[e.Key()] {
			out = append(out, e)
		}
	}
	return out
}

// Blockers are the Services, by name, that neither move nor are pinned and so keep the ranges that are to go in use.
func (s *Survey) Blockers() []*Entry {
	var out []*Entry
	for _, e := range s.Stays {
		if hasAddressIn(e.Service, s.Spec.From) {
			out = append(out, e)
		}
	}
	return out
}

// Away are the entries of a tier that have left their old address and can return.
func (s *Survey) Away(name string) []*Entry {
	var out []*Entry
	for _, e := range s.Moves {
		if e.Tier == name && e.away() && !e.settled() {
			out = append(out, e)
		}
	}
	return out
}

// TierCounts counts the Services of each tier, with those that will have moved taken for moved.
func (s *Survey) TierCounts(will map[*Entry]bool) []v1alpha1.TierStatus {
	var out []v1alpha1.TierStatus
	for _, t := range s.Tiers {
		st := v1alpha1.TierStatus{Name: t}
		for _, e := range s.Moves {
			if e.Tier != t {
				continue
			}
			st.Total++
			if e.Place == Moved || will[e] {
				st.Moved++
			}
		}
		if st.Total > 0 {
			out = append(out, st)
		}
	}
	return out
}

// AnyMirrored reports whether a Service that moves has endpoints that have to be copied to its bridge.
func (s *Survey) AnyMirrored() bool { return slices.ContainsFunc(s.Moves, (*Entry).Mirrored) }

// movers are the Services that move.
func (s *Survey) movers() []*corev1.Service {
	all := make([]*corev1.Service, len(s.Moves))
	for i, e := range s.Moves {
		all[i] = e.Service
	}
	return all
}

// assign takes over which Service moves when. In the tier of the cluster's own, kubernetes is last: when its turn comes,
// everything else is proven to work.
func (s *Survey) assign(a tier.Assignment) {
	s.Tiers, s.TierProblems = a.Order, a.Unknown
	for _, e := range s.Moves {
		e.Tier = a.Of[e.Key()]
	}
	slices.SortStableFunc(s.Moves, func(a, b *Entry) int {
		switch {
		case a.IsKubernetes() == b.IsKubernetes():
			return 0
		case a.IsKubernetes():
			return 1
		}
		return -1
	})
}

// Holds names everything that keeps the ranges that are to go: Services that are still to move, those that stay, and the
// ranges themselves.
func (s *Survey) Holds() []string {
	var all []string
	for _, e := range s.Pending() {
		all = append(all, fmt.Sprintf("service %s (%s) has not moved", e.Key(), e.Old))
	}
	for _, e := range s.Blockers() {
		all = append(all, fmt.Sprintf("service %s (%s) %s", e.Key(), e.Old, e.Reason))
	}
	for i := range s.Ranges {
		if c := &s.Ranges[i]; s.empties(c) {
			all = append(all, fmt.Sprintf("servicecidr %s (%s)", c.Name, joinRanges(cidrsOf(c))))
		}
	}
	return all
}
