package e2e

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// TestKubeadmProxyMode changes the mode of the kube-proxy that kubeadm has installed, whose configuration names none, to nftables: there, killed
// while the control plane and two workers at once are changed, back, there again and for good. Then kubeadm upgrades, which writes the DaemonSet
// and its configuration anew, and the mode stays. The control changes the configuration for all nodes at once, and loses.
func TestKubeadmProxyMode(t *testing.T) {
	topology := named("e2e-kubeadm-proxy")
	topology.Installer, topology.Nodes = lab.Kubeadm, []lab.ProxyMode{lab.IPTables, lab.IPTables}
	l := bringUp(t, topology)
	p, k := proxyPods{l}, &byThePage{T: t, l: l}
	s := servingAllKinds(t, l, traffic.Calls.SeenAsAny)
	file := writeMode(t, ", nodes: {parallel: 2}")
	before := configOfProxies(t, l)
	apply := func(killAt func(engine.Event) bool) int {
		return attendProxies(t, p, killAt, "apply", "-f", file, "--yes")
	}

	there := s.during(t, "the mode being changed", func() {
		for _, step := range []string{"compare/cp1", "mark/leaving/node2", "returned/node1"} {
			if code := apply(eventOf(engine.StepStarted, step)); code != -1 {
				t.Fatalf("apply ended with exit code %d before step %s", code, step)
			}
		}
		requireDone(t, apply(nil))
	})
	there.requireNothingLost(t, traffic.Permitted)
	p.requireMode(t, lab.NFTables)

	back := s.during(t, "the mode being changed back", func() { requireDone(t, attendProxies(t, p, nil, "rollback", toNFTables, "--yes")) })
	back.requireNothingLost(t, traffic.Permitted)
	p.requireMode(t, lab.IPTables)
	requireNoTrace(t, l)
	if now := configOfProxies(t, l); now != before {
		t.Errorf("the configuration of kube-proxy is\n%s\nwas\n%s", now, before)
	}
	requireModeAtOnceLoses(t, p.Lab, p.machines(), s, p.setModeAtOnce)

	again := s.during(t, "the mode being changed again", func() { requireDone(t, apply(nil)) })
	again.requireNothingLost(t, traffic.Permitted)
	finish := s.during(t, "finish", func() { shown(t, l, "finish", toNFTables, "--yes") })
	finish.requireNothingLost(t, traffic.Permitted)
	requireNoTrace(t, l)
	k.upgradeToTheSame()
	p.requireMode(t, lab.NFTables)
	newNodePorts(t, l) // which returns when all of them answer at every node
}

// configOfProxies is what all pods of kube-proxy read.
func configOfProxies(t *testing.T, l *lab.Lab) string {
	t.Helper()
	config, err := l.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), "kube-proxy", metav1.GetOptions{})
	must(t, err)
	return config.Data["config.conf"]
}
