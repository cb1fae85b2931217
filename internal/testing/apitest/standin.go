package apitest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/testing/watching"
)

// standIn plays the controllers that no controller manager runs here: ServiceCIDRs become ready and
// go when they are free, Services with a selector get an EndpointSlice, namespaces that are deleted
// go away. It passes over errors: the next round looks again.
func standIn(ctx context.Context, s *Server) {
	var all sync.WaitGroup
	all.Go(func() { standInWithoutEndpoints(ctx, s) })
	all.Go(func() { watching.Whenever(ctx, s, andLater(s, endpoints), &corev1.ServiceList{}, &corev1.PodList{}) })
	all.Wait()
}

// standInWithoutEndpoints costs next to nothing, however many Services there are.
func standInWithoutEndpoints(ctx context.Context, s *Server) {
	var all sync.WaitGroup
	all.Go(func() { watching.Whenever(ctx, s, s.ranges, &networkingv1.ServiceCIDRList{}) })
	all.Go(func() { watching.Whenever(ctx, s, andLater(s, finalize), &corev1.NamespaceList{}) })
	all.Wait()
}

// Controllers look although they have seen nothing change: soon while a range that goes waits for
// addresses, which are too many to be watched; later in case a watch was lost.
const (
	soon  = 100 * time.Millisecond
	later = time.Second
)

// andLater looks, and again later.
func andLater(s *Server, look func(context.Context, client.Client)) func(context.Context) time.Duration {
	return func(ctx context.Context) time.Duration {
		look(ctx, s)
		return later
	}
}

func endpoints(ctx context.Context, c client.Client) {
	// The slices first: that the owner of one is not among the Services then means that it is gone.
	all, services, pods := &discoveryv1.EndpointSliceList{}, &corev1.ServiceList{}, &corev1.PodList{}
	if c.List(ctx, all) != nil || c.List(ctx, services) != nil || c.List(ctx, pods) != nil {
		return
	}
	wanted := map[client.ObjectKey]bool{}
	for i := range services.Items {
		svc := &services.Items[i]
		// The real controller leaves the slices of an ExternalName Service alone, too.
		wanted[client.ObjectKey{Namespace: svc.Namespace, Name: svc.Name + "-standin"}] = true
		if len(svc.Spec.Selector) > 0 && svc.Spec.Type != corev1.ServiceTypeExternalName {
			ensureSlice(ctx, c, all.Items, sliceFor(svc, pods.Items))
		}
	}
	for i := range all.Items {
		s := &all.Items[i]
		unwanted := s.Labels[discoveryv1.LabelManagedBy] == "standin" && !wanted[client.ObjectKeyFromObject(s)]
		if unwanted || orphaned(s, services.Items) {
			_ = c.Delete(ctx, s)
		}
	}
}

// orphaned reports whether the garbage collector would remove a slice: the Service that owns it is
// gone.
func orphaned(slice *discoveryv1.EndpointSlice, services []corev1.Service) bool {
	return slices.ContainsFunc(slice.OwnerReferences, func(ref metav1.OwnerReference) bool {
		return ref.Kind == "Service" && !slices.ContainsFunc(services, func(s corev1.Service) bool { return s.UID == ref.UID })
	})
}

func sliceFor(svc *corev1.Service, pods []corev1.Pod) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: svc.Name + "-standin",
			Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: "standin"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range svc.Spec.Ports {
		port := p.TargetPort.IntVal
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &port})
	}
	for i := range pods {
		p := &pods[i]
		if p.Namespace == svc.Namespace && p.Status.PodIP != "" && labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(p.Labels)) {
			ready := true
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{p.Status.PodIP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
	}
	return slice
}

// ensureSlice has a slice look as wanted, where there are those others.
func ensureSlice(ctx context.Context, c client.Client, others []discoveryv1.EndpointSlice, want *discoveryv1.EndpointSlice) {
	at := slices.IndexFunc(others, func(s discoveryv1.EndpointSlice) bool {
		return s.Namespace == want.Namespace && s.Name == want.Name
	})
	if at < 0 {
		_ = c.Create(ctx, want)
		return
	}
	have := &others[at]
	if !equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) || !equality.Semantic.DeepEqual(have.Ports, want.Ports) {
		have.Endpoints, have.Ports = want.Endpoints, want.Ports
		_ = c.Update(ctx, have)
	}
}

// finalize lets namespaces go that are deleted, without what migrations keep there: in one of the
// same name it would be found again.
func finalize(ctx context.Context, c client.Client) {
	all := &corev1.NamespaceList{}
	_ = c.List(ctx, all)
	for i := range all.Items {
		ns := &all.Items[i]
		if ns.DeletionTimestamp.IsZero() || c.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(ns.Name)) != nil {
			continue
		}
		ns.Spec.Finalizers = nil
		_ = c.SubResource("finalize").Update(ctx, ns)
	}
}

func objects(t testing.TB, list client.ObjectList) []client.Object {
	t.Helper()
	items, err := meta.ExtractList(list)
	if err != nil {
		t.Fatal(err)
	}
	var out []client.Object
	for _, item := range items {
		out = append(out, item.(client.Object))
	}
	return out
}
