package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// TestFleet moves the Services of two clusters, one wave after the other, by one file. In the first a kube-proxy breaks: the agents' first loss
// halts the fleet before anything is written in the second. The control is the same command after repair: nothing is lost, and the second
// cluster moves as well. Then the fleet finishes.
func TestFleet(t *testing.T) {
	first := bringUp(t, named("e2e-fleet-1"))
	second := bringUp(t, smaller("e2e-fleet-2"))
	inFirst, _ := lightTraffic(t, first)
	inSecond, _ := lightTraffic(t, second)
	file := writeFleet(t, first, second)
	fleet := func(verb string, more ...string) []string {
		return append([]string{"fleet", verb, "-f", file}, more...)
	}

	proxy := &brokenProxy{T: t, l: first, node: "node1"}
	_, exit, stderr := runBreaking(t, command(t, "replumb", fleet("apply", "--yes", "-o", "json")...), proxy)
	t.Logf("the fleet with a broken kube-proxy: exit %d: %s", exit, stderr)
	if exit != 4 || !strings.Contains(stderr, "node1") {
		t.Fatalf("ended with %d, not with 4 and the name of the node: %s", exit, stderr)
	}
	requireNoTrace(t, second)
	requireFleet(t, file, "canary: Applying", "prod: ")

	proxy.repair()
	inFirst.steady(t)
	proxy.forget()
	inFirst.steady(t)
	run := func(verb string) {
		out, err := command(t, "replumb", fleet(verb, "--yes")...).CombinedOutput()
		if err != nil {
			t.Fatalf("fleet %s: %v: %s", verb, err, out)
		}
		t.Logf("fleet %s: %s", verb, out)
	}
	moved := inFirst.during(t, "the fleet after repair, in the first cluster", func() {
		inSecond.during(t, "the fleet after repair, in the second cluster", func() { run("apply") }).requireNothingLost(t, traffic.All)
	})
	moved.requireNothingLost(t, traffic.All)
	requireAllIn(t, first, "172.20.0.0/16")
	requireAllIn(t, second, "172.21.0.0/16")
	requireFleet(t, file, "canary: Moved", "prod: Moved")

	for _, s := range []*shop{inFirst, inSecond} { // who keeps connections to old addresses would be waited for
		s.watch.Stop()
	}
	removeClients(t, first, shopNamespace)
	removeClients(t, second, shopNamespace)
	run("finish")
	requireFleet(t, file, "canary: Finished", "prod: Finished")
	requireNoTrace(t, first)
	requireNoTrace(t, second)
}

// smaller is a lab of one node.
func smaller(name string) lab.Topology {
	topology := named(name)
	topology.Nodes = []lab.ProxyMode{lab.NFTables}
	return topology
}

// writeFleet writes a Fleet of a canary and another cluster, which have ranges of their own.
func writeFleet(t *testing.T, canary, prod *lab.Lab) string {
	t.Helper()
	migration := proven{name: "fleet", to: "172.20.0.0/16", drain: shortDrain}.write(t)
	text := fmt.Sprintf(`apiVersion: replumb.dev/v1alpha1
kind: Fleet
metadata: {name: labs}
spec:
  migration: %s
  clusters:
    - {name: canary, context: replumb-lab, kubeconfig: %q}
    - {name: prod, context: replumb-lab, kubeconfig: %q, with: {serviceCIDR: {to: [172.21.0.0/16]}}}
  waves:
    - {name: canary, clusters: [canary]}
    - {name: prod, clusters: [prod]}
`, filepath.Base(migration), canary.Kubeconfig(), prod.Kubeconfig())
	file := filepath.Join(filepath.Dir(migration), "labs.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// requireFleet fails the test unless the status of each cluster begins with this, as "NAME: PHASE".
func requireFleet(t *testing.T, file string, want ...string) {
	t.Helper()
	out, err := command(t, "replumb", "fleet", "status", "-f", file, "-o", "json").Output()
	must(t, err)
	var page struct {
		Clusters []struct {
			Cluster string `json:"cluster"`
			Phase   string `json:"phase"`
		} `json:"clusters"`
	}
	must(t, json.Unmarshal(out, &page))
	if len(page.Clusters) != len(want) {
		t.Fatalf("the fleet has %+v", page.Clusters)
	}
	for i, c := range page.Clusters {
		if is := c.Cluster + ": " + c.Phase; !strings.HasPrefix(is, want[i]) {
			t.Errorf("%s, want %s", is, want[i])
		}
	}
}
