package services

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/safety/backup"
)

// Tenants write annotations and labels, so Services are known by what only replumb and the control
// plane write: ClusterIPs, reserving IPAddresses, and the first backup (docs/design/trust.md).

// Reservation is an address that is reserved for a bridge.
type Reservation struct {
	Migration string
	// Noted says that nothing but a note keeps it: no API server gave it out.
	Noted bool
	UID   types.UID
	// Version is the resourceVersion in which it was seen.
	Version string
	// Original is the spec from before the latest hop, as far as it was noted.
	Original string
	// Old and Target are where the Service goes from and to, as the memo has it.
	Old, Target netip.Addr
	// Heading is where the Service is on its way to by a hop, if it is.
	Heading netip.Addr
	Since   time.Time
	// Form is that in which the Service keeps the address itself; empty, if it does not.
	Form v1alpha1.OverlapForm
}

// Reservations are reserved addresses by bridge, whose name has the UID of its Service in it.
type Reservations map[types.NamespacedName]map[netip.Addr]Reservation

// ReservationsOf a snapshot are those of all migrations.
func ReservationsOf(snap *inventory.Snapshot) Reservations {
	all := Reservations{}
	for i := range snap.IPAddresses {
		ip := &snap.IPAddresses[i]
		a, err := netip.ParseAddr(ip.Name)
		key, reserved := bridge.HeldFor(ip)
		if err != nil || !reserved {
			continue
		}
		if all[key] == nil {
			all[key] = map[netip.Addr]Reservation{}
		}
		r := Reservation{
			Migration: ip.Labels[v1alpha1.LabelMigration], UID: ip.UID, Version: ip.ResourceVersion, Noted: ip.Annotations[v1alpha1.AnnotationNoted] != "",
			Original: ip.Annotations[v1alpha1.AnnotationOriginalSpec], Since: bridge.LeftAt(ip),
			Form: v1alpha1.OverlapForm(ip.Annotations[v1alpha1.AnnotationOverlap]),
		}
		r.Old, _ = netip.ParseAddr(ip.Annotations[v1alpha1.AnnotationOldIP])
		r.Target, _ = netip.ParseAddr(ip.Annotations[v1alpha1.AnnotationTargetIP])
		r.Heading, _ = netip.ParseAddr(ip.Annotations[v1alpha1.AnnotationHeading])
		all[key][a] = r
	}
	return all
}

// Of a Service, those of one migration.
func (h Reservations) Of(svc *corev1.Service, migration string) map[netip.Addr]Reservation {
	mine := map[netip.Addr]Reservation{}
	for a, r := range h[BridgeKey(svc)] {
		if r.Migration == migration {
			mine[a] = r
		}
	}
	return mine
}

// Record has the addresses that Services had before the migration, by their UIDs: one, or one of
// each family.
type Record map[types.UID][]netip.Addr

// ReadRecord reads the backups of a migration; without the right to, it confirms nothing.
func ReadRecord(ctx context.Context, c client.Client, migration string) (Record, error) {
	objects, err := backup.Read(ctx, c, migration)
	if err != nil {
		if apierrors.IsForbidden(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading which addresses Services had: %w", err)
	}
	record := Record{}
	for i := range objects {
		o := &objects[i]
		ip, _, err := unstructured.NestedString(o.Object, "spec", "clusterIP")
		ips, _, errs := unstructured.NestedStringSlice(o.Object, "spec", "clusterIPs")
		if len(ips) == 0 {
			ips = []string{ip}
		}
		if all := ParseAddresses(ips); err == nil && errs == nil && len(all) > 0 && o.GetKind() == "Service" {
			record[o.GetUID()] = all
		}
	}
	return record, nil
}

// WantsRecord reports whether a Service claims a move that no reservation confirms.
func (l *Loader) WantsRecord() bool {
	spec := l.spec
	for i := range l.snap.Services {
		svc := &l.snap.Services[i]
		e := &Entry{Service: svc, Reserved: l.held.Of(svc, spec.Name)}
		current := spec.Current(svc)
		if svc.Annotations[v1alpha1.LabelMigration] == spec.Name && !e.heldIn(spec.From).IsValid() &&
			(!cidr.Contains(spec.From, current) || len(e.Reserved) == 0) {
			return true
		}
	}
	return false
}

// UnverifiedAnnotation is what an object says of itself and replumb's records do not confirm.
type UnverifiedAnnotation struct {
	Service *corev1.Service
	// Text follows the name of the Service.
	Text string
}

// recordedState sorts Services by what is recorded of them.
type recordedState struct {
	inventory *Inventory
	held      Reservations
	record    Record
	owners    map[netip.Addr]string
	names     sets.Set[types.NamespacedName]
}

func namesOf(snap *inventory.Snapshot) sets.Set[types.NamespacedName] {
	all := sets.New[types.NamespacedName]()
	for i := range snap.Services {
		all.Insert(client.ObjectKeyFromObject(&snap.Services[i]))
	}
	return all
}

// bridgeable leaves a Service alone whose bridge's name another Service has. At its old address it
// counts as pinned, or the whole range would stay in use.
func (w *recordedState) bridgeable(e *Entry) {
	free := e.Bridge == nil && !w.names.Has(e.BridgeKey())
	made := e.Bridge != nil && (bridge.Made(e.Bridge) || bridge.Named(e.Bridge, e.Service.UID))
	if e.Position == Stays || e.Position == Pinned || free || made {
		return
	}
	text := fmt.Sprintf("cannot have a bridge: service %s has its name, and replumb did not make it", e.BridgeKey())
	place := Stays
	if e.Position == Waiting {
		place = Pinned
	}
	e.Position, e.Reason = place, Reason{Unconfirmed, text}
	w.doubt(e.Service, "%s", text)
}

func givenOut(snap *inventory.Snapshot) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for i := range snap.IPAddresses {
		if a, err := netip.ParseAddr(snap.IPAddresses[i].Name); err == nil {
			all[a] = bridge.ParentOf(&snap.IPAddresses[i])
		}
	}
	return all
}

func (w *recordedState) doubt(svc *corev1.Service, format string, args ...any) {
	w.inventory.Unverified = append(w.inventory.Unverified, UnverifiedAnnotation{Service: svc, Text: fmt.Sprintf(format, args...)})
}

// IsOwn reports whether replumb made a Service for itself, other than bridges: only in its own
// namespace does a label say so.
func IsOwn(svc *corev1.Service) bool {
	return svc.Namespace == v1alpha1.SystemNamespace && svc.Labels[v1alpha1.LabelRole] != ""
}

// classify parts bridges, known by reserved addresses, from the Services they stand in for.
func (w *recordedState) classify(snap *inventory.Snapshot) (bridges map[types.NamespacedName]*corev1.Service, candidates []*corev1.Service) {
	bridges = map[types.NamespacedName]*corev1.Service{}
	for i := range snap.Services {
		svc := &snap.Services[i]
		key, role := client.ObjectKeyFromObject(svc), svc.Labels[v1alpha1.LabelRole]
		switch {
		case w.held[key] != nil:
			bridges[key] = svc
		case isProbe(svc):
			candidates = append(candidates, svc)
		case IsOwn(svc):
		default:
			if role != "" {
				w.doubt(svc, "has the label %s=%s, and replumb did not make it", v1alpha1.LabelRole, role)
			}
			candidates = append(candidates, svc)
		}
	}
	sort.Slice(candidates, func(i, j int) bool {
		a, b := candidates[i], candidates[j]
		return a.Namespace < b.Namespace || (a.Namespace == b.Namespace && a.Name < b.Name)
	})
	return bridges, candidates
}

func (w *recordedState) entry(svc *corev1.Service, ending bool) *Entry {
	s := w.inventory
	e := &Entry{Service: svc, Position: Waiting, Reserved: w.held.Of(svc, s.Spec.Name)}
	e.recall()
	if ending { // whatever it was before: no bridge can be made any more, and soon none is needed
		e.Old = s.Spec.Current(svc)
		e.Position, e.Reason = Stays, Reason{Ending, "is in a namespace that is being removed"}
		return e
	}
	owner := svc.Annotations[v1alpha1.LabelMigration]
	if owner != s.Spec.Name && len(e.Reserved) == 0 {
		e.Old = s.Spec.Current(svc)
		if owner != "" && len(w.held.Of(svc, owner)) == 0 {
			w.doubt(svc, "says that it belongs to migration %s, which has reserved no address for it", owner)
			owner = ""
		}
		e.Position, e.Reason = s.PositionOf(svc, owner, e.Old)
		return e
	}
	w.begun(e)
	return e
}

func (e *Entry) recall() {
	for _, r := range e.Reserved {
		e.Original = max(e.Original, r.Original)
	}
	e.Original = cmp.Or(e.RecordedMemo().Original, e.Original)
}

func (w *recordedState) begun(e *Entry) {
	s, svc := w.inventory, e.Service
	current := s.Spec.Current(svc)
	claims := svc.Annotations[v1alpha1.LabelMigration] == s.Spec.Name
	was := w.formerAddress(e)
	switch {
	case e.IsInTransit(svc, s.Spec.Domain):
		w.inTransit(e, was)
	case cidr.Contains(s.Spec.To, current) && was.IsValid():
		e.Old, e.New, e.Position = was, current, Moved
		_, e.Reason = s.Spec.Strategies.Evaluate(e.AsOwned(svc))
	case cidr.Contains(s.Spec.To, current) && claims:
		w.unconfirmed(e)
	case claims && w.returned(e, current):
		e.Old, e.New = current, e.recordedTarget(s.Spec.To)
		e.Position, e.Reason = s.PositionOf(e.AsOwned(svc), "", current)
	default:
		if claims && len(e.Reserved) == 0 {
			w.doubt(svc, "says that it is in the migration, which has not begun with it")
		}
		e.Old = current
		e.Position, e.Reason = s.PositionOf(e.AsOwned(svc), "", current)
	}
}

func (w *recordedState) inTransit(e *Entry, was netip.Addr) {
	to := w.inventory.Spec.To
	e.Old, e.New, e.Position = was, e.recordedTarget(to), InTransit
	if !e.Old.IsValid() || !e.New.IsValid() {
		w.unconfirmed(e)
	}
}

// returned reports whether a Service is back at the address that it had left, or about to be.
func (w *recordedState) returned(e *Entry, current netip.Addr) bool {
	spec := w.inventory.Spec
	recorded := slices.Contains(w.record[e.Service.UID], current) || e.RecordedMemo().Old == current
	return cidr.Contains(spec.From, current) && (e.heldIn(spec.To).IsValid() || recorded)
}

// removed reports whether the migration had begun with a Service that stays.
func (w *recordedState) removed(e *Entry) bool {
	if e.Position != Pinned && e.Position != Stays || e.Reason.Kind == Unconfirmed || e.Reason.Kind == Foreign ||
		e.IsInTransit(e.Service, w.inventory.Spec.Domain) {
		return false
	}
	_, recorded := w.record[e.Service.UID]
	return len(e.Reserved) > 0 || recorded && e.Service.Annotations[v1alpha1.LabelMigration] == w.inventory.Spec.Name
}

// IsInTransit reports whether a Service, as just read, is between the two patches of a hop. Its
// owner can write the same: reservations decide whether replumb has sent the first patch.
func (e *Entry) IsInTransit(svc *corev1.Service, domain string) bool {
	return LeadsToBridge(svc, domain) && e.onItsWay()
}

// LeadsToBridge reports whether a Service is of the type, and has the externalName, of the time
// between the patches.
func LeadsToBridge(svc *corev1.Service, domain string) bool {
	if svc.Spec.Type != corev1.ServiceTypeExternalName || svc.Spec.ExternalName == "" {
		return false
	}
	host := svc.Spec.ExternalName
	return host == BridgeHost(svc, domain) || host == svc.Annotations[v1alpha1.AnnotationOldIP]
}

// onItsWay reports whether a hop has begun and not ended, by what is reserved: the memo is written
// before the first patch, and the address left is reserved after the second. One that is reserved
// between them says so. With a memo of an earlier version, which has no heading, neither address is
// reserved in the middle of a hop alone.
func (e *Entry) onItsWay() bool {
	memo := e.RecordedMemo()
	_, old := e.Reserved[memo.Old]
	_, target := e.Reserved[memo.Target]
	switch {
	case e.markedHeading().IsValid():
		return true
	case !memo.Old.IsValid():
		return false
	case !memo.Heading.IsValid():
		return !old && !target
	case memo.Heading == memo.Old:
		return !target
	}
	return !old
}

// markedHeading is where the Service goes by the reservation of the address that it has left, which
// a completion makes before it sends the second patch.
func (e *Entry) markedHeading() (heading netip.Addr) {
	for a, r := range e.Reserved {
		if r.Heading.IsValid() && a != bridge.MemoAddress(e.Service.UID) {
			heading = r.Heading
		}
	}
	return heading
}

// formerAddress is the address that a Service leaves; invalid, if only the Service says so.
func (w *recordedState) formerAddress(e *Entry) netip.Addr {
	if a := e.heldIn(w.inventory.Spec.From); a.IsValid() {
		return a
	}
	if a := e.RecordedMemo().Old; cidr.Contains(w.inventory.Spec.From, a) {
		return a
	}
	a := AddressWithin(w.record[e.Service.UID], w.inventory.Spec.From)
	by, given := w.owners[a]
	own := "services " + client.ObjectKeyFromObject(e.Service).String() // the controller that repairs IPAddresses may be behind
	if !a.IsValid() || (given && by != own) {
		return netip.Addr{}
	}
	return a
}

func (w *recordedState) unconfirmed(e *Entry) {
	notes := e.Service.Annotations
	text := fmt.Sprintf("says that it is in the migration, from %q to %q, which replumb's records do not confirm",
		notes[v1alpha1.AnnotationOldIP], notes[v1alpha1.AnnotationTargetIP])
	e.Old = w.inventory.Spec.Current(e.Service)
	e.New, e.Position, e.Reason = netip.Addr{}, Stays, Reason{Unconfirmed, text}
	w.doubt(e.Service, "%s", text)
}

// heldIn is the reserved address in some ranges: the one annotations name, else the highest.
func (e *Entry) heldIn(ranges []netip.Prefix) netip.Addr {
	var found netip.Addr
	notes := e.Service.Annotations
	for a := range e.Reserved {
		named := a.String() == notes[v1alpha1.AnnotationOldIP] || a.String() == notes[v1alpha1.AnnotationTargetIP]
		if cidr.Contains(ranges, a) && (named || !found.IsValid() || found.Less(a)) {
			found = a
			if named {
				return a
			}
		}
	}
	return found
}

func (e *Entry) RecordedMemo() Reservation { return e.Reserved[bridge.MemoAddress(e.Service.UID)] }

func (e *Entry) recordedTarget(ranges []netip.Prefix) netip.Addr {
	if a := e.heldIn(ranges); a.IsValid() {
		return a
	}
	if a := e.RecordedMemo().Target; cidr.Contains(ranges, a) {
		return a
	}
	return netip.Addr{}
}

// MovedAt is when a Service arrived, by the other address's reservation. The Service's own word may
// have it later by what a hop takes, and never earlier, as its owner writes it.
func MovedAt(svc *corev1.Service, since time.Time) time.Time {
	at, err := time.Parse(time.RFC3339Nano, svc.Annotations[v1alpha1.AnnotationMovedAt])
	if err == nil && at.After(since) && at.Sub(since) < time.Minute {
		return at
	}
	return since
}

// OriginalOf is what of a spec the two patches of a hop could lose.
func OriginalOf(spec *corev1.ServiceSpec) (string, error) {
	var both []string
	if len(spec.ClusterIPs) > 1 {
		both = spec.ClusterIPs
	}
	body, err := json.Marshal(corev1.ServiceSpec{
		ClusterIPs: both, ExternalIPs: spec.ExternalIPs,
		Type: spec.Type, Ports: spec.Ports, IPFamilies: spec.IPFamilies, IPFamilyPolicy: spec.IPFamilyPolicy,
		InternalTrafficPolicy: spec.InternalTrafficPolicy, ExternalTrafficPolicy: spec.ExternalTrafficPolicy,
	})
	return string(body), err
}

// OriginalSpec is the spec from before the latest hop, by reservations, or by the Service where an
// earlier version of replumb made these.
func (e *Entry) OriginalSpec(svc *corev1.Service) (*corev1.ServiceSpec, error) {
	text, from := e.Original, "the reservations of service "+e.Key().String()
	if text == "" {
		text, from = svc.Annotations[v1alpha1.AnnotationOriginalSpec], "service "+e.Key().String()
	}
	if text == "" {
		return nil, &fault.Hinted{
			Err: fmt.Errorf("%s: there is no annotation %s", from, v1alpha1.AnnotationOriginalSpec),
			Hint: "others took it off: replumb backup has the Service as it was. Write its spec on it, as JSON, as " + v1alpha1.AnnotationOriginalSpec +
				", and run the same command again",
		}
	}
	spec := &corev1.ServiceSpec{}
	if err := json.Unmarshal([]byte(text), spec); err != nil {
		return nil, fmt.Errorf("%s: annotation %s: %w", from, v1alpha1.AnnotationOriginalSpec, err)
	}
	return spec, nil
}
