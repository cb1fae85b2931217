package agent

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// mover is a Service that moves, is about to, or has moved.
type mover struct {
	uid types.UID
	// name as namespace/name, and that of its bridge, if there is one.
	key, bridge types.NamespacedName
	// at is its address, invalid on the way; other is where its bridge or it itself answers as
	// well, invalid if none must.
	at, other netip.Addr
	// own is the bridge's ClusterIP, for the name during a hop; invalid without a bridge.
	own netip.Addr
	// port is its first for TCP, 0 if it has none.
	port uint16
	// movedAt is when it got to where it is; empty if it has never been elsewhere.
	movedAt string
}

func (m mover) left() netip.Addr {
	if m.movedAt == "" || !m.at.IsValid() {
		return netip.Addr{}
	}
	return m.other
}

// movers finds the Services that move. Tenants can write the annotations, so these are checked
// against a Service's address and the ranges, which they cannot choose.
func movers(s view) []mover {
	if s.migration == nil {
		return nil
	}
	bridges := bridgesOf(s)
	var found []mover
	for _, svc := range s.services {
		if m, begun := s.mover(svc, bridges[svc.UID]); begun {
			found = append(found, m)
		}
	}
	return found
}

// mover is a Service with its bridge, if it has one; false, if the migration has not begun with it.
func (s view) mover(svc, b *corev1.Service) (mover, bool) {
	m := mover{uid: svc.UID, key: types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, at: clusterIP(svc), port: firstTCP(svc)}
	if svc.Annotations[v1alpha1.LabelMigration] == s.migration.Name {
		m.movedAt = svc.Annotations[v1alpha1.AnnotationMovedAt]
	}
	own := s.ownAddress(svc)
	begun := b != nil || own.IsValid() || m.movedAt != ""
	if !svc.DeletionTimestamp.IsZero() || !begun || (m.at.IsValid() && !s.within(m.at)) {
		return m, false
	}
	if b == nil {
		if !s.migration.Status.PointOfNoReturnPassed {
			m.other = own
		}
		return m, true
	}
	m.bridge = types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
	if own := clusterIP(b); s.within(own) {
		m.own = own
	}
	if other := besides(b, m.at, s.migration); s.within(other) {
		m.other = other
	}
	return m, true
}

// ownAddress is the address of the migration's ranges at which a Service answers itself beside its
// own; invalid, if there is none.
func (s view) ownAddress(svc *corev1.Service) netip.Addr {
	if svc.Annotations[v1alpha1.LabelMigration] != s.migration.Name {
		return netip.Addr{}
	}
	for _, key := range []string{v1alpha1.AnnotationOldIP, v1alpha1.AnnotationTargetIP} {
		a := parse(svc.Annotations[key])
		if _, answers := ownaddress.FormOf(svc, a); a.IsValid() && answers && s.within(a) {
			return a
		}
	}
	return netip.Addr{}
}

// bridgesOf are bridges by the UID of their Service, recognized by namespace and derived name, not
// by labels.
func bridgesOf(s view) map[types.UID]*corev1.Service {
	claimed := map[types.UID][]*corev1.Service{}
	for _, b := range s.role(v1alpha1.RoleBridge) {
		of := types.UID(b.Annotations[v1alpha1.AnnotationServiceUID])
		claimed[of] = append(claimed[of], b)
	}
	bridges := map[types.UID]*corev1.Service{}
	for _, svc := range s.services {
		for _, b := range claimed[svc.UID] {
			if b.Namespace == svc.Namespace && b.Name == bridge.Name(svc.Name, svc.UID) {
				bridges[svc.UID] = b
			}
		}
	}
	return bridges
}

func besides(b *corev1.Service, at netip.Addr, m *v1alpha1.Migration) (other netip.Addr) {
	if m.Status.PointOfNoReturnPassed { // bridges are being taken away
		return other
	}
	for _, key := range []string{v1alpha1.AnnotationOldIP, v1alpha1.AnnotationTargetIP} {
		if a := parse(b.Annotations[key]); a != at {
			other = a
		}
	}
	return other
}

func firstTCP(svc *corev1.Service) uint16 {
	for _, p := range svc.Spec.Ports {
		if p.Protocol == corev1.ProtocolTCP || p.Protocol == "" {
			return uint16(p.Port) //nolint:gosec // a port
		}
	}
	return 0
}
