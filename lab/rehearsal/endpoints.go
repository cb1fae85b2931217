package rehearsal

import (
	"context"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// endpoints plays the controller of EndpointSlices for Services that are made from when it begins, such as bridges. Those of the snapshot came
// with theirs. No pod comes or goes meanwhile.
type endpoints struct {
	client client.WithWatch

	pods podIndex

	mu    sync.Mutex
	known map[types.UID]client.ObjectKey
	// made are the slices that this one made, by Service.
	made map[types.UID][]*discoveryv1.EndpointSlice
	work sync.WaitGroup
}

// podIndex holds the pods that are ready by each of their labels: of tens of thousands in a namespace, a Service selects a few.
type podIndex map[podKey][]*corev1.Pod

type podKey struct{ namespace, label, value string }

func (x podIndex) add(p *corev1.Pod) {
	for label, value := range p.Labels {
		k := podKey{p.Namespace, label, value}
		x[k] = append(x[k], p)
	}
}

// near are pods among which are all that a Service selects.
func (x podIndex) near(svc *corev1.Service) []*corev1.Pod {
	var fewest []*corev1.Pod
	first := true
	for label, value := range svc.Spec.Selector {
		if have := x[podKey{svc.Namespace, label, value}]; first || len(have) < len(fewest) {
			fewest, first = have, false
		}
	}
	return fewest
}

// endpointsPerSlice is the most that a slice takes.
const endpointsPerSlice = 1000

// begin reads what is there.
func (e *endpoints) begin(ctx context.Context) error {
	services, pods := &corev1.ServiceList{}, &corev1.PodList{}
	if err := e.client.List(ctx, services); err != nil {
		return err
	}
	if err := e.client.List(ctx, pods); err != nil {
		return err
	}
	e.known, e.made, e.pods = map[types.UID]client.ObjectKey{}, map[types.UID][]*discoveryv1.EndpointSlice{}, podIndex{}
	for i := range services.Items {
		e.known[services.Items[i].UID] = client.ObjectKeyFromObject(&services.Items[i])
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; ready(p) {
			e.pods.add(p)
		}
	}
	return nil
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// play goes on until ctx ends.
func (e *endpoints) play(ctx context.Context) {
	wait.UntilWithContext(ctx, e.follow, 100*time.Millisecond)
	e.work.Wait()
}

// follow looks at all Services, and at every change until the watch ends.
func (e *endpoints) follow(ctx context.Context) {
	all := &corev1.ServiceList{}
	if e.client.List(ctx, all) != nil {
		return // the next round looks again
	}
	for i := range all.Items {
		e.see(ctx, watch.Added, &all.Items[i])
	}
	from := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: all.ResourceVersion}}
	w, err := e.client.Watch(ctx, &corev1.ServiceList{}, from)
	if err != nil {
		return
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if svc, is := event.Object.(*corev1.Service); is {
			e.see(ctx, event.Type, svc)
		}
	}
}

func (e *endpoints) see(ctx context.Context, kind watch.EventType, svc *corev1.Service) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, known := e.known[svc.UID]
	switch {
	case kind == watch.Deleted:
		delete(e.known, svc.UID)
		e.later(ctx, func(ctx context.Context) error { return e.remove(ctx, svc) })
	case !known && len(svc.Spec.Selector) > 0 && svc.Spec.Type != corev1.ServiceTypeExternalName:
		e.known[svc.UID] = client.ObjectKeyFromObject(svc)
		e.later(ctx, func(ctx context.Context) error { return e.make(ctx, svc) })
	}
}

// later does something until it works.
func (e *endpoints) later(ctx context.Context, do func(context.Context) error) {
	e.work.Go(func() {
		_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			return client.IgnoreNotFound(client.IgnoreAlreadyExists(do(ctx))) == nil, nil
		})
	})
}

// make gives a Service a slice for each of its families. It goes on after those that it has made before.
func (e *endpoints) make(ctx context.Context, svc *corev1.Service) error {
	for _, family := range svc.Spec.IPFamilies[len(e.of(svc)):] {
		slice := sliceOf(svc, family, e.pods.near(svc))
		if err := e.client.Create(ctx, slice); err != nil {
			return err
		}
		e.mu.Lock()
		e.made[svc.UID] = append(e.made[svc.UID], slice)
		e.mu.Unlock()
	}
	return nil
}

// of are the slices that it made for a Service.
func (e *endpoints) of(svc *corev1.Service) []*discoveryv1.EndpointSlice {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.made[svc.UID]
}

// remove plays the garbage collector: the slices that a Service owned go with it. Those that came with the snapshot are looked for.
func (e *endpoints) remove(ctx context.Context, svc *corev1.Service) error {
	owned := e.of(svc)
	if len(owned) == 0 {
		all := &discoveryv1.EndpointSliceList{}
		named := client.MatchingLabels{discoveryv1.LabelServiceName: svc.Name}
		if err := e.client.List(ctx, all, client.InNamespace(svc.Namespace), named); err != nil {
			return err
		}
		for i := range all.Items {
			if s := &all.Items[i]; metav1.IsControlledBy(s, svc) {
				owned = append(owned, s)
			}
		}
	}
	for _, s := range owned {
		if err := e.client.Delete(ctx, s); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	e.mu.Lock()
	delete(e.made, svc.UID)
	e.mu.Unlock()
	return nil
}

// sliceOf is what the controller would make for a Service and its pods.
func sliceOf(svc *corev1.Service, family corev1.IPFamily, pods []*corev1.Pod) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, GenerateName: svc.Name + "-",
			Labels: map[string]string{
				discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(svc, corev1.SchemeGroupVersion.WithKind("Service"))},
		},
		AddressType: discoveryv1.AddressType(family),
	}
	chosen := labels.SelectorFromSet(svc.Spec.Selector)
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		port := targetPort(p, pods, chosen)
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &port})
	}
	for _, p := range pods {
		address := addressOf(p, family)
		if address == "" || !chosen.Matches(labels.Set(p.Labels)) || len(slice.Endpoints) == endpointsPerSlice {
			continue
		}
		yes := true
		endpoint := discoveryv1.Endpoint{
			Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		}
		if p.Spec.NodeName != "" {
			endpoint.NodeName = &p.Spec.NodeName
		}
		slice.Endpoints = append(slice.Endpoints, endpoint)
	}
	return slice
}

// targetPort is the one that pods listen at. A port by name is that of the first pod which has it: bridges and Services are given the same.
func targetPort(p *corev1.ServicePort, pods []*corev1.Pod, chosen labels.Selector) int32 {
	if p.TargetPort.IntVal != 0 {
		return p.TargetPort.IntVal
	}
	for _, pod := range pods {
		if !chosen.Matches(labels.Set(pod.Labels)) {
			continue
		}
		for i := range pod.Spec.Containers {
			for _, c := range pod.Spec.Containers[i].Ports {
				if c.Name == p.TargetPort.StrVal && c.Name != "" {
					return c.ContainerPort
				}
			}
		}
	}
	return p.Port
}

// addressOf is that of a pod in a family.
func addressOf(p *corev1.Pod, family corev1.IPFamily) string {
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is6() == (family == corev1.IPv6Protocol) {
			return ip.IP
		}
	}
	return ""
}
