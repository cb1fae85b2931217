package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestTogether moves Services and pods of one cluster as one set, by one file, while clients call all the time, and kills replumb in either
// half. First a kube-proxy breaks while Services move: the agents' loss stops the set before pods are begun. The control is the same command
// after repair, and at the end the same clients see losses when all pods are deleted at once.
func TestTogether(t *testing.T) {
	l := nodesWithRanges(t)
	s := nodesUnderTraffic(t, l, traffic.Rates{Request: 10, LookUp: 5})
	file := writeTogether(t)

	proxy := &brokenProxy{T: t, l: l, node: "node1"}
	_, exit, stderr := runBreaking(t, applying(t, l, file), proxy)
	t.Logf("the set with a broken kube-proxy: exit %d: %s", exit, stderr)
	if exit != 4 || !strings.Contains(stderr, "the set stopped at migration services") || !strings.Contains(stderr, "pods") {
		t.Fatalf("ended with %d, not with 4 and the names of both migrations: %s", exit, stderr)
	}
	requireUnbegun(t, l, "pods")
	proxy.repair()
	proxy.ruled()
	proxy.forget()
	s.steady(t)

	moved := s.during(t, "the set after repair", func() {
		for _, moment := range []func(engine.Event) bool{
			eventOf(engine.StepWaiting, "drain/node1"), eventOf(engine.StepStarted, "switch/node2"),
		} {
			o := operator{lab: l, podCIDR: netip.MustParsePrefix(newPods), killAt: moment}
			if _, code, _ := o.attend(t, applying(t, l, file)); code != -1 {
				t.Fatalf("apply ended with exit code %d before the event came", code)
			}
		}
		attendNodes(t, l, newPods, "apply", "-f", file)
	})
	moved.requireNothingLost(t, traffic.All)
	moved.requireEnough(t, l.NodeNames())
	requireAllIn(t, l, newRange)
	requireNodesIn(t, l, newPods)

	back := s.during(t, "the rollback of the set", func() { attendNodes(t, l, oldPods, "rollback", "-f", file, "--yes") })
	back.requireNothingLost(t, traffic.All)
	requireAllIn(t, l, oldRange)
	requireNodesIn(t, l, oldPods)

	again := s.during(t, "the second move of the set", func() { attendNodes(t, l, newPods, "apply", "-f", file) })
	again.requireNothingLost(t, traffic.All)
	finish := s.during(t, "finish", func() { attendNodes(t, l, newPods, "finish", "-f", file, "--yes", "--leave-clients") })
	finish.requireNothingLost(t, func(src traffic.Source) bool { return src.Via != traffic.ByOldAddress })
	requireAllIn(t, l, newRange)
	requireNodesIn(t, l, newPods)
	requireNoTrace(t, l)
	requireDeletingLoses(t, l, s)
}

// writeTogether writes both Migrations, pods first: replumb knows the order.
func writeTogether(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "both.yaml")
	text := fmt.Sprintf(`apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: pods}
spec:
  podCIDR:
    from: [%s]
    to: [%s]
    roll: {timeout: 3m}
    nodes: {gateWait: 3m}
  batch: {size: 2, settle: 1s}
  image: %[4]s
  proof: {agents: Enabled, wait: 1m}
---
apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: services}
spec:
  serviceCIDR:
    to: [%[3]s]
    drain: %[5]s # as long as name servers remember an address, and more
    clusterServices: Stay
    refresh: {mode: Report}
  batch: {size: 4, settle: 1s}
  image: %[4]s
  proof: {agents: Enabled, soak: 5s, wait: 1m}
`, oldPods, newPods, newRange, workload.ReplumbImage, "45s")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// requireUnbegun fails the test if the cluster has a Migration.
func requireUnbegun(t *testing.T, l *lab.Lab, name string) {
	t.Helper()
	c, err := cluster.Connect(l.RESTConfig())
	must(t, err)
	m := &v1alpha1.Migration{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: name}, m); !apierrors.IsNotFound(err) {
		t.Errorf("migration %s is there: %s, %v", name, m.Status.Phase, err)
	}
}
