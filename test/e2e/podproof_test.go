package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

const watchedName = "watched"

// TestPodsWatched has agents on every node while pods move to another range, their own among them: through Calico's change of tunnels, through
// restarts, there and back, and to the end they see nothing lost. The control breaks a kube-proxy in the middle of the restarts: the run
// ends with exit code 4 and the name of the node, and the same command goes on after repair.
func TestPodsWatched(t *testing.T) {
	l := bringUp(t, withCalico("e2e-watched"))
	if _, err := openShop(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	from, to := l.Topology.PodCIDR, netip.MustParsePrefix(movedTo)
	file := writeWatched(t, fmt.Sprintf("from: [%s]\n    to: [%s]", from, to))

	watched := func(args ...string) {
		t.Helper()
		shown(t, l, args...)
		requireNothingLostBy(t, l, watchedName)
	}
	watched("apply", "-f", file)
	watched("rollback", watchedName, "--yes")
	proxy := &brokenProxy{T: t, l: l, node: "node1"}
	apply := command(t, "replumb", "apply", "-f", file, "-o", "json", "--kubeconfig", l.Kubeconfig())
	_, exit, stderr := runWatching(t, apply, func(e engine.Event) {
		if proxy.resume == nil && e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "restart/Deployment/") {
			requireNothingLostBy(t, l, watchedName)
			proxy.shatter()
		}
	})
	t.Logf("apply with a broken kube-proxy: exit %d: %s", exit, stderr)
	if exit != 4 || !strings.Contains(stderr, "on node node1") {
		t.Fatalf("ended with %d, not with 4 and the name of the node: %s", exit, stderr)
	}
	proxy.repair()
	proxy.ruled()
	proxy.forget()
	watched("apply", "-f", file)
	watched("finish", watchedName, "--yes")
	requireSettled(t, l, to)
}

// TestNodesWatched has agents on every node where Nodes carry the ranges: the one in the network of pods leaves each node before that gets
// another range, and is back before the next one does. They see nothing lost, and neither do clients of the test's own.
func TestNodesWatched(t *testing.T) {
	l := nodesWithRanges(t)
	s := nodesUnderTraffic(t, l, traffic.Rates{Request: 10, LookUp: 5})
	file := writeWatched(t, fmt.Sprintf("from: [%s]\n    to: [%s]", oldPods, newPods))
	for _, run := range []struct {
		to   string
		args []string
	}{
		{newPods, []string{"apply", "-f", file}},
		{oldPods, []string{"rollback", watchedName, "--yes"}},
		{newPods, []string{"apply", "-f", file}},
		{newPods, []string{"finish", watchedName, "--yes"}},
	} {
		lived := s.during(t, run.args[0], func() { attendNodes(t, l, run.to, run.args...) })
		lived.requireNothingLost(t, traffic.All)
		requireNothingLostBy(t, l, watchedName)
	}
	requireNodesIn(t, l, newPods)
	requireNoTrace(t, l)
}

// requireSettled fails the test unless every pod is in the range, and replumb has left nothing.
func requireSettled(t *testing.T, l *lab.Lab, cidr netip.Prefix) {
	t.Helper()
	requirePodsIn(t, l, cidr)
	requireNoTrace(t, l)
}

// ruled waits until the kube-proxy has written its rules: what is sent before is in connection tracking without a translation, and swallows
// later connections.
func (p *brokenProxy) ruled() {
	p.Helper()
	eventually(p.T, settled, func() error {
		out, err := p.l.Exec(p.Context(), p.node, "iptables", "-t", "nat", "-S", "KUBE-SERVICES")
		if n := strings.Count(string(out), "\n"); err == nil && n < 10 {
			err = fmt.Errorf("there are %d rules", n)
		}
		return err
	})
}

// requireNothingLostBy fails the test if the agents have lost a request in the latest run, or have hardly sent any.
func requireNothingLostBy(t *testing.T, l *lab.Lab, name string) {
	t.Helper()
	var page struct {
		Proof struct {
			Nodes  int      `json:"nodes"`
			Silent []string `json:"silent"`
			Sent   int64    `json:"sent"`
			Failed int64    `json:"failed"`
			Losses []any    `json:"losses"`
		} `json:"proof"`
	}
	must(t, json.Unmarshal([]byte(replumb(t, l, "status", name, "-o", "json")), &page))
	t.Logf("agents on %d nodes have sent %d requests, and lost %d", page.Proof.Nodes, page.Proof.Sent, page.Proof.Failed)
	if page.Proof.Failed > 0 || page.Proof.Sent < 200 || page.Proof.Nodes == 0 {
		t.Errorf("status has %+v", page.Proof)
	}
}

// writeWatched writes a migration of pods with agents.
func writeWatched(t *testing.T, podCIDR string) string {
	t.Helper()
	return writeSpec(t, watchedName, `
  podCIDR:
    %s
    roll: {timeout: 3m}
    nodes: {gateWait: 3m}
  batch: {size: 2, settle: 1s}
  image: %s
  proof: {agents: Enabled, wait: 1m}
`, podCIDR, workload.ReplumbImage)
}
