// Package leaving takes a pod out of its Services while it still answers, so that no client notices
// its end.
//
// The pod gets other values for as few labels as it takes. kube-proxies still know it as an
// endpoint that is terminating but serving: they send it no new client and keep its connections.
// See docs/design/refresh.md.
package leaving

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Gone is the value that labels get by which Services select a pod.
const Gone = "left-its-services"

// most limits how many choices of labels are looked at.
const most = 4096

// Selecting returns those of the Services, all of one namespace, that select a pod with these
// labels.
func Selecting(services []corev1.Service, pod map[string]string) []corev1.Service {
	var all []corev1.Service
	for i := range services {
		selector := services[i].Spec.Selector
		if len(selector) > 0 && labels.SelectorFromSet(selector).Matches(labels.Set(pod)) {
			all = append(all, services[i])
		}
	}
	return all
}

// UDP reports whether one of the Services takes datagrams.
func UDP(services []corev1.Service) bool {
	return slices.ContainsFunc(services, func(s corev1.Service) bool {
		return slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Protocol == corev1.ProtocolUDP })
	})
}

// Choose returns the fewest labels without which none of the Services selects a pod. The selectors
// of same must match the pod as before: a policy that lets clients in must not stop doing so.
func Choose(pod map[string]string, services []corev1.Service, same []labels.Selector) (keys []string, ok bool) {
	choices := [][]string{nil}
	for _, s := range Selecting(services, pod) {
		choices = extend(choices, slices.Sorted(maps.Keys(s.Spec.Selector)))
	}
	slices.SortStableFunc(choices, func(a, b []string) int { return len(a) - len(b) })
	for _, c := range choices {
		if alike(pod, Without(pod, c), same) {
			return c, true
		}
	}
	return nil, false
}

// extend adds one of keys to each of the choices that has none of them yet.
func extend(choices [][]string, keys []string) [][]string {
	var all [][]string
	for _, c := range choices {
		if slices.ContainsFunc(keys, func(k string) bool { return slices.Contains(c, k) }) {
			all = append(all, c)
			continue
		}
		for _, k := range keys {
			if len(all) < most {
				all = append(all, slices.Sorted(slices.Values(append(slices.Clone(c), k))))
			}
		}
	}
	return all
}

// Without are the labels of a pod that has left by some of them.
func Without(pod map[string]string, keys []string) map[string]string {
	left := maps.Clone(pod)
	for _, k := range keys {
		left[k] = Gone
	}
	return left
}

func alike(before, after map[string]string, all []labels.Selector) bool {
	return !slices.ContainsFunc(all, func(s labels.Selector) bool {
		return s.Matches(labels.Set(before)) != s.Matches(labels.Set(after))
	})
}

// Policies returns the pod selectors of NetworkPolicies that can match pods of a namespace.
// Policies of other namespaces may name its pods as peers.
func Policies(all []networkingv1.NetworkPolicy, namespace string) []labels.Selector {
	var selectors []labels.Selector
	add := func(s *metav1.LabelSelector) {
		if selector, err := metav1.LabelSelectorAsSelector(s); err == nil && s != nil {
			selectors = append(selectors, selector)
		}
	}
	peers := func(all []networkingv1.NetworkPolicyPeer) {
		for i := range all {
			add(all[i].PodSelector)
		}
	}
	for i := range all {
		p := &all[i]
		if p.Namespace == namespace {
			add(&p.Spec.PodSelector)
		}
		for _, rule := range p.Spec.Ingress {
			peers(rule.From)
		}
		for _, rule := range p.Spec.Egress {
			peers(rule.To)
		}
	}
	return selectors
}
