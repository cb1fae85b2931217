package noderanges

import (
	"net/netip"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
)

// TestMaker stops where a gate could not be passed, or the network would not follow.
func TestMaker(t *testing.T) {
	node := func(version, provider string, labels map[string]string) corev1.Node {
		n := corev1.Node{}
		n.Labels, n.Spec.ProviderID, n.Status.NodeInfo.KubeletVersion = labels, provider, version
		return n
	}
	set := func(name, release string) appsv1.DaemonSet {
		ds := appsv1.DaemonSet{}
		ds.Name, ds.Labels = name, map[string]string{"k8s-app": strings.TrimPrefix(name, "rke2-")}
		ds.Annotations = map[string]string{"meta.helm.sh/release-name": release}
		return ds
	}
	flannel, balancer := set("kube-flannel", ""), set("svclb-traefik", "")
	for _, tt := range []struct {
		name string
		node corev1.Node
		sets []appsv1.DaemonSet
		want string // part of what is said; empty, if it may go on
	}{
		{name: "plain", node: node("v1.36.0", "", nil), sets: []appsv1.DaemonSet{flannel}},
		{name: "Canal that is one's own", node: node("v1.36.0", "", nil), sets: []appsv1.DaemonSet{set("canal", "")}},
		{name: "GKE", node: node("v1.33.4-gke.1", "gce://p/z/m", nil), want: "--pod-ipv4-range"},
		{name: "AKS with kubenet", node: node("v1.33.4", "azure:///s", map[string]string{"kubernetes.azure.com/cluster": "MC"}), want: "Microsoft"},
		{name: "kOps", node: node("v1.34.1", "aws:///z/i", map[string]string{"kops.k8s.io/instancegroup": "nodes"}), want: "allocateNodeCIDRs"},
		{name: "k3s", node: node("v1.33.4+k3s1", "k3s://n", nil), sets: []appsv1.DaemonSet{balancer}, want: "part of its program"},
		{name: "k3s with a network of one's own", node: node("v1.33.4+k3s1", "k3s://n", nil), sets: []appsv1.DaemonSet{flannel}},
		{name: "RKE2 with Canal", node: node("v1.33.4+rke2r1", "", nil), sets: []appsv1.DaemonSet{set("rke2-canal", "rke2-canal")}, want: "chart of RKE2"},
		{name: "RKE2 with flannel", node: node("v1.33.4+rke2r1", "", nil), sets: []appsv1.DaemonSet{set("kube-flannel", "rke2-flannel")}, want: "chart"},
		{name: "RKE2 with a network of one's own", node: node("v1.33.4+rke2r1", "", nil), sets: []appsv1.DaemonSet{flannel}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := Input{Input: podmove.Input{Inventory: &podmove.Inventory{
				Nodes: []corev1.Node{tt.node}, Workloads: &rollout.State{DaemonSets: tt.sets},
			}}}
			got := checkMaker(in)
			if (len(got) > 0) != (tt.want != "") || len(got) > 0 && !strings.Contains(got[0].Message, tt.want) {
				t.Errorf("it is %v, want %q", got, tt.want)
			}
		})
	}
}

// TestGuides names no field that its installer overwrites, and forgets no value.
func TestGuides(t *testing.T) {
	to := netip.MustParsePrefix("10.245.0.0/16")
	for _, o := range []inventory.Origin{
		{},
		{Distribution: inventory.Kubeadm},
		{Distribution: inventory.Kubeadm, ClusterAPI: true},
		{Distribution: inventory.K3s},
		{Distribution: inventory.RKE2},
		{Distribution: inventory.KOps},
		{Distribution: inventory.Talos},
	} {
		paused, repointed := pausedGuide(o), repointedGuide(o, to, 25)
		if strings.Contains(paused+repointed, "%!") || !strings.Contains(repointed, to.String()) {
			t.Errorf("%v: %s\n%s", o, paused, repointed)
		}
		if o.Distribution == inventory.KOps && strings.Contains(paused+repointed, "{allocateNodeCIDRs") {
			t.Errorf("kOps overwrites what is asked for: %s\n%s", paused, repointed)
		}
		if o.ClusterAPI && !strings.Contains(repointed, `{name: node-cidr-mask-size, value: "25"}`) {
			t.Errorf("%v forgets the size: %s", o, repointed)
		}
	}
}
