package used

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
)

// lines are the ranges that were read, a line each.
func lines(r *reader) []string {
	var out []string
	for _, one := range r.finish().Ranges {
		line := fmt.Sprintf("%s %s: %s", one.Use, one.Prefix, one.Source)
		if one.PerNode {
			line += " (nodes')"
		}
		if len(one.Addresses) > 0 {
			line += fmt.Sprint(" ", one.Addresses)
		}
		out = append(out, line)
	}
	return out
}

func newReader() *reader { return &reader{out: &ClusterRanges{Name: "a"}} }

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func node(name string, podCIDRs []string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: name})
	return n
}

// TestNodes: ranges and addresses of many nodes are few lines.
func TestNodes(t *testing.T) {
	r := newReader()
	for i := range 5 {
		r.takeNode(node(fmt.Sprintf("node%d", i), []string{fmt.Sprintf("10.244.%d.0/24", i)}, fmt.Sprintf("192.0.2.%d", i+1)))
	}
	r.takeNode(node("far", []string{"10.250.0.0/24", "fd00:1::/64"}, "198.51.100.9", "2001:db8::1"))
	same(t, "ranges", lines(r), []string{
		"pods 10.244.0.0/22: spec.podCIDRs of Node node0, Node node1, Node node2 and 1 more (nodes')",
		"pods 10.244.4.0/24: spec.podCIDRs of Node node4 (nodes')",
		"pods 10.250.0.0/24: spec.podCIDRs of Node far (nodes')",
		"pods fd00:1::/64: spec.podCIDRs of Node far (nodes')",
		"nodes 192.0.2.0/29: status.addresses of Node node0, Node node1, Node node2 and 2 more [192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5]",
		"nodes 198.51.100.9/32: status.addresses of Node far [198.51.100.9]",
		"nodes 2001:db8::1/128: status.addresses of Node far [2001:db8::1]",
	})
}

func configMap(namespace, name, key, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{key: value}}
}

// TestConfigMaps: of kubeadm, kube-proxy, flannel and Cilium.
func TestConfigMaps(t *testing.T) {
	r := newReader()
	for _, cm := range []*corev1.ConfigMap{
		configMap("kube-system", "kubeadm-config", "ClusterConfiguration", "networking: {podSubnet: '10.244.0.0/16,fd00::/56'}"),
		configMap("kube-system", "kube-proxy", "config.conf", "kind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16"),
		configMap("kube-flannel", "kube-flannel-cfg", "net-conf.json", `{"Network": "10.200.0.0/16"}`),
		configMap("kube-system", "cilium-config", "cluster-pool-ipv4-cidr", "10.0.0.0/16 any"),
		configMap("kube-system", "coredns", "Corefile", "."),
		configMap("kube-system", "broken", "config.conf", "kind: KubeProxyConfiguration\nclusterCIDR: nowhere"),
	} {
		r.takeConfigMap(cm)
	}
	same(t, "ranges", lines(r), []string{
		"pods 10.0.0.0/16: cluster-pool-ipv4-cidr of ConfigMap kube-system/cilium-config",
		"pods 10.200.0.0/16: net-conf.json Network of ConfigMap kube-flannel/kube-flannel-cfg",
		"pods 10.244.0.0/16: clusterCIDR of ConfigMap kube-system/kube-proxy",
		"pods 10.244.0.0/16: networking.podSubnet of ConfigMap kube-system/kubeadm-config",
		"pods fd00::/56: networking.podSubnet of ConfigMap kube-system/kubeadm-config",
	})
	same(t, "not read", r.out.NotRead, []string{
		`cluster-pool-ipv4-cidr of ConfigMap kube-system/cilium-config: "any" is not a range`,
		`configuration of kube-proxy in ConfigMap kube-system/broken: clusterCIDR "nowhere" is not a range`,
	})
}

func pod(namespace, name string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
	}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

// TestPods: their command lines have ranges, and their addresses are reported that are in none.
func TestPods(t *testing.T) {
	manager := pod("kube-system", "manager")
	manager.Labels = map[string]string{"component": "kube-controller-manager"}
	manager.Spec.Containers[0].Command = []string{"kube-controller-manager", "--cluster-cidr=10.244.0.0/16,fd00::/56"}
	manager.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	r := newReader()
	r.takePod(manager)
	for i := range 5 {
		proxy := pod("kube-system", fmt.Sprintf("kube-proxy-%d", i), "192.0.2.1")
		proxy.Spec.HostNetwork = true
		proxy.Spec.Containers[0] = corev1.Container{Name: "kube-proxy", Command: []string{"kube-proxy", "--cluster-cidr=10.244.0.0/16"}}
		r.takePod(proxy)
	}
	forged := manager.DeepCopy()
	forged.Namespace, forged.Spec.Containers[0].Command[1] = "shop", "--cluster-cidr=10.99.0.0/16"
	r.takePod(forged)
	over := pod("shop", "over", "172.30.0.1")
	over.Status.Phase = corev1.PodSucceeded
	for _, p := range []*corev1.Pod{pod("shop", "web", "10.244.3.7"), pod("shop", "eni", "172.20.0.9", "172.20.0.8"), over} {
		r.takePod(p)
	}
	same(t, "ranges", lines(r), []string{
		"pods 10.244.0.0/16: --cluster-cidr of Pod kube-system/manager, Pod kube-system/kube-proxy-0, Pod kube-system/kube-proxy-1 and 3 more",
		"pods 172.20.0.8/31: status.podIPs of Pod shop/eni, in no range that was read [172.20.0.8 172.20.0.9]",
		"pods fd00::/56: --cluster-cidr of Pod kube-system/manager",
	})
}

func TestTailscale(t *testing.T) {
	r := newReader()
	operator := pod("tailscale", "operator-1")
	operator.Spec.Containers[0].Image = "tailscale/k8s-operator:v1.80.0"
	operator.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "operator", Controller: ptr.To(true)}}
	another := operator.DeepCopy()
	another.Name = "operator-2"
	proxy := pod("shop", "ts-web")
	proxy.Labels = map[string]string{"tailscale.com/managed": "true"}
	other := pod("shop", "web")
	other.Spec.Containers[0].Image = "example.com/nottailscale/web"
	sidecar := pod("shop", "sidecar")
	sidecar.Spec.Containers[0].Image = "ghcr.io/tailscale/tailscale@sha256:0"
	for _, p := range []*corev1.Pod{operator, another, proxy, other, sidecar} {
		r.takePod(p)
	}
	same(t, "Tailscale", r.finish().Tailscale, []string{"Pod shop/sidecar", "Pod shop/ts-web", "ReplicaSet tailscale/operator"})
}

func TestMigrationsAndPools(t *testing.T) {
	r := newReader()
	r.takeMigration(&v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec: v1alpha1.MigrationSpec{
			ServiceCIDR: &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}, Networks: []string{"10.8.0.0/16"}},
		},
	})
	r.takeMigration(&v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Spec: v1alpha1.MigrationSpec{
			PodCIDR: &v1alpha1.PodCIDRSpec{To: []string{"10.245.0.0/16"}, Networks: []string{"10.9.0.0/16"}},
		},
	})
	r.takeMigration(&v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "back"},
		Spec:       v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{To: []string{"172.25.0.0/16"}}},
		Status:     v1alpha1.MigrationStatus{Phase: v1alpha1.PhaseRolledBack},
	})
	const pools = `{"items": [{"metadata": {"name": "default"}, "spec": {"ipv4": {"cidrs": ["10.1.0.0/16"]}, "ipv6": {"cidrs": ["fd00::/48"]}}}]}`
	if err := r.takeCilium([]byte(pools)); err != nil {
		t.Fatal(err)
	}
	same(t, "ranges", lines(r), []string{
		"pods 10.1.0.0/16: spec.ipv4.cidrs of CiliumPodIPPool default",
		"pods fd00::/48: spec.ipv6.cidrs of CiliumPodIPPool default",
		"network 10.8.0.0/16: spec.serviceCIDR.networks of Migration m",
		"network 10.9.0.0/16: spec.podCIDR.networks of Migration n",
		"planned 10.245.0.0/16: spec.podCIDR.to of Migration n",
		"planned 172.24.0.0/16: spec.serviceCIDR.to of Migration m",
	})
	if err := r.takeCilium([]byte("{")); err == nil {
		t.Error("what is no list is taken")
	}
	if p, ok := r.prefix("10.0.0.9/8", "o", "f"); !ok || p != netip.MustParsePrefix("10.0.0.0/8") {
		t.Errorf("host bits: %s, %t", p, ok)
	}
}

// TestRights: reading is all that it takes.
func TestRights(t *testing.T) {
	for _, right := range Rights() {
		if right.Verb != "list" {
			t.Errorf("%s", right)
		}
	}
}
