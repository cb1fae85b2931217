package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestKubeadmPods moves the pods of a cluster that kubeadm has made, whose Nodes carry their ranges, the control plane's too: there, back, there
// again and for good. replumb passes the gates about the controller manager itself, and is killed while that restarts and while the Node of the
// only control plane is gone. kube-proxy is told of both ranges by the commands of docs/platforms/kubeadm.md. kubeadm upgrades before the end, a
// worker joins after it, and nothing brings the old range back.
func TestKubeadmPods(t *testing.T) {
	topology := named("e2e-kubeadm-pods")
	topology.Installer, topology.Nodes = lab.Kubeadm, []lab.ProxyMode{lab.IPTables, lab.IPTables}
	l := bringUp(t, topology)
	k := &byThePage{T: t, l: l}
	k.tellProxies(oldPods, bothPods)
	s := nodesUnderTraffic(t, l, traffic.Rates{Request: 10, LookUp: 5})
	file := writeSpec(t, "pods", `
  podCIDR:
    from: [%s]
    to: [%s]
    roll: {timeout: 3m}
    nodes: {gates: Kubeadm, gateWait: 3m}
  image: %q
  proof: {agents: Disabled}
`, oldPods, newPods, workload.ReplumbImage)
	before, dns := k.written(), k.namers()

	there := s.during(t, "the move of nodes", func() {
		for _, step := range []string{"kubeadm/ranges-paused/kube-controller-manager/cp1", "switch/cp1"} {
			o := operator{lab: l, killAt: eventOf(engine.StepStarted, step)}
			if _, code, _ := o.attend(t, command(t, "replumb", "apply", "-f", file, "-o", "json", "--kubeconfig", l.Kubeconfig())); code != -1 {
				t.Fatalf("apply ended with exit code %d before step %s", code, step)
			}
		}
		k.alone(attendAs(t, operator{lab: l}, 0, "apply", "-f", file))
	})
	there.requireNothingLost(t, traffic.All)
	requireNodesIn(t, l, newPods)
	if now := k.namers(); now != dns+1 {
		t.Errorf("CoreDNS has %d pods while others move, and had %d", now, dns)
	}

	back := s.during(t, "the rollback of nodes", func() { k.alone(attendAs(t, operator{lab: l}, 0, "rollback", "pods", "--yes")) })
	back.requireNothingLost(t, traffic.All)
	requireNodesIn(t, l, oldPods)
	requireNoTrace(t, l)
	k.requireWritten(before)
	requireDeletingLoses(t, l, s)

	again := s.during(t, "the move there again", func() { k.alone(attendAs(t, operator{lab: l}, 0, "apply", "-f", file)) })
	again.requireNothingLost(t, traffic.All)
	k.upgradeToTheSame(oldPods)
	requireNodesIn(t, l, newPods)
	finish := s.during(t, "finish", func() { k.alone(attendAs(t, operator{lab: l}, 0, "finish", "pods", "--yes")) })
	finish.requireNothingLost(t, traffic.All)
	requireNoTrace(t, l)
	if now := k.namers(); now != dns {
		t.Errorf("CoreDNS has %d pods after finish, and had %d", now, dns)
	}
	k.tellProxies(bothPods, newPods)
	k.newcomerIn(newPods)
	requireNodesIn(t, l, newPods)
	k.requireNowhere(oldPods, bothPods)
}

// namers is how many pods CoreDNS is to have.
func (k *byThePage) namers() int32 {
	k.Helper()
	d, err := k.l.Client().AppsV1().Deployments(metav1.NamespaceSystem).Get(k.Context(), "coredns", metav1.GetOptions{})
	must(k.T, err)
	return ptr.Deref(d.Spec.Replicas, 1)
}

// tellProxies has kube-proxy take addresses of another range for pods'.
func (k *byThePage) tellProxies(was, is string) {
	k.Helper()
	const edit = "kubectl -n kube-system edit configmap kube-proxy"
	on := k.l.ControlPlanes()[0]
	must(k.T, k.run(k.Context(), on, edit+"\n"+k.blocks("## Pod range")[0], "s,clusterCIDR: "+was+",clusterCIDR: "+is+","))
}

// newcomerIn has a worker join, whose Node is to carry a range of these, and waits until it runs its pod of the DaemonSet.
func (k *byThePage) newcomerIn(pods string) {
	k.Helper()
	joined, err := k.l.Workers().Add(k.Context(), lab.Joining{})
	must(k.T, err)
	n, err := k.l.Client().CoreV1().Nodes().Get(k.Context(), joined.Name, metav1.GetOptions{})
	must(k.T, err)
	if p, err := netip.ParsePrefix(n.Spec.PodCIDR); err != nil || !netip.MustParsePrefix(pods).Overlaps(p) {
		k.Errorf("node %s, which has joined, carries %q", joined.Name, n.Spec.PodCIDR)
	}
	awaitEverywhere(k.T, k.l)
}

// requireNowhere fails the test if what kubeadm has written, or would write again, names one of these.
func (k *byThePage) requireNowhere(gone ...string) {
	k.Helper()
	texts := map[string]string{}
	for _, name := range []string{"kubeadm-config", "kubelet-config", "kube-proxy"} {
		config, err := k.l.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(k.Context(), name, metav1.GetOptions{})
		must(k.T, err)
		texts["ConfigMap "+name] = fmt.Sprint(config.Data)
	}
	for _, on := range slices.Concat(k.l.ControlPlanes(), k.l.NodeNames()) {
		out, err := k.l.Shell(k.Context(), on, "cat /var/lib/kubelet/config.yaml /etc/kubernetes/manifests/*.yaml 2>/dev/null || true")
		must(k.T, err)
		texts[on] = string(out)
	}
	for where, text := range texts {
		for _, it := range gone {
			if strings.Contains(text, it) {
				k.Errorf("%s names %s:\n%s", where, it, text)
			}
		}
	}
}
