package services

import (
	"net/netip"
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/serviceranges"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/spec/tier"
)

// KubernetesKey is the Service by which pods reach the API server.
func KubernetesKey() types.NamespacedName {
	return types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}
}

// KubeDNSKey is where installers put cluster DNS.
func KubeDNSKey() types.NamespacedName {
	return types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: "kube-dns"}
}

// Inventory is what a plan needs to know of a cluster's Services. It is not changed once made.
type Inventory struct {
	Spec     Spec
	Recorded metav1.Time
	Moves    []*Entry
	// Probes are the Services that agents call, and no user's.
	Probes []*Entry
	Pins   []*Entry
	Stays  []*Entry
	Tiers  []string
	Ranges []networkingv1.ServiceCIDR
	// Bitmap says that there are none: the one range is a flag of the API servers.
	Bitmap       bool
	TierProblems []tier.Problem
	// DNS are the Services that kubelets name to pods as cluster DNS.
	DNS     map[types.NamespacedName]bool
	Orphans []*corev1.Service
	// Removed are those of Pins and Stays that the migration had begun with.
	Removed []*Entry
	// Unverified are annotations and labels that replumb's records do not confirm.
	Unverified []UnverifiedAnnotation
	// OrphanedReservations belong to no bridge and to no Service that moves.
	OrphanedReservations []networkingv1.IPAddress
	Used                 []netip.Addr
	Pool                 *cidr.Allocator
}

// Loader makes the inventory of a snapshot.
type Loader struct {
	snap *inventory.Snapshot
	spec Spec
	held Reservations
}

// NewLoader reads what is asked of a snapshot more than once.
func NewLoader(snap *inventory.Snapshot, spec Spec) *Loader {
	return &Loader{snap: snap, spec: Resolve(spec, snap), held: ReservationsOf(snap)}
}

// Load makes the inventory of a snapshot, without a record.
func Load(snap *inventory.Snapshot, spec Spec) *Inventory { return NewLoader(snap, spec).Load(nil) }

// Load asks the record for former addresses without a reservation (WantsRecord).
func (l *Loader) Load(record Record) *Inventory {
	snap := l.snap
	s := &Inventory{
		Spec: l.spec, Ranges: snap.ServiceCIDRs, Bitmap: snap.Ranges == serviceranges.Bitmap,
		DNS: dnsServices(snap, l.held),
	}
	w := recordedState{inventory: s, held: l.held, record: record, owners: givenOut(snap), names: namesOf(snap)}
	bridges, candidates := w.classify(snap)
	for _, svc := range candidates {
		e := w.entry(svc, snap.Ending[svc.Namespace])
		e.Strategy = s.Spec.Strategies.Of(e)
		e.Bridge = bridges[e.BridgeKey()]
		delete(bridges, e.BridgeKey())
		w.bridgeable(e)
		e.Overlap = s.overlapOf(e, OverlapFacts{})
		if w.removed(e) {
			s.Removed = append(s.Removed, e)
		}
		s.add(e)
	}
	s.addOrphans(bridges)
	s.assignTargets(snap)
	return s
}

func (s *Inventory) add(e *Entry) {
	switch e.Position {
	case Stays:
		s.Stays = append(s.Stays, e)
		return
	case Pinned:
		s.Pins = append(s.Pins, e)
		return
	case Waiting:
		if e.Bridge != nil || e.seenForm() != "" {
			e.Position = Bridged
		}
	}
	if isProbe(e.Service) {
		s.Probes = append(s.Probes, e)
		return
	}
	s.Moves = append(s.Moves, e)
}

// isProbe reports whether agents call a Service. Roles count only in replumb's own namespace.
func isProbe(svc *corev1.Service) bool {
	role := svc.Labels[v1alpha1.LabelRole]
	return svc.Namespace == v1alpha1.SystemNamespace && (role == v1alpha1.RoleProbe || role == v1alpha1.RoleSingle)
}

// dnsServices are kube-dns and those that kubelets name; without either, what installers label so.
func dnsServices(snap *inventory.Snapshot, held Reservations) map[types.NamespacedName]bool {
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
		known := slices.ContainsFunc(AddressesOf(svc), func(a netip.Addr) bool { return named[a] })
		for a := range held[BridgeKey(svc)] { // a kubelet may still name where the Service was, or already where it goes
			known = known || named[a]
		}
		if !IsOwn(svc) && (key == KubeDNSKey() || known) {
			found[key] = true
		}
	}
	if len(found) > 0 {
		return found
	}
	for i := range snap.Services {
		if svc := &snap.Services[i]; !IsOwn(svc) && labelledDNS(svc) {
			found[client.ObjectKeyFromObject(svc)] = true
		}
	}
	return found
}

// labelledDNS goes by a label of CoreDNS' chart (github.com/coredns/helm
// charts/coredns/templates/service.yaml), and by one of Kubespray, whose Service is called coredns
// (roles/kubernetes-apps/ansible/templates/coredns-svc.yml.j2).
func labelledDNS(svc *corev1.Service) bool {
	return svc.Namespace == metav1.NamespaceSystem &&
		(svc.Labels["k8s-app"] == "kube-dns" || svc.Labels["kubernetes.io/name"] == "CoreDNS")
}

func (s *Inventory) addOrphans(left map[types.NamespacedName]*corev1.Service) {
	for _, b := range left {
		if b.Labels[v1alpha1.LabelMigration] == s.Spec.Name {
			s.Orphans = append(s.Orphans, b)
		}
	}
	sort.Slice(s.Orphans, func(i, j int) bool {
		return s.Orphans[i].Namespace+"/"+s.Orphans[i].Name < s.Orphans[j].Namespace+"/"+s.Orphans[j].Name
	})
}

func (s *Inventory) Counts() v1alpha1.Counts {
	c := v1alpha1.Counts{Total: len(s.Moves), Pinned: len(s.Pins), Stays: len(s.Stays)}
	for _, e := range s.Moves {
		if e.Position == Moved {
			c.Moved++
		}
		if e.Bridge != nil && !e.OldIsGone() {
			c.Bridged++
		}
	}
	return c
}

// Pending are the entries that are not at their new address yet, and may get there.
func (s *Inventory) Pending() []*Entry {
	var out []*Entry
	for _, e := range s.Moves {
		if e.Position != Moved && !e.IsStranded() {
			out = append(out, e)
		}
	}
	return out
}

// Unbridged are those of Pending that have no bridge, whether they need one or not.
func (s *Inventory) Unbridged() []*Entry {
	return slices.DeleteFunc(s.Pending(), func(e *Entry) bool { return e.Bridge != nil })
}

// ProbesPending reports whether a Service that agents call has not moved.
func (s *Inventory) ProbesPending() bool {
	return slices.ContainsFunc(s.Probes, func(e *Entry) bool { return e.Position != Moved && !e.IsStranded() })
}

// HasProbes reports whether all Services that agents call are there.
func (s *Inventory) HasProbes() bool {
	for _, role := range []string{v1alpha1.RoleProbe, v1alpha1.RoleSingle} {
		if !slices.ContainsFunc(s.Probes, func(e *Entry) bool { return e.Service.Labels[v1alpha1.LabelRole] == role }) {
			return false
		}
	}
	return true
}

// All is all that moves.
func (s *Inventory) All() []*Entry {
	return slices.Concat(s.Probes, s.Moves)
}

// AsLoadBalancers reports whether a Service keeps its old address as that of a load balancer.
func (s *Inventory) AsLoadBalancers() bool {
	return slices.ContainsFunc(s.All(), func(e *Entry) bool { return e.Overlap.Form == v1alpha1.OverlapLoadBalancer })
}

func (s *Inventory) InTier(name string) []*Entry {
	var out []*Entry
	for _, e := range s.Pending() {
		if e.Tier == name {
			out = append(out, e)
		}
	}
	return out
}

// Kubernetes is the entry of the Service by which pods reach the API server; nil, if it stays.
func (s *Inventory) Kubernetes() *Entry {
	for _, e := range s.Moves {
		if e.IsKubernetes() {
			return e
		}
	}
	return nil
}

func (s *Inventory) DNSMoves() []*Entry {
	var out []*Entry
	for _, e := range s.Moves {
		if s.DNS[e.Key()] {
			out = append(out, e)
		}
	}
	return out
}

// Blockers are the Services that neither move nor are pinned, and keep old ranges in use.
func (s *Inventory) Blockers() []*Entry {
	var out []*Entry
	for _, e := range s.Stays {
		if hasAddressIn(e.Service, s.Spec.From) {
			out = append(out, e)
		}
	}
	return out
}

// Away are the entries of a tier that have left their old address and can return.
func (s *Inventory) Away(name string) []*Entry {
	var out []*Entry
	for _, e := range s.Moves {
		if e.Tier == name && e.Away() && !e.CannotReturn() && !e.IsStranded() {
			out = append(out, e)
		}
	}
	return out
}

// Stranded are the entries that were left between their patches, and are refused an address.
func (s *Inventory) Stranded() []*Entry {
	return slices.DeleteFunc(s.All(), func(e *Entry) bool { return !e.IsStranded() })
}

// TierCounts counts the Services of each tier, and those that will have moved as moved.
func (s *Inventory) TierCounts(will map[*Entry]bool) []v1alpha1.TierStatus {
	var out []v1alpha1.TierStatus
	for _, t := range s.Tiers {
		st := v1alpha1.TierStatus{Name: t}
		for _, e := range s.Moves {
			if e.Tier != t {
				continue
			}
			st.Total++
			if e.Position == Moved || will[e] {
				st.Moved++
			}
		}
		if st.Total > 0 {
			out = append(out, st)
		}
	}
	return out
}

func (s *Inventory) AnyMirrored() bool { return slices.ContainsFunc(s.Moves, (*Entry).Mirrored) }

func (s *Inventory) Services() []*corev1.Service {
	all := make([]*corev1.Service, len(s.Moves))
	for i, e := range s.Moves {
		all[i] = e.Service
	}
	return all
}

// AssignTiers has kubernetes last in its tier, when all else is proven to work.
func (s *Inventory) AssignTiers(a tier.Assignment) {
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

func (s *Inventory) MarkRouted(all []inventory.Route) {
	for _, e := range s.Moves {
		for _, r := range all {
			e.Routed = e.Routed || r.Service == e.Key()
		}
	}
}

func (s *Inventory) DNSKept() []netip.Addr {
	var all []netip.Addr
	for _, e := range s.DNSMoves() {
		if a := e.Kept(e.Service); a.IsValid() {
			all = append(all, a)
		}
	}
	return all
}
