package e2e

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestInPlaceCilium replaces flannel by Cilium, and in another lab Calico, node by node and under traffic of clients on the nodes' own network
// and of pods that move like all others: there, with replumb killed on the way, back, there again and for good. No request is lost. The
// control of each takes the network away before there is another, and loses.
func TestInPlaceCilium(t *testing.T) {
	t.Run("from flannel", func(t *testing.T) {
		l := besideCilium(t, "e2e-inplace-fc")
		// Flannel does not enforce the policies, and Cilium does from finish on.
		s := servingAllKinds(t, l, traffic.Calls.SeenAsAny, workload.Policies(guardedNamespace)...)
		file := writeSwitchIn(t, l, v1alpha1.Cilium, v1alpha1.CNIInPlace, newPods)

		thereAndBack(t, l, s, file, toCilium(), newPods, oldPods)
		switchForGood(t, l, s, file, toCilium(), newPods, "flannel")
		requirePoliciesHold(t, l, s)
		requireRemovalLoses(t, l, s)
	})
	t.Run("from Calico", func(t *testing.T) {
		l := besideCilium(t, "e2e-inplace-cc")
		shown(t, l, "apply", "-f", writeSwitch(t, l, v1alpha1.Calico), "--yes")
		shown(t, l, "finish", toCalico, "--yes")
		s := servingAllKinds(t, l, traffic.Calls.SeenAsAny)
		file := writeSwitchIn(t, l, v1alpha1.Cilium, v1alpha1.CNIInPlace, oldPods)

		requirePoliciesBlock(t, l, file)
		thereAndBack(t, l, s, file, toCilium(), oldPods, newPods)
		switchForGood(t, l, s, file, toCilium(), oldPods, "cali")
		requireRemovalLoses(t, l, s)
	})
}

func toCilium() string { return switchName(v1alpha1.Cilium, v1alpha1.CNIInPlace) }

// besideCilium is a lab of three nodes with flannel, whose kube-proxies know both ranges of pods.
func besideCilium(t *testing.T, name string) *lab.Lab {
	t.Helper()
	topology := named(name)
	topology.CNI, topology.Beside = lab.Flannel, lab.Cilium
	topology.Nodes = slices.Repeat(lab.Default().Nodes[:1], 3)
	l := bringUpForBoth(t, topology)
	return l
}

// requirePoliciesBlock: a policy that Calico enforces would see nodes in place of pods of Cilium. Without it nothing blocks.
func requirePoliciesBlock(t *testing.T, l *lab.Lab, file string) {
	t.Helper()
	policies := workload.Policies(guardedNamespace)
	must(t, workload.Ensure(t.Context(), l.Client(), policies...))
	requireBlocked(t, l, file, "RP5309")
	err := l.Client().
		NetworkingV1().
		NetworkPolicies(guardedNamespace).
		DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
	must(t, err)
}

// requireRemovalLoses is the control: a cluster whose network is taken away loses requests, whatever comes afterwards.
func requireRemovalLoses(t *testing.T, l *lab.Lab, s *shop) {
	t.Helper()
	lost := s.during(t, "a network taken away", func() {
		sets := l.Client().AppsV1().DaemonSets(metav1.NamespaceSystem)
		must(t, sets.Delete(t.Context(), "cilium", metav1.DeleteOptions{}))
		for _, node := range l.NodeNames() {
			if out, err := l.Exec(t.Context(), node, "ip", "link", "delete", "cilium_vxlan"); err != nil {
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
