package workload

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Fits reports whether a node takes a pod, as far as node selectors, affinity and taints go, except
// taints with some keys.
func Fits(pod *corev1.PodSpec, n *corev1.Node, except ...string) bool {
	if chosen, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *pod}).Match(n); err != nil || !chosen {
		return false
	}
	_, refused := scheduling.FindMatchingUntoleratedTaint(klog.Logger{}, n.Spec.Taints, pod.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && !slices.Contains(except, t.Key)
	}, true)
	return !refused
}

// Tolerates reports whether one of the tolerations is for a taint.
func Tolerates(all []corev1.Toleration, taint *corev1.Taint) bool {
	return scheduling.TolerationsTolerateTaint(klog.Logger{}, all, taint, true)
}
