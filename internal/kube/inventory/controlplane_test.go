package inventory

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/kube/references"
)

// TestReached has addresses however they are written, and leaves out names and loopback.
func TestReached(t *testing.T) {
	for endpoint, want := range map[string][]string{
		"192.0.2.100:6443":    {"192.0.2.100", "192.0.2.7", "2001:db8::7"},
		"'[2001:db8::1]:443'": {"2001:db8::1", "192.0.2.7", "2001:db8::7"},
		"192.0.2.100":         {"192.0.2.100", "192.0.2.7", "2001:db8::7"},
		"api.example.com:443": {"192.0.2.7", "2001:db8::7"},
	} {
		server := staticPod("kube-apiserver", "--etcd-servers=https://192.0.2.7:2379,https://[2001:db8::7]:2379,https://127.0.0.1:2379,https://etcd.example.com:2379")
		server.Labels = map[string]string{"component": "kube-apiserver"}
		server.Annotations[corev1.MirrorPodAnnotationKey] = "x"
		forged := server.DeepCopy()
		forged.Namespace = "shop"
		found := &Scan{}
		for _, o := range []*corev1.Pod{server, forged} {
			found.Take(&references.Scanner{}, o)
		}
		found.Take(&references.Scanner{}, kubeadmConfig(map[string]string{"ClusterConfiguration": "controlPlaneEndpoint: " + endpoint}))
		var got []string
		for _, r := range found.ControlPlane.Reached() {
			got = append(got, r.Address.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("with endpoint %s: %v, want %v", endpoint, got, want)
		}
	}
}

// TestNodeLocalIsRecognised: installers call the DaemonSet as they like, and its image runs the
// cache by itself.
func TestNodeLocalIsRecognised(t *testing.T) {
	for _, tt := range []struct {
		daemonSet string
		container corev1.Container
		want      bool
	}{
		{"node-local-dns", corev1.Container{Name: "c", Image: "i", Args: []string{"-localip", "169.254.20.10"}}, true},
		{"nodelocaldns", corev1.Container{Name: "node-cache", Image: "i", Args: []string{"-localip", "169.254.20.10"}}, true},
		{"dns", corev1.Container{Name: "c", Image: "registry.k8s.io/dns/k8s-dns-node-cache:1.25.0", Args: []string{"-localip=169.254.20.10"}}, true},
		{"dns", corev1.Container{Name: "c", Image: "registry.example.com/coredns:1.12", Args: []string{"-conf", "/etc/Corefile"}}, false},
	} {
		ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: tt.daemonSet}}
		ds.Spec.Template.Spec.Containers = []corev1.Container{tt.container}
		found := &Scan{}
		found.Take(&references.Scanner{}, ds)
		if got := len(found.NodeLocal) == 1 && slices.Equal(found.NodeLocal[0].Addresses, []string{"169.254.20.10"}); got != tt.want {
			t.Errorf("%s with image %s: %+v", tt.daemonSet, tt.container.Image, found.NodeLocal)
		}
	}
}
