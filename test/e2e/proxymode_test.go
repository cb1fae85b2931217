package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// toNFTables is the Migration that changes kube-proxy's mode.
const toNFTables = "to-nftables"

// TestProxyMode changes kube-proxy from mode iptables to nftables, node by node and under traffic of clients on the nodes' own network and of
// pods, by Services of all kinds: there with replumb killed on the way, back from half of the nodes, there again, back and there, and finish. No
// request is lost, and afterwards nodes have rules of one mode alone. The control does what people do, changes the configuration and ends all
// pods at once, and loses.
func TestProxyMode(t *testing.T) {
	topology := named("e2e-proxy-mode")
	topology.Nodes, topology.ProxyPods = []lab.ProxyMode{lab.IPTables, lab.IPTables, lab.IPTables}, true
	l := bringUp(t, topology)
	p := proxyPods{l}
	s := servingAllKinds(t, l, traffic.Calls.SeenAsAny)
	requireModeAtOnceLoses(t, l, p.machines(), s, p.setModeAtOnce)

	file := writeMode(t, "")
	apply := func(killAt func(engine.Event) bool) int {
		return attendProxies(t, p, killAt, "apply", "-f", file, "--yes")
	}
	killed := func(steps ...string) {
		for _, step := range steps {
			if code := apply(eventOf(engine.StepStarted, step)); code != -1 {
				t.Fatalf("apply ended with exit code %d before %s", code, step)
			}
		}
	}
	rollback := func() { requireDone(t, attendProxies(t, p, nil, "rollback", toNFTables, "--yes")) }

	half := s.during(t, "half of the nodes being changed", func() { killed("compare/node1", "mark/leaving/node2") })
	half.requireNothingLost(t, traffic.Permitted)
	back := s.during(t, "half of the nodes coming back", rollback)
	back.requireNothingLost(t, traffic.Permitted)
	p.requireMode(t, lab.IPTables)

	there := s.during(t, "the mode being changed", func() {
		killed("clean/node1", "there/node3", "returned/node2")
		requireDone(t, apply(nil))
	})
	there.requireNothingLost(t, traffic.Permitted)
	p.requireMode(t, lab.NFTables)
	newNodePorts(t, l) // which returns when all of them answer at every node
	removeNamespaces(t, l, doorsNamespace)

	whole := s.during(t, "the mode being changed back", rollback)
	whole.requireNothingLost(t, traffic.Permitted)
	p.requireMode(t, lab.IPTables)

	again := s.during(t, "the mode being changed again", func() { requireDone(t, apply(nil)) })
	again.requireNothingLost(t, traffic.Permitted)
	finish := s.during(t, "finish", func() { shown(t, l, "finish", toNFTables, "--yes") })
	finish.requireNothingLost(t, traffic.Permitted)
	p.requireMode(t, lab.NFTables)
	requireNoTrace(t, l)
}

// writeMode writes the Migration that changes kube-proxy's mode, with more fields of spec.kubeProxy.
func writeMode(t *testing.T, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mode.yaml")
	must(t, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: %s}
spec:
  kubeProxy: {mode: nftables%s}
  image: %q
`, toNFTables, more, workload.ReplumbImage), 0o600))
	return file
}

// requireMode: kube-proxy's own DaemonSet runs it everywhere with that mode, and nodes have rules of no other.
func (p proxyPods) requireMode(t *testing.T, mode lab.ProxyMode) {
	t.Helper()
	p.require(t, true)
	text := configOfProxies(t, p.Lab)
	if named := strings.Contains(text, "mode: "+string(mode)+"\n"); !named && (mode != lab.IPTables || !strings.Contains(text, "mode: \"\"\n")) {
		t.Errorf("the configuration of kube-proxy does not name mode %s:\n%s", mode, text)
	}
	sets, err := p.Client().AppsV1().DaemonSets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(sets.Items) != 1 {
		t.Errorf("%d DaemonSets are in kube-system", len(sets.Items))
	}
	requireRules(t, p.Lab, p.machines(), mode)
}

// requireRules: nodes have rules of kube-proxy in one mode alone, and no copy.
func requireRules(t *testing.T, l *lab.Lab, nodes []string, mode lab.ProxyMode) {
	t.Helper()
	for _, node := range nodes {
		const look = "iptables-save | grep -cE '^-A (KUBE-SERVICES|RPLB-)'; nft list tables | grep -cw kube-proxy; true"
		out, err := l.Exec(t.Context(), node, "/bin/sh", "-c", look)
		must(t, err)
		chains, tables, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		if (chains != "0") != (mode == lab.IPTables) || (tables != "0") != (mode == lab.NFTables) {
			t.Errorf("%s has %s rules of mode iptables and %s tables of mode nftables", node, chains, tables)
		}
	}
}

// requireModeAtOnceLoses is the control: the mode is changed on all nodes at once, without a copy, and back.
func requireModeAtOnceLoses(t *testing.T, l *lab.Lab, nodes []string, s *shop, setMode func(*testing.T, lab.ProxyMode)) {
	t.Helper()
	lost := s.during(t, "the mode being changed at once", func() {
		for _, mode := range []lab.ProxyMode{lab.NFTables, lab.IPTables} {
			setMode(t, mode)
			reported := traffic.Until(time.Now().Add(5 * time.Second))
			must(t, s.watch.Await(t.Context(), settled, "five seconds of reports", traffic.All, reported))
		}
	})
	for _, node := range nodes {
		forgetUntranslated(t, l, node)
	}
	stats := lost.stats(t, traffic.All)
	if stats.Failed == 0 {
		t.Errorf("none of %d requests was lost at once: the test proves nothing", stats.Sent)
	}
	t.Logf("control: with the mode of all nodes changed at once, there and back, %d of %d requests were lost", stats.Failed, stats.Sent)
	must(t, s.watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady))
}

var modeInConfig = regexp.MustCompile(`(?m)^mode: .*$`)

// setModeAtOnce changes the configuration, and ends all pods at once, as guides have it.
func (p proxyPods) setModeAtOnce(t *testing.T, mode lab.ProxyMode) {
	t.Helper()
	configs := p.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem)
	config, err := configs.Get(t.Context(), "kube-proxy", metav1.GetOptions{})
	must(t, err)
	config.Data["config.conf"] = modeInConfig.ReplaceAllString(config.Data["config.conf"], "mode: "+string(mode))
	_, err = configs.Update(t.Context(), config, metav1.UpdateOptions{})
	must(t, err)
	of := metav1.ListOptions{LabelSelector: "k8s-app=kube-proxy"}
	before := map[string]bool{}
	for _, pod := range listed(t, p.Lab, of) {
		before[pod.Name] = true
	}
	must(t, p.Client().CoreV1().Pods(metav1.NamespaceSystem).DeleteCollection(t.Context(), metav1.DeleteOptions{}, of))
	eventually(t, settled, func() error {
		for _, pod := range listed(t, p.Lab, of) {
			if before[pod.Name] {
				return fmt.Errorf("pod %s has not ended", pod.Name)
			}
		}
		return nil
	})
	p.require(t, true)
}
