package leaving

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	// managedBy is whose EndpointSlices replumb's are; the controllers leave those of others alone.
	managedBy   = "replumb.dev"
	longestName = 253
)

// about reports whether an endpoint is a pod.
func about(e *discoveryv1.Endpoint, pod *corev1.Pod) bool {
	if e.TargetRef != nil && e.TargetRef.UID != "" {
		return e.TargetRef.UID == pod.UID
	}
	return slices.ContainsFunc(e.Addresses, func(a string) bool {
		return slices.ContainsFunc(Addresses(pod), func(own netip.Addr) bool { return own.String() == a })
	})
}

func serves(s *discoveryv1.EndpointSlice, pod *corev1.Pod) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
		return about(&e, pod) && (e.Conditions.Ready == nil || *e.Conditions.Ready)
	})
}

// farewell reports whether a slice is one that keeps an endpoint while its pod leaves.
func farewell(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[discoveryv1.LabelManagedBy] == managedBy && s.Labels[v1alpha1.LabelRole] == v1alpha1.RoleLeaving
}

// Leads are the slices that lead clients to a pod, without those made because it leaves.
func Leads(all []discoveryv1.EndpointSlice, pod *corev1.Pod) []discoveryv1.EndpointSlice {
	return slices.DeleteFunc(slices.Clone(all), func(s discoveryv1.EndpointSlice) bool {
		return farewell(&s) || !slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return about(&e, pod) })
	})
}

// farewells are slices that say of a pod that it is terminating and serving. kube-proxy sends no
// new clients to such an endpoint, and keeps its conntrack entries (CleanStaleEntries in
// k8s.io/kubernetes pkg/proxy/conntrack/cleanup.go). Of one endpoint in two slices it takes the one
// that does not end (addEndpoints in pkg/proxy/endpointslicecache.go), so these count once the
// others lack the pod.
func farewells(all []discoveryv1.EndpointSlice, services []corev1.Service, pod *corev1.Pod, migration string) []discoveryv1.EndpointSlice {
	var made []discoveryv1.EndpointSlice
	for _, s := range Leads(all, pod) {
		at := slices.IndexFunc(services, func(svc corev1.Service) bool { return svc.Name == s.Labels[discoveryv1.LabelServiceName] })
		if at < 0 || services[at].Spec.ClusterIP == corev1.ClusterIPNone {
			continue // no kube-proxy has anything to do with it
		}
		k := slices.IndexFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return about(&e, pod) })
		e := s.Endpoints[k]
		e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}
		e.Hints = nil
		svc := &services[at]
		made = append(made, discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: pod.Namespace, Name: nameOf(svc.Name, s.Name, string(pod.UID)),
				Labels: map[string]string{
					discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: managedBy,
					v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: v1alpha1.RoleLeaving,
				},
				Annotations: map[string]string{v1alpha1.AnnotationLeaving: string(pod.UID)},
				// The owner has the garbage collector delete the slice with the pod.
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
			},
			AddressType: s.AddressType, Endpoints: []discoveryv1.Endpoint{e}, Ports: s.Ports,
		})
	}
	return made
}

func nameOf(service, slice, uid string) string {
	sum := sha256.Sum256([]byte(slice + "/" + uid))
	tail := "-leaving-" + hex.EncodeToString(sum[:])[:10]
	return service[:min(len(service), longestName-len(tail))] + tail
}
