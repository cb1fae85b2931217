package services

import (
	"cmp"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/ownaddress"
	"github.com/replumb/replumb/internal/spec/tier"
)

// Position is where a Service stands in the move.
type Position string

// The places, in the order of the move.
const (
	Waiting   Position = "waiting"
	Bridged   Position = "bridged"
	InTransit Position = "half-hopped"
	Moved     Position = "moved"
	// Pinned Services keep their address, which stays legitimate when its range goes.
	Pinned Position = "pinned"
	Stays  Position = "stays"
)

// ClusterTier is the tier of the cluster's own Services.
const ClusterTier = tier.ClusterServices

// Entry is one Service in the picture.
type Entry struct {
	Service  *corev1.Service
	Old, New netip.Addr
	// Reason is why the Service keeps its address, or may not return.
	Position Position
	Reason   Reason
	// Tier is the class of the Service; tiers move one after another.
	Tier   string
	Bridge *corev1.Service
	// Reserved are the addresses that are seen to be reserved for the bridge.
	Reserved map[netip.Addr]Reservation
	Strategy v1alpha1.Strategy
	Overlap  OverlapChoice
	// Called says that API servers call the Service, so that it moves alone.
	Called bool
	Routed bool
	// Original is the spec from before the latest hop, as far as reservations say it.
	Original string
}

// Touched reports whether the migration has noted the Service, or reserved an address for it.
func (e *Entry) Touched() bool {
	if e.Service.Annotations[v1alpha1.LabelMigration] != "" {
		return true
	}
	return e.Bridge == nil && len(e.Reserved) > 0
}

// Begun reports whether the migration has something of the Service to take back or to remove.
func (e *Entry) Begun() bool { return e.Position != Waiting || e.Touched() }

func (e *Entry) Away() bool { return e.Position == Moved || e.Position == InTransit }

// CannotReturn reports whether a later change keeps a moved Service where it is. Its old address
// answers until finish or rollback.
func (e *Entry) CannotReturn() bool { return e.Position == Moved && e.Reason.Kind != "" }

// IsStranded reports whether a Service is between its patches, and refused an address.
func (e *Entry) IsStranded() bool { return e.Position == InTransit && e.Reason.Kind != "" }

func (e *Entry) InTarget() bool { return e.Reason.Kind == InTarget }

func (e *Entry) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: e.Service.Namespace, Name: e.Service.Name}
}

// OldIsGone reports whether nothing answers at the old address of a Service that has moved, by the
// objects themselves.
func (e *Entry) OldIsGone() bool {
	if e.Position != Moved {
		return false
	}
	_, itself := ownaddress.FormOf(e.Service, e.Old)
	if itself || e.Bridge == nil {
		return !itself
	}
	_, bridged := ownaddress.FormOf(e.Bridge, e.Old)
	return !bridged
}

func (e *Entry) BridgeKey() types.NamespacedName {
	return BridgeKey(e.Service)
}

// BridgeKey is where the bridge of a Service is or would be.
func BridgeKey(svc *corev1.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: svc.Namespace, Name: bridge.Name(svc.Name, svc.UID)}
}

func (e *Entry) Reservation(migration string, a netip.Addr) *bridge.Hold {
	h := &bridge.Hold{Migration: migration, Address: a, Bridge: e.BridgeKey(), UID: e.Reserved[a].UID, Original: e.Original}
	_, itself := ownaddress.FormOf(e.Service, a)
	if !e.Hops() || itself || e.Reserved[a].Form != "" {
		h.Service = e.held()
	}
	return h
}

// ReservationLeft is Reservation for the address that a Service has just left.
func (e *Entry) ReservationLeft(migration string, a netip.Addr) *bridge.Hold {
	h := e.Reservation(migration, a)
	if e.KeepsItself() {
		h.Service = e.held()
	}
	return h
}

func (e *Entry) held() *bridge.HeldService {
	s := &bridge.HeldService{Name: e.Service.Name, UID: e.Service.UID}
	if e.KeepsItself() {
		s.Form = e.Overlap.Form
	}
	return s
}

// Memo is what is noted of a Service that is about to hop to an address.
func (e *Entry) Memo(migration string, heading netip.Addr) *bridge.Hold {
	m := bridge.Memo(migration, e.Service, e.Old, e.New)
	m.Original, m.Heading = e.Original, heading
	return m
}

// Ends are the address that a direction leaves, and the one to which it goes.
func (e *Entry) Ends(to engine.Direction) (src, dest netip.Addr) {
	if to == engine.Backward {
		return e.New, e.Old
	}
	return e.Old, e.New
}

// IsKubernetes reports whether pods reach the API server by the Service.
func (e *Entry) IsKubernetes() bool { return e.Key() == KubernetesKey() }

// HasNodePorts reports whether the Service answers at ports of the nodes, which no bridge keeps.
func (e *Entry) HasNodePorts() bool {
	if e.Position == InTransit {
		original, err := e.OriginalSpec(e.Service)
		return err == nil && original.Type == corev1.ServiceTypeNodePort
	}
	return e.AsOwned(e.Service).Spec.Type == corev1.ServiceTypeNodePort
}

// Hops reports whether all who watch Services see the Service as another type for a moment.
func (e *Entry) Hops() bool { return e.Strategy != v1alpha1.StrategyOfEtcd }

// Mirrored reports whether the endpoints of the bridge are copies, since no selector makes them.
func (e *Entry) Mirrored() bool { return len(e.Service.Spec.Selector) == 0 }

// Throttled reports whether ingress controllers are kept from a hop. A bridge without selector
// would copy what they are given to see instead.
func (e *Entry) Throttled() bool { return e.Routed && e.Hops() && !e.Mirrored() }

// Heading is where an interrupted hop was going.
func (e *Entry) Heading() engine.Direction {
	if cmp.Or(e.markedHeading(), e.RecordedMemo().Heading) == e.Old {
		return engine.Backward
	}
	return engine.Forward
}

// BridgeHost is the name of a Service's bridge in the DNS of the cluster.
func BridgeHost(svc *corev1.Service, domain string) string {
	key := BridgeKey(svc)
	return fmt.Sprintf("%s.%s.svc.%s", key.Name, key.Namespace, domain)
}
