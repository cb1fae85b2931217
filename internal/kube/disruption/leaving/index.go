package leaving

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Index finds the Services that select pods, for many pods. Services without selector are in none.
type Index map[selectorKey][]corev1.Service

// selectorKey is the first label of a Service's selector, in order of keys.
type selectorKey struct{ namespace, label, value string }

// NewIndex makes one of Services of any namespaces.
func NewIndex(services []corev1.Service) Index {
	x := Index{}
	for i := range services {
		s := &services[i]
		if len(s.Spec.Selector) == 0 {
			continue
		}
		first := slices.Min(slices.Collect(maps.Keys(s.Spec.Selector)))
		k := selectorKey{s.Namespace, first, s.Spec.Selector[first]}
		x[k] = append(x[k], *s)
	}
	return x
}

func (x Index) Selecting(namespace string, pod map[string]string) []corev1.Service {
	var all []corev1.Service
	for _, label := range slices.Sorted(maps.Keys(pod)) {
		all = append(all, Selecting(x[selectorKey{namespace, label, pod[label]}], pod)...)
	}
	return all
}
