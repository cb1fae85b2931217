package apitest

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// standIn plays the controllers that no controller manager runs here: ServiceCIDRs become ready and go when they are free,
// Services with a selector get an EndpointSlice, namespaces that are deleted go away. It passes over errors: the next round looks again.
func standIn(ctx context.Context, c client.Client) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		ranges(ctx, c)
		endpoints(ctx, c)
		finalize(ctx, c)
	}, 50*time.Millisecond)
}

// standInWithoutEndpoints costs next to nothing: it looks at two small collections.
func standInWithoutEndpoints(ctx context.Context, c client.Client) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		ranges(ctx, c)
		finalize(ctx, c)
	}, 200*time.Millisecond)
}

func endpoints(ctx context.Context, c client.Client) {
	services, pods := &corev1.ServiceList{}, &corev1.PodList{}
	if c.List(ctx, services) != nil || c.List(ctx, pods) != nil {
		return
	}
	wanted := map[client.ObjectKey]bool{}
	for i := range services.Items {
		svc := &services.Items[i]
		// The real controller leaves the slices of an ExternalName Service alone, too.
		wanted[client.ObjectKey{Namespace: svc.Namespace, Name: svc.Name + "-standin"}] = true
		if len(svc.Spec.Selector) > 0 && svc.Spec.Type != corev1.ServiceTypeExternalName {
			ensureSlice(ctx, c, sliceFor(svc, pods.Items))
		}
	}
	all := &discoveryv1.EndpointSliceList{}
	_ = c.List(ctx, all, client.MatchingLabels{discoveryv1.LabelManagedBy: "standin"})
	for i := range all.Items {
		if !wanted[client.ObjectKeyFromObject(&all.Items[i])] {
			_ = c.Delete(ctx, &all.Items[i])
		}
	}
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

func ensureSlice(ctx context.Context, c client.Client, want *discoveryv1.EndpointSlice) {
	have := &discoveryv1.EndpointSlice{}
	if c.Get(ctx, client.ObjectKeyFromObject(want), have) != nil {
		_ = c.Create(ctx, want)
		return
	}
	if !equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) || !equality.Semantic.DeepEqual(have.Ports, want.Ports) {
		have.Endpoints, have.Ports = want.Endpoints, want.Ports
		_ = c.Update(ctx, have)
	}
}

func finalize(ctx context.Context, c client.Client) {
	all := &corev1.NamespaceList{}
	_ = c.List(ctx, all)
	for i := range all.Items {
		if ns := &all.Items[i]; !ns.DeletionTimestamp.IsZero() {
			ns.Spec.Finalizers = nil
			_ = c.SubResource("finalize").Update(ctx, ns)
		}
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
