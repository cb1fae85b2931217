package podmove

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/internal/kube/pull"
)

// TunnelsLabel says which addresses of tunnels a pod keeps on its node.
const TunnelsLabel = "replumb.dev/tunnels"

// OnHost are pods in the network of their node that stay there whatever happens to it.
func OnHost(image pull.Image, first, main corev1.Container) corev1.PodSpec {
	return corev1.PodSpec{
		HostNetwork: true, PriorityClassName: "system-node-critical",
		AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
		Tolerations:      []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		ImagePullSecrets: image.References(),
		InitContainers:   []corev1.Container{first},
		Containers:       []corev1.Container{main},
	}
}

// NetAdmin is a container that may change the network of its node, and nothing else.
func NetAdmin(name string, image pull.Image, args []string) corev1.Container {
	return corev1.Container{
		Name: name, Image: image.Name, Args: args, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: ptr.To[int64](0), ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
			Capabilities: &corev1.Capabilities{
				Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}, // for addresses, and nothing else
			},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}
