// Package sample moves a sample of a cluster's Services with real packets: in a lab with nodes, under traffic, by replumb itself.
package sample

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons why a Service cannot be in a sample.
const (
	headless     = "it has no address"
	external     = "it is a name alone (ExternalName)"
	ofCluster    = "it is the cluster's own, and the lab has one like it"
	unselective  = "it has no selector: what it leads to is not in a lab"
	unanswerable = "it has no port of TCP or UDP"
)

// Choose takes n Services of different shapes: one of each, the most common shape first, then further ones in the same order. It counts
// those that cannot be in a sample, by the reason. The order of all is of no importance.
func Choose(all []corev1.Service, n int) (chosen []corev1.Service, leftOut map[string]int) {
	leftOut = map[string]int{}
	byShape := map[string][]corev1.Service{}
	for i := range all {
		if why := unfit(&all[i]); why != "" {
			leftOut[why]++
			continue
		}
		s := Shape(&all[i])
		byShape[s] = append(byShape[s], all[i])
	}
	shapes := slices.SortedFunc(maps.Keys(byShape), func(a, b string) int {
		return cmp.Or(len(byShape[b])-len(byShape[a]), strings.Compare(a, b))
	})
	for _, s := range shapes {
		slices.SortFunc(byShape[s], func(a, b corev1.Service) int { return strings.Compare(nameOf(&a), nameOf(&b)) })
	}
	for round := 0; len(chosen) < n; round++ {
		before := len(chosen)
		for _, s := range shapes {
			if round < len(byShape[s]) && len(chosen) < n {
				chosen = append(chosen, byShape[s][round])
			}
		}
		if len(chosen) == before {
			break
		}
	}
	return chosen, leftOut
}

func nameOf(s *corev1.Service) string { return s.Namespace + "/" + s.Name }

// unfit is why a Service cannot be in a sample; nothing, if it can.
func unfit(s *corev1.Service) string {
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		return external
	case s.Spec.ClusterIP == corev1.ClusterIPNone || s.Spec.ClusterIP == "":
		return headless
	case s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes", s.Namespace == metav1.NamespaceSystem && s.Name == "kube-dns":
		return ofCluster
	case len(s.Spec.Selector) == 0:
		return unselective
	case len(ports(s)) == 0:
		return unanswerable
	}
	return ""
}

// ports are those that the echo servers of labs can answer at.
func ports(s *corev1.Service) []corev1.ServicePort {
	return slices.DeleteFunc(slices.Clone(s.Spec.Ports), func(p corev1.ServicePort) bool { return protocol(p) == corev1.ProtocolSCTP })
}

func protocol(p corev1.ServicePort) corev1.Protocol { return cmp.Or(p.Protocol, corev1.ProtocolTCP) }

// Shape says what of a Service matters to how nodes lead to it.
func Shape(s *corev1.Service) string {
	parts := []string{string(cmp.Or(s.Spec.Type, corev1.ServiceTypeClusterIP))}
	count := map[corev1.Protocol]int{}
	for _, p := range ports(s) {
		count[protocol(p)]++
	}
	for _, proto := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, english.Plural(count[proto], string(proto)+" port", ""))
	}
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		parts = append(parts, "session affinity")
	}
	if p := s.Spec.InternalTrafficPolicy; p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal {
		parts = append(parts, "internalTrafficPolicy Local")
	}
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		parts = append(parts, "externalTrafficPolicy Local")
	}
	if s.Spec.PublishNotReadyAddresses {
		parts = append(parts, "publishes addresses that are not ready")
	}
	if d := s.Spec.TrafficDistribution; d != nil {
		parts = append(parts, fmt.Sprintf("trafficDistribution %s", *d))
	}
	return strings.Join(parts, ", ")
}
