package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// ofLab is the file of a lab with host-local, without its number.
const ofLab = "lab.conflist"

// TestInPlaceHostLocal leaves a network that is only a file on each node, in one lab for Calico and in another for Cilium, node by node and under
// traffic of clients on the nodes' own network and of pods that move like all others: there, with replumb killed on the way, back, there again
// and for good. No request is lost. The controls lose: for Calico, without what keeps pods' addresses between both networks; and for both, with the
// network taken away.
func TestInPlaceHostLocal(t *testing.T) {
	t.Run("to Calico", func(t *testing.T) {
		l := fromHostLocal(t, "e2e-inplace-hc", lab.Calico)
		s := servingAllKinds(t, l, asThemselves, workload.Policies(guardedNamespace)...)
		file := leaving(t, writeSwitch(t, l, v1alpha1.Calico))

		requireToldHostLocal(t, l)
		thereAndBack(t, l, s, file, toCalico, newPods, oldPods).requireEnough(t, l.NodeNames())
		requireUncrossedLoses(t, l, s, file)
		switchForGood(t, l, s, file, toCalico, newPods, ofLab)
		requireLeftHostLocal(t, l)
		requirePoliciesHold(t, l, s)
		requireCalicoRemovalLoses(t, l, s)
	})
	t.Run("to Cilium", func(t *testing.T) {
		l := fromHostLocal(t, "e2e-inplace-hi", lab.Cilium)
		// No one enforces the policies, and Cilium does from finish on.
		s := servingAllKinds(t, l, traffic.Calls.SeenAsAny, workload.Policies(guardedNamespace)...)
		file := leaving(t, writeSwitchIn(t, l, v1alpha1.Cilium, v1alpha1.CNIInPlace, newPods))

		thereAndBack(t, l, s, file, toCilium(), newPods, oldPods)
		switchForGood(t, l, s, file, toCilium(), newPods, ofLab)
		requireLeftHostLocal(t, l)
		requirePoliciesHold(t, l, s)
		requireRemovalLoses(t, l, s)
	})
}

// fromHostLocal is a lab of three nodes with host-local, whose kube-proxies know both ranges of pods.
func fromHostLocal(t *testing.T, name string, beside lab.CNI) *lab.Lab {
	t.Helper()
	topology := named(name)
	topology.CNI, topology.Beside = lab.HostLocal, beside
	topology.Nodes = slices.Repeat(lab.Default().Nodes[:1], 3)
	l := bringUpForBoth(t, topology)
	return l
}

// leaving says in a Migration's file that the cluster has host-local.
func leaving(t *testing.T, file string) string {
	t.Helper()
	return rewrite(t, file, func(text string) string {
		return strings.Replace(text, "  cni:\n", "  cni:\n    from: host-local\n", 1)
	})
}

// requireToldHostLocal: a Migration that does not say which network the cluster has is refused, and told how to.
func requireToldHostLocal(t *testing.T, l *lab.Lab) {
	t.Helper()
	requireBlocked(t, l, writeSwitch(t, l, v1alpha1.Calico), "RP5101")
}

// requireLeftHostLocal: addresses that were given out are gone, and routes to the old ranges stay, since they are the lab's own.
func requireLeftHostLocal(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, node := range l.NodeNames() {
		if out, err := l.Exec(
			t.Context(),
			node,
			"/bin/sh",
			"-c",
			"ls /var/lib/cni/networks/lab 2>/dev/null || true",
		); err != nil ||
			len(out) > 0 {
			t.Errorf("%s still keeps addresses of host-local (%v): %s", node, err, out)
		}
		routes, err := l.Exec(t.Context(), node, "ip", "route", "show", "root", oldPods)
		if err != nil || !strings.Contains(string(routes), "via") {
			t.Errorf("%s has lost the lab's routes (%v):\n%s", node, err, routes)
		}
	}
}

// requireCalicoRemovalLoses is the control: a cluster whose network is taken away loses requests.
func requireCalicoRemovalLoses(t *testing.T, l *lab.Lab, s *shop) {
	t.Helper()
	lost := s.during(t, "a network taken away", func() {
		for _, node := range l.NodeNames() {
			if out, err := l.Exec(t.Context(), node, "ip", "link", "set", "vxlan.calico", "down"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		awaitReports(t, s)
	})
	stats := lost.stats(t, traffic.All)
	if stats.Failed == 0 {
		t.Errorf("none of %d requests was lost without a network: the test proves nothing", stats.Sent)
	}
	t.Logf("control: with the network taken away, %d of %d requests were lost", stats.Failed, stats.Sent)
}
