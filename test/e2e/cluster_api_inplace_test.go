package e2e

import (
	"net/netip"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// TestClusterAPIInPlace replaces flannel by Calico in a cluster whose machines Cluster API makes. A worker joins when one node is switched and
// others are not, and is switched with these; then back, which short runs leave out, and for good. After finish Cluster API makes another worker and
// another control plane, which have the new network alone. The control removes one network before the other comes.
func TestClusterAPIInPlace(t *testing.T) {
	topology := named("e2e-capi-cni")
	topology.Installer, topology.CNI, topology.Nodes = lab.ByClusterAPI, lab.Flannel, []lab.ProxyMode{lab.IPTables, lab.IPTables}
	roomForQuestions(t)
	l := bringUp(t, topology)
	c, k := &clusterAPI{T: t, l: l}, &byThePage{T: t, l: l}
	favourSystem(t, l)
	c.spreadNameServers()
	k.tellProxies(oldPods, bothPods)
	s := nodesUnderTraffic(t, l, traffic.Rates{Request: 3, LookUp: 1})
	addMembers(t, l, s, asThemselves)
	requireCarried(t, s)
	file, moved := writeSwitch(t, l, v1alpha1.Calico), netip.MustParsePrefix(newPods)

	there := s.during(t, "the way there, while a worker joins", func() {
		c.killed(file, "canary/")
		c.pool("workers-b", "a", 1)
		c.await("workers-b", 1)
		shown(t, l, "apply", "-f", file, "--yes")
	})
	there.requireNothingLost(t, traffic.Permitted)
	must(t, c.refresh())
	requireAddressesIn(t, l, guardedNamespace, moved)
	k.requirePodOn(c.nodeOf("workers-b"), moved)
	if !testing.Short() {
		home := s.during(t, "the way back", func() { shown(t, l, "rollback", toCalico, "--yes") })
		home.requireNothingLost(t, traffic.Permitted)
		requireAddressesIn(t, l, guardedNamespace, netip.MustParsePrefix(oldPods))
	}
	switchForGood(t, l, s, file, toCalico, newPods, "flannel")

	c.pool("workers-a-more", "a", 1)
	must(t, c.replacePlane(t.Context()))
	c.await("workers-a-more", 1)
	must(t, c.refresh())
	k.requirePodOn(c.nodeOf("workers-a-more"), moved)
	k.requirePodOn(l.ControlPlanes()[0], moved)
	requireDrainedLoses(t, l, s, v1alpha1.Flannel)
}
