package audit

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/test/soak/model"
)

// auditEndpoints compares where Services lead with the pods that they select, or with what was written by hand.
func (r *report) auditEndpoints() {
	for _, key := range r.Model.ServiceKeys() {
		s := r.Model.Services[key]
		want := r.selected(s.Object)
		if len(s.Slices) > 0 {
			want = nil
			for _, slice := range s.Slices {
				want = append(want, destinations(*slice)...)
			}
		}
		r.sameEndpoints(name("service", key), want, r.leads(key))
	}
	for i := range r.Slices {
		slice := &r.Slices[i]
		of := model.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
		if r.Model.Namespaces[slice.Namespace] && r.services[of] == nil {
			r.add(name("endpointslice", keyOf(slice)), "is left over of service %s", of.Name)
		}
	}
}

func (r *report) sameEndpoints(object string, want, have []string) {
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(want, have) {
		r.add(object, "leads to [%s] instead of [%s]", strings.Join(have, " "), strings.Join(want, " "))
	}
}

// leads is where the ready endpoints of a Service are: an address and a port each.
func (r *report) leads(service model.Key) []string {
	var all []string
	for _, slice := range r.Slices {
		if slice.Namespace == service.Namespace && slice.Labels[discoveryv1.LabelServiceName] == service.Name {
			all = append(all, destinations(slice)...)
		}
	}
	return all
}

func destinations(slice discoveryv1.EndpointSlice) []string {
	var all []string
	for _, e := range slice.Endpoints {
		if !ptr.Deref(e.Conditions.Ready, true) {
			continue
		}
		for _, p := range slice.Ports {
			for _, a := range e.Addresses {
				protocol := ptr.Deref(p.Protocol, corev1.ProtocolTCP)
				all = append(all, fmt.Sprintf("%s:%s/%s/%d", ptr.Deref(p.Name, ""), a, protocol, ptr.Deref(p.Port, 0)))
			}
		}
	}
	return all
}

// selected is where a Service with a selector should lead.
func (r *report) selected(svc *corev1.Service) []string {
	if len(svc.Spec.Selector) == 0 || svc.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	var all []string
	for i := range r.Pods {
		pod := &r.Pods[i]
		if pod.Namespace != svc.Namespace || !labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(pod.Labels)) || !serves(pod) {
			continue
		}
		for _, p := range svc.Spec.Ports {
			all = append(all, fmt.Sprintf("%s:%s/%s/%d", p.Name, pod.Status.PodIP, p.Protocol, target(pod, p)))
		}
	}
	return all
}

// serves reports whether a pod is ready and is to stay.
func serves(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// target is the port of a pod that the port of a Service leads to.
func target(pod *corev1.Pod, p corev1.ServicePort) int32 {
	if number := p.TargetPort.IntVal; number != 0 {
		return number
	}
	for _, c := range pod.Spec.Containers {
		for _, has := range c.Ports {
			if has.Name == p.TargetPort.StrVal {
				return has.ContainerPort
			}
		}
	}
	return 0
}
