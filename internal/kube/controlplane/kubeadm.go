package controlplane

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// KubeadmConfig is the ConfigMap in kube-system that has kubeadm's configuration.
const KubeadmConfig = "kubeadm-config"

// KubeletConfig is the one that has the configuration of kubelets to come.
const KubeletConfig = "kubelet-config"

// Endpoint is controlPlaneEndpoint in kubeadm's configuration; empty if unreadable.
func Endpoint(configuration string) string {
	var kubeadm struct {
		ControlPlaneEndpoint string `json:"controlPlaneEndpoint"`
	}
	if err := yaml.Unmarshal([]byte(configuration), &kubeadm); err != nil {
		return ""
	}
	return kubeadm.ControlPlaneEndpoint
}

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
