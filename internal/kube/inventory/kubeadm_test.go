package inventory

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/references"
)

func kubeadmConfig(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubeadm-config"}, Data: data}
}

// staticPod is one of kubeadm's, as the API shows it.
func staticPod(name string, command ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name + "-cp1", Annotations: map[string]string{
			"kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint": "192.0.2.1:6443",
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: name, Command: append([]string{name}, command...)}}},
	}
}

// TestKubeadmIsRecognised: from 1.34 on nothing on Nodes tells.
func TestKubeadmIsRecognised(t *testing.T) {
	nodes := []corev1.Node{{Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"}}}}
	other := staticPod("kube-apiserver")
	other.Namespace = "shop"
	for _, tt := range []struct {
		name string
		seen client.Object
		want Distribution
	}{
		{"its ConfigMap", kubeadmConfig(map[string]string{"ClusterConfiguration": "kind: ClusterConfiguration"}), Kubeadm},
		{"its ConfigMap without a configuration", kubeadmConfig(nil), Plain},
		{"its API server", staticPod("kube-apiserver"), Kubeadm},
		{"a pod elsewhere that says so", other, Plain},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found := &Scan{}
			found.Take(&references.Scanner{}, tt.seen)
			if got := OriginOf(nodes, found.Kubeadm).Distribution; got != tt.want {
				t.Errorf("it is %s, want %s", got, tt.want)
			}
		})
	}
	kops := corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kops.k8s.io/instancegroup": "nodes"}}}
	if got := OriginOf([]corev1.Node{kops}, true).Distribution; got != KOps {
		t.Errorf("nodes of kOps are %s", got)
	}
}

// TestFlagsOfGatesAreNoReferences: a gate says when they change.
func TestFlagsOfGatesAreNoReferences(t *testing.T) {
	scanner, err := references.New(
		[]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("172.24.0.0/16")}, nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	server := staticPod("kube-apiserver", "--service-cluster-ip-range=10.96.0.0/16", "--allowed=10.96.0.0/16")
	for _, tt := range []struct {
		pod  *corev1.Pod
		want int
	}{
		{server, 1},
		{staticPod("kube-controller-manager", "--cluster-cidr=10.96.0.0/16"), 0},
		{staticPod("kube-controller-manager", "--cluster-cidr", "10.96.0.0/16", "--x=10.96.0.0/16"), 1},
		{staticPod("kube-proxy", "--cluster-cidr=10.96.0.0/16"), 0},
		{staticPod("firewall", "--cluster-cidr=10.96.0.0/16"), 1},
	} {
		found := &Scan{}
		found.Take(scanner, tt.pod)
		if len(found.References) != tt.want {
			t.Errorf("%s: found %v, want %d", tt.pod.Name, found.References, tt.want)
		}
	}
	if server.Spec.Containers[0].Command[1] == "" {
		t.Error("the pod itself was changed")
	}
}
