package cluster

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Distribution is how a cluster was made: it decides where its programs are configured, and whether
// that is the user's to do.
type Distribution string

// The distributions that replumb tells apart. Plain is any other.
const (
	Kubeadm   Distribution = "kubeadm"
	KOps      Distribution = "kOps"
	K3s       Distribution = "k3s"
	RKE2      Distribution = "RKE2"
	Talos     Distribution = "Talos"
	OpenShift Distribution = "OpenShift"
	EKS       Distribution = "EKS"
	GKE       Distribution = "GKE"
	AKS       Distribution = "AKS"
	Plain     Distribution = "plain"
)

// Owner is who sets the flags and certificates of the control plane where that is not the user;
// else empty.
func (d Distribution) Owner() string {
	switch d {
	case EKS:
		return "AWS"
	case GKE:
		return "Google"
	case AKS:
		return "Microsoft"
	case OpenShift:
		return "OpenShift's operators"
	}
	return ""
}

// Origin is how a cluster was made, and by whom its machines are.
type Origin struct {
	Distribution Distribution
	// ClusterAPI makes the machines of the control plane: what is changed on one of them is gone
	// with it, and its configuration is in another cluster.
	ClusterAPI bool
}

// OriginOf tells by Nodes.
func OriginOf(nodes []corev1.Node) Origin {
	return Origin{Distribution: DistributionOf(nodes), ClusterAPI: clusterAPI(nodes)}
}

// mark is what a Node has of a distribution.
type mark struct {
	of Distribution
	on func(*corev1.Node) bool
}

// marks are in the order in which they count: a vendor's before those of the tools that it may
// build on.
//
//   - OpenShift: the unit of its kubelets sets node.openshift.io/os_id (templates in github.com/openshift/machine-config-operator).
//   - EKS: eks.amazonaws.com/nodegroup is on managed groups, eks.amazonaws.com/compute-type on Fargate, Auto Mode and hybrid nodes, and a
//     node of one's own group has but the version of the kubelet, such as v1.33.1-eks-1a2b3c.
//   - GKE: cloud.google.com/gke-nodepool, and versions such as v1.33.1-gke.1000.
//   - AKS: kubernetes.azure.com/cluster is the resource group of its machines; its versions are those of Kubernetes.
//   - k3s and RKE2: versions such as v1.33.1+k3s1 and v1.33.1+rke2r1 (scripts/version.sh of both).
//   - Talos: the name of the image is PRETTY_NAME of its os-release, such as "Talos (v1.11.2)" (OSReleaseFor in pkg/machinery/version in
//     github.com/siderolabs/talos).
//   - kOps: NodeLabelInstanceGroup (pkg/apis/kops in k8s.io/kops).
//   - kubeadm: AnnotationKubeadmCRISocket (cmd/kubeadm/app/constants in k8s.io/kubernetes).
func marks() []mark {
	return []mark{
		{OpenShift, labelled("node.openshift.io/os_id")},
		{EKS, labelled("eks.amazonaws.com/nodegroup", "eks.amazonaws.com/compute-type")},
		{EKS, func(n *corev1.Node) bool {
			return strings.Contains(versionOf(n), "-eks-") && madeBy(n, "aws", "eks-hybrid")
		}},
		{GKE, labelled("cloud.google.com/gke-nodepool")},
		{GKE, func(n *corev1.Node) bool { return strings.Contains(versionOf(n), "-gke.") && madeBy(n, "gce") }},
		{AKS, func(n *corev1.Node) bool { return labelled("kubernetes.azure.com/cluster")(n) && madeBy(n, "azure") }},
		{K3s, func(n *corev1.Node) bool { return strings.Contains(versionOf(n), "+k3s") }},
		{RKE2, func(n *corev1.Node) bool { return strings.Contains(versionOf(n), "+rke2") }},
		{Talos, func(n *corev1.Node) bool { return strings.HasPrefix(n.Status.NodeInfo.OSImage, "Talos") }},
		{KOps, labelled("kops.k8s.io/instancegroup")},
		{Kubeadm, func(n *corev1.Node) bool { return n.Annotations["kubeadm.alpha.kubernetes.io/cri-socket"] != "" }},
	}
}

func versionOf(n *corev1.Node) string { return n.Status.NodeInfo.KubeletVersion }

// madeBy reports whether a machine is one of a cloud. The clouds' builds of Kubernetes also run
// elsewhere, where the control plane is the user's: EKS Anywhere, Google Distributed Cloud.
func madeBy(n *corev1.Node, clouds ...string) bool {
	cloud, _, _ := strings.Cut(n.Spec.ProviderID, "://")
	return slices.Contains(clouds, cloud)
}

func labelled(keys ...string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool {
		return slices.ContainsFunc(keys, func(key string) bool { return n.Labels[key] != "" })
	}
}

// DistributionOf tells by what installers leave on nodes. One node speaks for all: others may have
// joined by other means, such as machines that a cloud knows nothing of.
func DistributionOf(nodes []corev1.Node) Distribution {
	for _, m := range marks() {
		for i := range nodes {
			if m.on(&nodes[i]) {
				return m.of
			}
		}
	}
	return Plain
}

// machineAnnotation is what Cluster API leaves on the Node of a machine that it made
// (MachineAnnotation in sigs.k8s.io/cluster-api/api/core/v1beta2).
const machineAnnotation = "cluster.x-k8s.io/machine"

// MachineOf is the Machine of Cluster API that a node is; empty, if it is none.
func MachineOf(n *corev1.Node) string { return n.Annotations[machineAnnotation] }

// clusterAPI goes by the machines of the control plane. Where no Node is one of those, any machine
// counts.
func clusterAPI(nodes []corev1.Node) bool {
	made, servers, madeServers := false, false, false
	for i := range nodes {
		n := &nodes[i]
		_, server := n.Labels["node-role.kubernetes.io/control-plane"]
		machine := MachineOf(n) != ""
		made, servers, madeServers = made || machine, servers || server, madeServers || server && machine
	}
	if servers {
		return madeServers
	}
	return made
}
