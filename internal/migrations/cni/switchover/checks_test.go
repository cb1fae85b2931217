package switchover

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
)

// TestPoliciesOnly: a Calico that makes policies hold on another network is no network, and in the
// way beside one that is known.
func TestPoliciesOnly(t *testing.T) {
	set := func(name, image string, env ...corev1.EnvVar) appsv1.DaemonSet {
		ds := appsv1.DaemonSet{}
		ds.Name, ds.Namespace = name, metav1.NamespaceSystem
		ds.Spec.Template.Spec.Containers = []corev1.Container{{Name: name, Image: image, Env: env}}
		return ds
	}
	policies := set("calico-node", "quay.io/calico/node:v3.32.0", corev1.EnvVar{Name: "CALICO_NETWORKING_BACKEND", Value: "none"})
	for _, tt := range []struct {
		name string
		sets []appsv1.DaemonSet
		want []v1alpha1.CNIName
		says string
	}{
		{"with the VPC CNI", []appsv1.DaemonSet{policies, set("aws-node", "e.com/amazon-k8s-cni:v1.20.4")}, nil, "no DaemonSet is a network"},
		{"with Azure's", []appsv1.DaemonSet{policies, set("azure-cns", "mcr.microsoft.com/containernetworking/azure-cns:v1.6.5")}, nil, "no DaemonSet is a network"},
		{"with GKE's", []appsv1.DaemonSet{policies, set("netd", "gke.gcr.io/netd:v0.8.0")}, nil, "no DaemonSet is a network"},
		{
			"with flannel",
			[]appsv1.DaemonSet{policies, set("kube-flannel-ds", "ghcr.io/flannel-io/flannel:v0.27.4")},
			[]v1alpha1.CNIName{v1alpha1.Flannel, v1alpha1.Calico},
			"more than one network",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &Inventory{Networks: manifests.Detect(tt.sets)}
			var got []v1alpha1.CNIName
			for _, n := range s.Networks {
				got = append(got, n.Name)
			}
			if len(got) != len(tt.want) || len(got) > 0 && (got[0] != tt.want[0] || got[1] != tt.want[1]) {
				t.Errorf("networks are %v, want %v", got, tt.want)
			}
			if found := checkFrom(Input{Inventory: s}); len(found) != 1 || !strings.Contains(found[0].Message, tt.says) {
				t.Errorf("it says %v, want %q", found, tt.says)
			}
		})
	}
}

// TestOperators: one that runs keeps a network as it is, unless it came with the network that the
// migration brings.
func TestOperators(t *testing.T) {
	deployment := func(name string, replicas *int32, migration string) appsv1.Deployment {
		d := appsv1.Deployment{}
		d.Namespace, d.Name, d.Spec.Replicas = "kube-system", name, replicas
		d.Labels = map[string]string{v1alpha1.LabelMigration: migration}
		return d
	}
	got := operatorsOf("m", []appsv1.Deployment{
		deployment("tigera-operator", nil, ""), deployment("tigera-operator", ptr.To[int32](0), ""), deployment("coredns", nil, ""),
		deployment("cilium-operator", ptr.To[int32](2), "m"), deployment("cilium-operator", nil, "other"),
	})
	if want := []string{"Deployment kube-system/tigera-operator", "Deployment kube-system/cilium-operator"}; !slices.Equal(got, want) {
		t.Errorf("they are %q, want %q", got, want)
	}
}
