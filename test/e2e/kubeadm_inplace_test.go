package e2e

import (
	"net/netip"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// TestKubeadmInPlace replaces flannel by Calico in a cluster that kubeadm has made, on control plane and workers, node by node under traffic, with
// replumb killed on the way, back, and for good. Afterwards kubeadm upgrades and a worker joins, and nothing brings the old network back. The
// control removes one network before the other comes.
func TestKubeadmInPlace(t *testing.T) {
	topology := named("e2e-kubeadm-inplace")
	topology.Installer, topology.CNI, topology.Nodes = lab.Kubeadm, lab.Flannel, []lab.ProxyMode{lab.IPTables, lab.IPTables}
	roomForQuestions(t)
	l := bringUp(t, topology)
	favourSystem(t, l)
	k := &byThePage{T: t, l: l}
	k.tellProxies(oldPods, bothPods)
	s := nodesUnderTraffic(t, l, traffic.Rates{Request: 5, LookUp: 5})
	addMembers(t, l, s, asThemselves)
	s.gate = openGate(t, l, s.watch.Load().Share)
	requireCarried(t, s)

	file := writeSwitch(t, l, v1alpha1.Calico)
	thereAndBack(t, l, s, file, toCalico, newPods, oldPods).requireEnough(t, l.NodeNames())
	switchForGood(t, l, s, file, toCalico, newPods, "flannel")

	k.upgradeToTheSame()
	joined, err := l.Workers().Add(t.Context(), lab.Joining{})
	must(t, err)
	k.requirePodOn(joined.Name, netip.MustParsePrefix(newPods))
	requireAddressesIn(t, l, guardedNamespace, netip.MustParsePrefix(newPods))
	requireDrainedLoses(t, l, s, v1alpha1.Flannel)
}

// favourSystem gives pods that kubeadm makes a share of the processors. Kubeadm's kube-proxies have what other pods leave: on two busy processors
// one learned seven seconds late of a name server that had ended. With more than this for all, a name server takes the place of a client while a node
// is emptied.
func favourSystem(t *testing.T, l *lab.Lab) {
	t.Helper()
	kubectl(t, l, "set resources daemonset/kube-proxy --requests=cpu=100m -n kube-system")
	kubectl(t, l, "set resources deployment/coredns --requests=cpu=250m,memory=70Mi -n kube-system")
	for _, each := range []string{"deployment/coredns", "daemonset/kube-proxy"} {
		kubectl(t, l, "rollout status "+each+" --timeout=2m -n kube-system")
	}
}
