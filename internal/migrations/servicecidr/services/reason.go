package services

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/cidr"
)

// ReasonKind is why a Service keeps its address, for programs.
type ReasonKind string

const (
	// NotConcerned Services have no address in a range that is to be emptied.
	NotConcerned ReasonKind = "NotConcerned"
	// InTarget Services were made, or once moved, where the others go.
	InTarget ReasonKind = "InTarget"
	// Kept Services are pinned.
	Kept ReasonKind = "Kept"
	// Identity Services are pinned, since their address is what they are known by.
	Identity ReasonKind = "Identity"
	// ClusterService is one of the cluster's own, which stay by spec.serviceCIDR.clusterServices.
	ClusterService ReasonKind = "ClusterService"
	// Ending Services are being deleted, or their namespace is.
	Ending ReasonKind = "Ending"
	// Foreign Services belong to another migration.
	Foreign ReasonKind = "Foreign"
	// Refused Services would have to move, but cannot.
	Refused ReasonKind = "Refused"
	// Stranded Services are between the patches of a hop, and are refused an address.
	Stranded ReasonKind = "Stranded"
	// Unconfirmed Services claim a part in the migration that replumb's records do not confirm.
	Unconfirmed ReasonKind = "Unconfirmed"
)

// Reason says why a Service keeps its address. The zero value is that of Services that move.
type Reason struct {
	Kind ReasonKind
	Text string
}

func (r Reason) String() string { return r.Text }

// PositionOf says whether a Service that is not in the migration yet moves, and if not, why.
func (s *Inventory) PositionOf(svc *corev1.Service, owner string, current netip.Addr) (Position, Reason) {
	if reason := s.notConcerned(svc, owner, current); reason.Kind != "" {
		return Stays, reason
	}
	place, reason := s.Spec.Strategies.Evaluate(svc)
	if place == Waiting || reason.Kind == Refused {
		if s.IsClusterService(svc) && s.Spec.ClusterServices == v1alpha1.ClusterServicesStay {
			return Stays, Reason{ClusterService, "is one of the cluster's own Services, and spec.serviceCIDR.clusterServices is Stay"}
		}
	}
	return place, reason
}

// Evaluate says by the object alone what keeps a Service from moving, either way. Each step asks
// again, since it may have changed.
func (s Strategies) Evaluate(svc *corev1.Service) (Position, Reason) {
	if reason := WhyAddressless(svc); reason.Kind != "" {
		return Stays, reason
	}
	text := unsupported(svc)
	strategy, chosen, why := s.Choose(svc)
	switch {
	case strategy == v1alpha1.StrategyOfPin:
		return Pinned, Reason{Kept, why}
	case strategy == "" && chosen:
		return Stays, Reason{Refused, why}
	case !svc.DeletionTimestamp.IsZero():
		return Stays, Reason{Ending, "is being deleted"}
	case !chosen && identityOf(svc) != "":
		return Pinned, Reason{Identity, identityOf(svc)}
	}
	if text = cmp.Or(text, why); text != "" {
		return Stays, Reason{Refused, text}
	}
	return Waiting, Reason{}
}

// WhyAddressless says why a Service has no address; the zero Reason, if it has one.
func WhyAddressless(svc *corev1.Service) Reason {
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return Reason{NotConcerned, "is an ExternalName and has no address"}
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		return Reason{NotConcerned, "is headless and has no address"}
	}
	return Reason{}
}

func (s *Inventory) IsClusterService(svc *corev1.Service) bool {
	key := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
	return key == KubernetesKey() || s.DNS[key]
}

// notConcerned says why the migration has nothing to do with a Service; the zero Reason, if it has.
func (s *Inventory) notConcerned(svc *corev1.Service, owner string, current netip.Addr) Reason {
	without := WhyAddressless(svc)
	switch {
	case owner != "":
		return Reason{Foreign, "belongs to migration " + owner}
	case without.Kind != "":
		return without
	case !current.IsValid():
		return Reason{NotConcerned, "has no address"}
	case hasAddressIn(svc, s.Spec.From):
		return Reason{}
	case cidr.Contains(s.Spec.From, current):
		return Reason{}
	case len(s.Spec.To) > 0 && current.Is4() != s.Spec.To[0].Addr().Is4(): // and none of its addresses is
		return Reason{NotConcerned, "is not of the family of the target"}
	case cidr.Contains(s.Spec.To, current):
		return Reason{InTarget, "is in the target range already"}
	}
	return Reason{NotConcerned, "is in none of the ranges to empty"}
}

func hasAddressIn(svc *corev1.Service, ranges []netip.Prefix) bool {
	for _, text := range svc.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil && cidr.Contains(ranges, a) {
			return true
		}
	}
	return false
}

func unsupported(svc *corev1.Service) string {
	switch {
	case svc.Labels["service.kubernetes.io/service-proxy-name"] != "": // kube-proxy passes it over, and would serve its bridge
		return "is served by another proxy than kube-proxy, by its label service.kubernetes.io/service-proxy-name"
	case !slices.Contains([]corev1.ServiceType{
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer,
	}, svc.Spec.Type):
		return fmt.Sprintf("is of type %s, which is not known", svc.Spec.Type)
	}
	return ""
}
