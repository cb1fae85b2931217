package cluster

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Distribution is how a cluster was made, on which depends where its programs are configured.
type Distribution string

// The distributions that replumb has instructions for. Plain is any other.
const (
	Kubeadm Distribution = "kubeadm"
	KOps    Distribution = "kOps"
	K3s     Distribution = "k3s/RKE2"
	Plain   Distribution = "plain"
)

// DistributionOf tells by what the installers leave on nodes.
func DistributionOf(nodes []corev1.Node) Distribution {
	for i := range nodes {
		n := &nodes[i]
		version := n.Status.NodeInfo.KubeletVersion
		switch {
		case strings.Contains(version, "+k3s"), strings.Contains(version, "+rke2"):
			return K3s
		case n.Labels["kops.k8s.io/instancegroup"] != "":
			return KOps
		case n.Annotations["kubeadm.alpha.kubernetes.io/cri-socket"] != "":
			return Kubeadm
		}
	}
	return Plain
}
