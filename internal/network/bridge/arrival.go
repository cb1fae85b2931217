package bridge

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Arrival is the second patch of a hop, which gives a Service its other address.
type Arrival struct {
	// Service is as after the first patch, Original is the spec that it had before.
	Service  *corev1.Service
	Original *corev1.ServiceSpec
	// At is the address that it gets, Target the one to which its migration takes it.
	At, Target netip.Addr
	Now        time.Time
}

// Patch is a merge patch to the version of the Service.
func (a Arrival) Patch() map[string]any {
	original, addresses := a.Original, addressesOnArrival(a.At, a.Original)
	spec := map[string]any{
		"type":                  original.Type,
		"externalName":          nil,
		"clusterIP":             addresses[0],
		"clusterIPs":            addresses,
		"ipFamilies":            original.IPFamilies,
		"ipFamilyPolicy":        original.IPFamilyPolicy,
		"internalTrafficPolicy": original.InternalTrafficPolicy,
	}
	nodePorts := original.Type == corev1.ServiceTypeNodePort
	if nodePorts || len(a.Service.Spec.Ports) == 0 { // the first patch gave node ports up, and an ExternalName needs none
		spec["ports"] = original.Ports
	}
	if nodePorts {
		spec["externalTrafficPolicy"] = original.ExternalTrafficPolicy
	}
	if len(original.ExternalIPs) > 0 {
		spec["externalIPs"], spec["externalTrafficPolicy"] = original.ExternalIPs, original.ExternalTrafficPolicy
	}
	return map[string]any{
		"metadata": map[string]any{
			"resourceVersion": a.Service.ResourceVersion,
			"annotations": map[string]any{
				v1alpha1.AnnotationTargetIP: a.Target.String(),
				v1alpha1.AnnotationMovedAt:  a.Now.UTC().Format(time.RFC3339Nano),
			},
		},
		"spec": spec,
	}
}

// addressesOnArrival are the addresses of a Service that arrives at one, in the order of its
// families.
func addressesOnArrival(dest netip.Addr, original *corev1.ServiceSpec) []string {
	for i, text := range original.ClusterIPs {
		kept, err := netip.ParseAddr(text)
		switch {
		case err != nil || kept.Is4() == dest.Is4():
		case i == 0:
			return []string{kept.String(), dest.String()}
		default:
			return []string{dest.String(), kept.String()}
		}
	}
	return []string{dest.String()}
}
