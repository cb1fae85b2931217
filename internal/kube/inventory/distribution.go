package inventory

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/controlplane"
)

// Distribution decides where and by whom the programs of a cluster are configured.
type Distribution string

// Plain is any distribution but the others.
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

// Owner sets the flags and certificates of the control plane; empty if the user does.
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

// Origin is how a cluster and its machines were made.
type Origin struct {
	Distribution Distribution
	// ClusterAPI makes the machines of the control plane: changes on a machine are lost with it,
	// and the configuration is in another cluster.
	ClusterAPI bool
}

// OfTemplates is said beside an instruction for machines that Cluster API makes of templates;
// empty, where the instruction itself is about these, or machines are made otherwise.
func (o Origin) OfTemplates() string {
	if !o.ClusterAPI || o.Distribution == Kubeadm {
		return ""
	}
	return "\nCluster API makes the machines: change the objects that it makes them of too, in the management cluster, or the next machine has the old value."
}

// OriginOf recognises installers by their marks on Nodes, and kubeadm by its ConfigMap as well.
func OriginOf(nodes []corev1.Node, kubeadm bool) Origin {
	o := Origin{Distribution: DistributionOf(nodes), ClusterAPI: clusterAPI(nodes)}
	if o.Distribution == Plain && kubeadm {
		o.Distribution = Kubeadm
	}
	return o
}

// ByKubeadm reports whether an object shows that kubeadm has made the control plane: its
// ConfigMap, or a static pod of its own. From 1.34 on it leaves no mark on Nodes, and upgrades take
// an older one off (NodeLocalCRISocket; cmd/kubeadm/app/phases/patchnode in k8s.io/kubernetes).
func ByKubeadm(o client.Object) bool {
	if o.GetNamespace() != metav1.NamespaceSystem {
		return false
	}
	switch o := o.(type) {
	case *corev1.ConfigMap:
		return o.Name == controlplane.KubeadmConfig && o.Data["ClusterConfiguration"] != ""
	case *corev1.Pod:
		// KubeAPIServerAdvertiseAddressEndpointAnnotationKey in cmd/kubeadm/app/constants.
		return o.Annotations["kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint"] != ""
	}
	return false
}

type mark struct {
	of Distribution
	on func(*corev1.Node) bool
}

// marks list vendors before the tools that they may build on.
//
//   - OpenShift: the kubelet's unit sets os_id (templates in openshift/machine-config-operator).
//   - EKS: nodegroup is on managed groups, compute-type on Fargate, Auto Mode and hybrid nodes;
//     self-managed nodes have only the version of the kubelet, such as v1.33.1-eks-1a2b3c.
//   - GKE: versions such as v1.33.1-gke.1000.
//   - AKS: the label is the resource group of the machines.
//   - k3s and RKE2: versions such as v1.33.1+k3s1 and v1.33.1+rke2r1 (scripts/version.sh of both).
//   - Talos: PRETTY_NAME of os-release (OSReleaseFor in siderolabs/talos pkg/machinery/version).
//   - kOps: NodeLabelInstanceGroup (pkg/apis/kops in k8s.io/kops).
//   - kubeadm before 1.34: AnnotationKubeadmCRISocket (cmd/kubeadm/app/constants in
//     k8s.io/kubernetes); ByKubeadm is for later ones.
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

// madeBy reports whether a machine is a cloud's. EKS Anywhere and Google Distributed Cloud run the
// clouds' builds elsewhere, where the control plane is the user's.
func madeBy(n *corev1.Node, clouds ...string) bool {
	cloud, _, _ := strings.Cut(n.Spec.ProviderID, "://")
	return slices.Contains(clouds, cloud)
}

func labelled(keys ...string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool {
		return slices.ContainsFunc(keys, func(key string) bool { return n.Labels[key] != "" })
	}
}

// DistributionOf needs the mark on one node only, since others may have joined by other means.
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

// machineAnnotation is MachineAnnotation in sigs.k8s.io/cluster-api/api/core/v1beta2.
const machineAnnotation = "cluster.x-k8s.io/machine"

// MachineOf is the name of the node's Machine in Cluster API, or empty.
func MachineOf(n *corev1.Node) string { return n.Annotations[machineAnnotation] }

// clusterAPI looks at the control plane, or at all nodes where the control plane has none.
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
