package rollout

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// A slim pod has no containers to look at, and no annotations that its owner wrote.
const (
	// annotationUnread says which part of its environment a pod does not use.
	annotationUnread = "unread-environment"
	unreadAll        = "all"
	unreadKubernetes = "kubernetes"

	kubernetesHost = "KUBERNETES_SERVICE_HOST"
)

// programsNode reports whether pods are likely to program Services or routes on their nodes, which
// takes the network of the node and rights over it. While one is away, its node does not learn
// which pods end.
func programsNode(spec *corev1.PodSpec) bool {
	return spec.HostNetwork && slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool {
		s := c.SecurityContext
		if s == nil {
			return false
		}
		added := s.Capabilities != nil && slices.ContainsFunc(s.Capabilities.Add, func(name corev1.Capability) bool {
			return slices.Contains([]corev1.Capability{"NET_ADMIN", "ALL"}, name)
		})
		return added || s.Privileged != nil && *s.Privileged
	})
}

// unreadOf is the part of its environment that a pod does not use, by its whole spec. kube-proxy
// goes by its kubeconfig: no Service leads to an API server before it has programmed that itself.
// Variables of a container's own override those of kubelets (makeEnvironmentVariables in
// k8s.io/kubernetes pkg/kubelet/kubelet_pods.go).
func unreadOf(spec *corev1.PodSpec) string {
	every := func(is func(*corev1.Container) bool) bool {
		for _, all := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
			for i := range all {
				if !is(&all[i]) {
					return false
				}
			}
		}
		return len(spec.Containers) > 0
	}
	switch {
	case spec.HostNetwork && every(func(c *corev1.Container) bool { return c.Name == "kube-proxy" }):
		return unreadAll
	case every(func(c *corev1.Container) bool {
		return slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == kubernetesHost })
	}):
		return unreadKubernetes
	}
	return ""
}
