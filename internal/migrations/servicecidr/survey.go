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
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/spec/tier"
)

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
	// Bitmap says that the cluster has none: the one range is what its API servers have as a flag.
	Bitmap bool
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

	// back is the pool of the way back, once it was asked for: see returnPool.
	back *cidr.Pool
}

// Look surveys a picture of the cluster. The record is asked for the addresses that Services had before the migration, where
// no reservation says so; see WantsRecord.
func Look(snap *cluster.Snapshot, spec Spec, record Record) *Survey {
	spec = Resolve(spec, snap)
	held := reservations(snap)
	s := &Survey{Spec: spec, Ranges: snap.ServiceCIDRs, Bitmap: snap.Ranges == cluster.Bitmap, DNS: dnsServices(snap, held)}
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
	e.strategy = s.Spec.Strategies.strategy(e)
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

// dnsServices are kube-dns and whatever Service has an address that a kubelet names as cluster DNS. Where there is no kube-dns and kubelets
// cannot be asked, it is what installers label so: a cluster's own Service must not pass for an application's.
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
		known := slices.ContainsFunc(addressesOf(svc), func(a netip.Addr) bool { return named[a] })
		for a := range held[bridgeKey(svc)] { // a kubelet may still name where the Service was, or already where it goes
			known = known || named[a]
		}
		if !replumbs(svc) && (key == kubeDNSKey() || known) {
			found[key] = true
		}
	}
	if len(found) > 0 {
		return found
	}
	for i := range snap.Services {
		if svc := &snap.Services[i]; !replumbs(svc) && labelledDNS(svc) {
			found[client.ObjectKeyFromObject(svc)] = true
		}
	}
	return found
}

// labelledDNS reports whether a Service of kube-system has the label of the cluster's DNS, which CoreDNS' chart gives as well:
// rke2-coredns-rke2-coredns has it (github.com/coredns/helm charts/coredns/templates/service.yaml).
func labelledDNS(svc *corev1.Service) bool {
	return svc.Namespace == metav1.NamespaceSystem && svc.Labels["k8s-app"] == "kube-dns"
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
		if c := &s.Ranges[i]; s.empties(c) && !s.Bitmap {
			all = append(all, fmt.Sprintf("servicecidr %s (%s)", c.Name, joinRanges(cidrsOf(c))))
		}
	}
	return all
}
