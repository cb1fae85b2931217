package inventory

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestDistributionOf goes by what nodes of each distribution have, cut down to what tells them
// apart and what might mislead.
func TestDistributionOf(t *testing.T) {
	for _, tt := range []struct {
		name, node string
		want       Distribution
		clusterAPI bool
	}{
		{
			// Kubernetes documentation, kubeadm join.
			name: "kubeadm", want: Kubeadm,
			node: `{metadata: {annotations: {kubeadm.alpha.kubernetes.io/cri-socket: "unix:///run/containerd/containerd.sock"}},
				status: {nodeInfo: {kubeletVersion: v1.36.0, osImage: Debian GNU/Linux 13}}}`,
		},
		{
			// Cluster API Provider AWS: machines that kubeadm joins.
			name: "kubeadm under Cluster API", want: Kubeadm, clusterAPI: true,
			node: `{metadata: {labels: {node-role.kubernetes.io/control-plane: ""}, annotations: {
				kubeadm.alpha.kubernetes.io/cri-socket: "unix:///run/containerd/containerd.sock", cluster.x-k8s.io/machine: cp-abcde,
				cluster.x-k8s.io/owner-kind: KubeadmControlPlane}},
				spec: {providerID: "aws:///eu-west-1a/i-0123"}, status: {nodeInfo: {kubeletVersion: v1.36.0}}}`,
		},
		{
			// tests/integration/update_cluster in k8s.io/kops: the labels that kops-controller
			// sets.
			name: "kOps", want: KOps,
			node: `{metadata: {labels: {kops.k8s.io/instancegroup: nodes-us-test-1a, node-role.kubernetes.io/node: ""}},
				spec: {providerID: "aws:///us-test-1a/i-0123"}, status: {nodeInfo: {kubeletVersion: v1.34.1}}}`,
		},
		{
			name: "k3s", want: K3s,
			node: `{metadata: {annotations: {k3s.io/node-args: '["server"]', k3s.io/internal-ip: 192.0.2.1}},
				spec: {providerID: "k3s://server-1"}, status: {nodeInfo: {kubeletVersion: v1.33.4+k3s1}}}`,
		},
		{
			name: "RKE2", want: RKE2,
			node: `{metadata: {annotations: {rke2.io/node-args: '["server"]', cluster.x-k8s.io/machine: custom-0123}},
				spec: {providerID: "rke2://server-1"}, status: {nodeInfo: {kubeletVersion: v1.33.4+rke2r1}}}`, clusterAPI: true, // Rancher
		},
		{
			// Talos' documentation, kubectl get nodes -o wide.
			name: "Talos", want: Talos,
			node: `{metadata: {annotations: {networking.talos.dev/self-ips: 192.0.2.1}},
				status: {nodeInfo: {kubeletVersion: v1.34.1, osImage: Talos (v1.11.2), kernelVersion: 6.12.48-talos}}}`,
		},
		{
			// OpenShift's documentation, oc describe node.
			name: "OpenShift", want: OpenShift,
			node: `{metadata: {labels: {node.openshift.io/os_id: rhel, node-role.kubernetes.io/master: ""},
				annotations: {machine.openshift.io/machine: openshift-machine-api/m-0}},
				spec: {providerID: "aws:///eu-west-1a/i-0123"}, status: {nodeInfo: {kubeletVersion: v1.32.8}}}`,
		},
		{
			name: "EKS, a managed group", want: EKS,
			node: `{metadata: {labels: {eks.amazonaws.com/nodegroup: ng-1, eks.amazonaws.com/capacityType: ON_DEMAND}},
				spec: {providerID: "aws:///eu-west-1a/i-0123"}, status: {nodeInfo: {kubeletVersion: v1.33.5-eks-113cf36}}}`,
		},
		{
			name: "EKS, a group of one's own", want: EKS,
			node: `{spec: {providerID: "aws:///eu-west-1a/i-0123"}, status: {nodeInfo: {kubeletVersion: v1.33.5-eks-113cf36}}}`,
		},
		{
			// The provider of hybrid nodes (internal/kubelet in github.com/aws/eks-hybrid).
			name: "EKS, a hybrid node", want: EKS,
			node: `{metadata: {labels: {eks.amazonaws.com/compute-type: hybrid}}, spec: {providerID: "eks-hybrid:///eu-west-1/c/mi-0"}}`,
		},
		{
			// EKS Anywhere has a control plane of the user's own, by Cluster API and kubeadm.
			name: "EKS Anywhere", want: Kubeadm, clusterAPI: true,
			node: `{metadata: {annotations: {kubeadm.alpha.kubernetes.io/cri-socket: x, cluster.x-k8s.io/machine: m-0}},
				spec: {providerID: "vsphere://0123"}, status: {nodeInfo: {kubeletVersion: v1.33.4-eks-0a1b2c3}}}`,
		},
		{
			name: "GKE", want: GKE,
			node: `{metadata: {labels: {cloud.google.com/gke-nodepool: default-pool}},
				spec: {providerID: "gce://p/europe-west1-b/gke-c-default-pool-0"}, status: {nodeInfo: {kubeletVersion: v1.33.4-gke.1134000}}}`,
		},
		{
			name: "GKE without the label", want: GKE,
			node: `{spec: {providerID: "gce://p/europe-west1-b/m-0"}, status: {nodeInfo: {kubeletVersion: v1.33.4-gke.1134000}}}`,
		},
		{
			// Google Distributed Cloud on bare metal has a control plane of the user's own.
			name: "Google's build elsewhere", want: Plain,
			node: `{spec: {providerID: "baremetal://192.0.2.1"}, status: {nodeInfo: {kubeletVersion: v1.33.4-gke.900}}}`,
		},
		{
			name: "AKS", want: AKS,
			node: `{metadata: {labels: {kubernetes.azure.com/cluster: MC_g_c_westeurope, kubernetes.azure.com/agentpool: nodepool1}},
				spec: {providerID: "azure:///subscriptions/s/resourceGroups/g"}, status: {nodeInfo: {kubeletVersion: v1.33.2}}}`,
		},
		{
			name: "kubeadm on Azure", want: Kubeadm,
			node: `{metadata: {annotations: {kubeadm.alpha.kubernetes.io/cri-socket: x}}, spec: {providerID: "azure:///subscriptions/s"}}`,
		},
		{
			// K0SNodeRoleLabel in k0sproject/k0s pkg/constant; its control plane runs in no pod.
			name: "k0s", want: Plain,
			node: `{metadata: {labels: {node.k0sproject.io/role: control-plane, node-role.kubernetes.io/control-plane: "true"}},
				status: {nodeInfo: {kubeletVersion: v1.33.4+k0s}}}`,
		},
		{
			name: "MicroK8s", want: Plain,
			node: `{metadata: {labels: {microk8s.io/cluster: "true", node.kubernetes.io/microk8s-controlplane: microk8s-controlplane}},
				status: {nodeInfo: {kubeletVersion: v1.33.4}}}`,
		},
		{name: "nothing", node: `{status: {nodeInfo: {kubeletVersion: v1.36.0, osImage: Ubuntu 24.04}}}`, want: Plain},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := corev1.Node{}
			if err := yaml.UnmarshalStrict([]byte(tt.node), &n); err != nil {
				t.Fatal(err)
			}
			nodes := []corev1.Node{{}, n}
			if got, want := OriginOf(nodes, false), (Origin{tt.want, tt.clusterAPI}); got != want {
				t.Errorf("it is %+v, want %+v", got, want)
			}
		})
	}
	if got := DistributionOf(nil); got != Plain {
		t.Errorf("without nodes it is %s", got)
	}
}

// TestClusterAPIOfWorkers: workers may be machines of Cluster API where the control plane is not,
// such as EKS's.
func TestClusterAPIOfWorkers(t *testing.T) {
	server, worker := corev1.Node{}, corev1.Node{}
	server.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
	worker.Annotations = map[string]string{machineAnnotation: "w-0"}
	if clusterAPI([]corev1.Node{server, worker}) {
		t.Error("a worker that is a machine makes the control plane one")
	}
	if !clusterAPI([]corev1.Node{worker}) {
		t.Error("a machine is not seen")
	}
}

func TestOwner(t *testing.T) {
	for d, want := range map[Distribution]bool{
		Kubeadm: false, KOps: false, K3s: false, RKE2: false, Talos: false, Plain: false, OpenShift: true, EKS: true, GKE: true, AKS: true,
	} {
		if got := d.Owner(); (got != "") != want {
			t.Errorf("the control plane of %s is that of %q", d, got)
		}
	}
}
