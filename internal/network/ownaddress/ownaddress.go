// Package ownaddress has a Service answer at an address beside its ClusterIP by itself: as one of
// its externalIPs, or as the address of a load balancer of a class that no controller claims. Both
// forms are pure changes of the object; docs/design/own-address.md has what data planes make of
// them.
package ownaddress

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
)

// FormOf is the form in which a Service answers at an address; false, if it does not.
func FormOf(svc *corev1.Service, a netip.Addr) (v1alpha1.OverlapForm, bool) {
	switch {
	case slices.Contains(svc.Spec.ExternalIPs, a.String()):
		return v1alpha1.OverlapExternalIP, true
	case ofClass(svc) && slices.ContainsFunc(svc.Status.LoadBalancer.Ingress, ingressOf(a)):
		return v1alpha1.OverlapLoadBalancer, true
	}
	return "", false
}

// Unanswered reports whether a Service is a load balancer's by replumb alone and has no address of
// one: the first of the two patches of Write was sent and the second was not, or others have
// emptied its status.
func Unanswered(svc *corev1.Service) bool {
	return ofClass(svc) && len(svc.Status.LoadBalancer.Ingress) == 0
}

// ofClass reports whether a Service is a load balancer's by replumb alone.
func ofClass(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && ptr.Deref(svc.Spec.LoadBalancerClass, "") == v1alpha1.LoadBalancerClass
}

func ingressOf(a netip.Addr) func(corev1.LoadBalancerIngress) bool {
	return func(i corev1.LoadBalancerIngress) bool { return i.IP == a.String() }
}

// Add has a Service answer at an address in a form. Fields that its owner has set stay.
//
// A Service of type ClusterIP gets externalTrafficPolicy Local with an externalIP: with Cluster,
// kube-proxy would masquerade, and NetworkPolicies for client pods stop matching. Pods reach
// endpoints of all nodes all the same (the rules "pod traffic for ... external destinations" in
// k8s.io/kubernetes pkg/proxy/iptables/proxier.go). Cilium's socket load balancing hides no
// client's address, so that Cluster is right there.
func Add(svc *corev1.Service, a netip.Addr, form v1alpha1.OverlapForm) {
	if have, there := FormOf(svc, a); there && have == form {
		return
	}
	spec := &svc.Spec
	if form == v1alpha1.OverlapExternalIP {
		spec.ExternalIPs = append(spec.ExternalIPs, a.String())
		if spec.Type == corev1.ServiceTypeClusterIP && spec.ExternalTrafficPolicy == "" {
			spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		return
	}
	if spec.ExternalTrafficPolicy == "" {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	spec.Type, spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, ptr.To(v1alpha1.LoadBalancerClass)
	spec.AllocateLoadBalancerNodePorts = ptr.To(false)
	svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress,
		corev1.LoadBalancerIngress{IP: a.String(), IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)})
}

// Remove undoes Add, also of an Unanswered Service. One with node ports was of type NodePort
// before.
func Remove(svc *corev1.Service, a netip.Addr) {
	form, there := FormOf(svc, a)
	if !there && !Unanswered(svc) {
		return
	}
	spec := &svc.Spec
	if form == v1alpha1.OverlapExternalIP {
		spec.ExternalIPs = slices.DeleteFunc(slices.Clone(spec.ExternalIPs), func(ip string) bool { return ip == a.String() })
		if len(spec.ExternalIPs) == 0 {
			spec.ExternalIPs = nil
		}
		if spec.Type == corev1.ServiceTypeClusterIP && len(spec.ExternalIPs) == 0 {
			spec.ExternalTrafficPolicy = ""
		}
		return
	}
	status := &svc.Status.LoadBalancer
	if status.Ingress = slices.DeleteFunc(slices.Clone(status.Ingress), ingressOf(a)); len(status.Ingress) > 0 {
		return
	}
	status.Ingress = nil
	spec.Type = corev1.ServiceTypeNodePort
	if !slices.ContainsFunc(spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort != 0 }) {
		spec.Type = corev1.ServiceTypeClusterIP
		if len(spec.ExternalIPs) == 0 {
			spec.ExternalTrafficPolicy = ""
		}
	}
	spec.LoadBalancerClass, spec.AllocateLoadBalancerNodePorts, spec.HealthCheckNodePort = nil, nil, 0
}

// Exchange has a Service change places with itself: its ClusterIP becomes the address at which it
// answers beside, and the other way round. The order of either list stays.
func Exchange(svc *corev1.Service, from, to netip.Addr) {
	swap := func(text string) string {
		switch text {
		case from.String():
			return to.String()
		case to.String():
			return from.String()
		}
		return text
	}
	svc.Spec.ClusterIP = swap(svc.Spec.ClusterIP)
	for _, all := range [][]string{svc.Spec.ClusterIPs, svc.Spec.ExternalIPs} {
		for i, text := range all {
			all[i] = swap(text)
		}
	}
	if !ofClass(svc) {
		return
	}
	for i := range svc.Status.LoadBalancer.Ingress {
		ingress := &svc.Status.LoadBalancer.Ingress[i]
		ingress.IP = swap(ingress.IP)
	}
}
