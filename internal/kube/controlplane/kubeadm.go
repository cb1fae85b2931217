package controlplane

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// KubeadmConfig is the ConfigMap in kube-system that has kubeadm's configuration.
const KubeadmConfig = "kubeadm-config"

// PodSubnet is networking.podSubnet in kubeadm's configuration; empty if unreadable.
func PodSubnet(config *corev1.ConfigMap) string {
	var kubeadm struct {
		Networking struct {
			PodSubnet string `json:"podSubnet"`
		} `json:"networking"`
	}
	if err := yaml.Unmarshal([]byte(config.Data["ClusterConfiguration"]), &kubeadm); err != nil {
		return ""
	}
	return kubeadm.Networking.PodSubnet
}
