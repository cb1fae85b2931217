package services

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/kube/inventory"
)

func labelled(namespace, name, address, app string) corev1.Service {
	return corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"k8s-app": app}},
		Spec:       corev1.ServiceSpec{ClusterIP: address, ClusterIPs: []string{address}},
	}
}

// TestClusterDNSIsFoundWithoutKubelets: RKE2 names its Service otherwise, and kubelets answer only
// who may ask them.
func TestClusterDNSIsFoundWithoutKubelets(t *testing.T) {
	rke2 := labelled("kube-system", "rke2-coredns-rke2-coredns", "10.43.0.10", "kube-dns")
	tenant := labelled("shop", "dns", "10.43.0.11", "kube-dns")
	upstream := labelled("kube-system", "kube-dns-upstream", "10.43.0.12", "kube-dns")
	usual := labelled("kube-system", "kube-dns", "10.43.0.13", "kube-dns")
	other := labelled("kube-system", "other-dns", "10.43.0.14", "coredns")
	kubespray := labelled("kube-system", "coredns", "10.43.0.3", "coredns")
	kubespray.Labels["kubernetes.io/name"] = "CoreDNS"
	cached := map[string]inventory.KubeletAnswer{"node1": {DNS: []string{"169.254.25.10"}}}
	kubelets := map[string]inventory.KubeletAnswer{"node1": {DNS: []string{"10.43.0.14"}}}
	for _, tt := range []struct {
		name     string
		services []corev1.Service
		kubelets map[string]inventory.KubeletAnswer
		want     string // name in kube-system
	}{
		{"by its label", []corev1.Service{rke2, tenant}, nil, "rke2-coredns-rke2-coredns"},
		{"a tenant's label is not believed", []corev1.Service{tenant}, nil, ""},
		{"Kubespray's, where kubelets name a cache", []corev1.Service{kubespray, tenant}, cached, "coredns"},
		{"kube-dns, and nothing labelled beside it", []corev1.Service{usual, upstream}, nil, "kube-dns"},
		{"what kubelets name goes before labels", []corev1.Service{rke2, other}, kubelets, "other-dns"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found := dnsServices(&inventory.Snapshot{Services: tt.services, Kubelets: tt.kubelets}, nil)
			want := map[types.NamespacedName]bool{}
			if tt.want != "" {
				want[types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: tt.want}] = true
			}
			if len(found) != len(want) {
				t.Fatalf("it found %v, want %v", found, want)
			}
			for key := range want {
				if !found[key] {
					t.Errorf("it found %v, want %s", found, key)
				}
			}
		})
	}
}
