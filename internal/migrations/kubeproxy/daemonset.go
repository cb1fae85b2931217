package kubeproxy

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

// nameLabel tells pods of the second DaemonSet from those of the cluster's own.
const nameLabel = "app.kubernetes.io/name"

func secondName(name string, mode v1alpha1.KubeProxyMode) string { return name + "-" + string(mode) }

// second is a DaemonSet like the cluster's own, in another mode, for nodes that are marked. was is
// the affinity that the own one had.
func second(own *appsv1.DaemonSet, was *corev1.Affinity, at place, mode v1alpha1.KubeProxyMode, migration string) *appsv1.DaemonSet {
	labels := map[string]string{
		nameLabel: secondName(own.Name, mode), v1alpha1.LabelMigration: migration,
	}
	out := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: own.Namespace, Name: secondName(own.Name, mode), Labels: maps.Clone(labels)},
		Spec:       *own.Spec.DeepCopy(),
	}
	out.Labels[v1alpha1.LabelBreakGlass] = "true" // a freeze of deployments would keep it from being deleted
	out.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	t := &out.Spec.Template
	t.Labels = labels
	t.Spec.Affinity = podnetwork.AlsoRequired(was, corev1.NodeSelectorRequirement{
		Key: v1alpha1.LabelKubeProxyMode, Operator: corev1.NodeSelectorOpIn,
		Values: []string{v1alpha1.ModeBeside, v1alpha1.ModeLeaving, v1alpha1.ModeSwitched, v1alpha1.ModeReturning},
	})
	for i := range t.Spec.Containers {
		releasePorts(&t.Spec.Containers[i])
	}
	if at.configMap == "" {
		setFlag(proxyIn(&t.Spec), string(mode))
		return out
	}
	for i := range t.Spec.Volumes {
		if v := t.Spec.Volumes[i].ConfigMap; v != nil && v.Name == at.configMap {
			v.Name = secondName(at.configMap, mode)
		}
	}
	return out
}

// releasePorts has a container on the node's network declare no ports, which two pods cannot share
// on a node. kube-proxy takes those of health and metrics when the other has let them go. Probes
// that name one get its number.
func releasePorts(c *corev1.Container) {
	number := map[string]int32{}
	for _, p := range c.Ports {
		number[p.Name] = p.ContainerPort
	}
	c.Ports = nil
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe == nil {
			continue
		}
		var ports []*intstr.IntOrString
		if probe.HTTPGet != nil {
			ports = append(ports, &probe.HTTPGet.Port)
		}
		if probe.TCPSocket != nil {
			ports = append(ports, &probe.TCPSocket.Port)
		}
		for _, port := range ports {
			if n, ok := number[port.StrVal]; ok && port.Type == intstr.String {
				*port = intstr.FromInt32(n)
			}
		}
	}
}

// kept is the affinity of the own DaemonSet while nodes are marked.
func kept(was *corev1.Affinity) *corev1.Affinity {
	return podnetwork.AlsoRequired(was, corev1.NodeSelectorRequirement{
		Key: v1alpha1.LabelKubeProxyMode, Operator: corev1.NodeSelectorOpNotIn,
		Values: []string{v1alpha1.ModeLeaving, v1alpha1.ModeSwitched},
	})
}

// secondConfig is the configuration of the second DaemonSet.
func secondConfig(own *corev1.ConfigMap, at place, mode v1alpha1.KubeProxyMode, migration string) (*corev1.ConfigMap, error) {
	out := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: own.Namespace, Name: secondName(own.Name, mode), Labels: map[string]string{v1alpha1.LabelMigration: migration},
		},
		Data: maps.Clone(own.Data), BinaryData: own.BinaryData,
	}
	text, err := withMode(own.Data[at.key], string(mode))
	out.Data[at.key] = text
	return out, err
}
