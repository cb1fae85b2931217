package servicecidr

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
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
	// strategy is how the Service gets to its other address.
	strategy v1alpha1.Strategy
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

// hops reports whether the Service is of another type for a moment, which all see who watch Services.
func (e *Entry) hops() bool { return e.strategy != v1alpha1.StrategyOfEtcd }

// Mirrored reports whether the endpoints of the bridge have to be copied, since no selector makes them.
func (e *Entry) Mirrored() bool { return len(e.Service.Spec.Selector) == 0 }
