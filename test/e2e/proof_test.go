package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// testProof has agents on every node. A kube-proxy that is broken in the middle of a move stops it within a batch, with exit code 4 and
// the name of the node; after repair the same command finishes, and nothing more is lost. Who still uses an old address is named, and
// finish waits for them. The control does the same without agents: it goes on to the end, and clients lose.
func testProof(t *testing.T, l *lab.Lab) {
	s, _ := lightTraffic(t, l)
	file := proven{name: "proven", to: "172.20.0.0/16", drain: shortDrain}.write(t)
	proxy := &brokenProxy{T: t, l: l, node: "node1"}
	first := &firstLoss{T: t, l: l, node: "node1"}
	events, exit, stderr := runBreaking(t, applying(t, l, file), proxy, first.follow)
	t.Logf("apply with a broken kube-proxy: exit %d: %s", exit, stderr)
	requireStopped(t, events, exit, stderr)
	requirePartlyIn(t, l, "172.20.0.0/16") // where it stopped, it stays: testProofRollback is the other way
	reported := first.reported()
	requireReaction(t, events, reported)

	proxy.repair()
	s.steady(t)
	proxy.forget()
	s.steady(t)
	after := s.during(t, "the same command after repair", func() { t.Log(replumb(t, l, "apply", "-f", file)) })
	after.requireNothingLost(t, traffic.All)
	requireAllIn(t, l, "172.20.0.0/16")

	requireClients(t, l)
	finish := command(t, "replumb", "finish", "proven", "--yes", "-o", "json", "--kubeconfig", l.Kubeconfig())
	waited := false
	_, exit, stderr = runWatching(t, finish, func(e engine.Event) {
		if e.Kind == engine.StepWaiting && e.Step == "soak" && strings.Contains(e.Error, "pod "+shopNamespace+"/client-") && !waited {
			waited = true
			t.Log(e.Error)
			s.watch.Stop()
			removeClients(t, l, shopNamespace)
		}
	})
	if exit != 0 || !waited {
		t.Fatalf("finish ended with %d, and had waited for clients: %v: %s", exit, waited, stderr)
	}
	requireNoTrace(t, l)
	requireReport(t, l)
	t.Run("control", func(t *testing.T) { unproven(t, l, reported.at.Sub(proxy.brokenAt)) })
}

// unproven does without agents what testProof does with them, where a loss was reported so long after the kube-proxy broke.
func unproven(t *testing.T, l *lab.Lab, after time.Duration) {
	callees := []traffic.Callee{}
	for name, svc := range shopServices(t, l) {
		if len(svc.Labels) > 0 {
			callees = append(callees, traffic.Callee{Name: name, Address: svc.Spec.ClusterIP})
		}
	}
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), traffic.Call(shopNamespace, callees, traffic.Rates{Request: 5}))
	must(t, err)
	t.Cleanup(func() { watch.Stop(); removeClients(t, l, shopNamespace) })
	s := &shop{watch: watch}
	s.steady(t)
	file := writeMigration(t, "unproven", "172.21.0.0/16", "barrier: {mode: Wait, wait: 1s}", "1s")
	proxy := &brokenProxy{T: t, l: l, node: "node1"}
	lived := s.during(t, "without agents", func() {
		events, exit, stderr := runBreaking(t, applying(t, l, file, "--without-agent"), proxy)
		if exit != 0 {
			t.Errorf("without agents it ended with %d: %s", exit, stderr)
		}
		if began := begunAfter(events, proxy.brokenAt.Add(after)); len(began) < 2 {
			t.Errorf(
				"without agents only %v began after a loss would have been reported: that nothing began in testProof says nothing",
				began,
			)
		}
	})
	proxy.repair()
	lost := lived.stats(t, traffic.All)
	if lost.Failed == 0 {
		t.Errorf("none of %d requests was lost: the kube-proxy was not broken", lost.Sent)
	}
	t.Logf("control: without agents the move went on to its end, and %d of %d requests were lost", lost.Failed, lost.Sent)
	watch.Stop()
	proxy.forget()
	replumb(t, l, "finish", "unproven", "--yes")
}

// lightTraffic has the shop called in all ways, as far as two cores have room for it beside agents, until the test ends.
func lightTraffic(t *testing.T, l *lab.Lab) (*shop, []traffic.Callee) {
	t.Helper()
	callees, err := openShop(t.Context(), l)
	must(t, err)
	light := traffic.Rates{Request: 5, Stream: 5, LookUp: 5}
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), traffic.Call(shopNamespace, callees, light).AndKeep(callees, light))
	must(t, err)
	t.Cleanup(func() { watch.Stop(); removeClients(t, l, shopNamespace) })
	s := &shop{watch: watch}
	s.steady(t)
	return s, callees
}

func (s *shop) steady(t *testing.T) {
	t.Helper()
	must(t, s.watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady))
}

// proven is a Migration of every Service of the shop under proof. What is empty has a default.
type proven struct {
	name, to, drain, image, wait string
	// onLoss and tiers are lines of the file.
	onLoss, tiers string
}

func (p proven) write(t *testing.T) string {
	t.Helper()
	return writeSpec(t, p.name, `
  serviceCIDR:
    to: [%s]
    drain: %s
    clusterServices: Stay
    refresh: {mode: Report}
  batch: {size: 4, settle: 1s}
  %s
  image: %s
  proof:
    agents: Enabled
    soak: 5s
    wait: %s
    %s
`, p.to, cmp.Or(p.drain, drain), p.tiers, cmp.Or(p.image, workload.ReplumbImage), cmp.Or(p.wait, "1m"), p.onLoss)
}

// applying is apply of a file, with events as JSON lines.
func applying(t *testing.T, l *lab.Lab, file string, more ...string) *exec.Cmd {
	t.Helper()
	return command(t, "replumb", append([]string{"apply", "-f", file, "-o", "json", "--kubeconfig", l.Kubeconfig()}, more...)...)
}

// brokenProxy is a node whose kube-proxy stands still, and whose rules are gone.
type brokenProxy struct {
	*testing.T
	l      *lab.Lab
	node   string
	resume func()
	// brokenAt is when its rules were gone.
	brokenAt time.Time
}

func (p *brokenProxy) shatter() {
	p.resume = stopProxy(p.T, p.l, p.node)
	out, err := command(p.T, "replumb-lab", "exec", "--name", p.l.Topology.Name, p.node, "--",
		"iptables", "-t", "nat", "-F", "KUBE-SERVICES").CombinedOutput()
	if err != nil {
		p.Fatalf("%v: %s", err, out)
	}
	p.brokenAt = time.Now()
}

// repair has the kube-proxy start again, which writes all of its rules.
func (p *brokenProxy) repair() {
	m, err := p.l.Machine(p.node)
	must(p, err)
	info, err := m.Info(p.Context())
	must(p, err)
	p.resume()
	for _, program := range info.Programs {
		if program.Name == "kube-proxy" {
			must(p, unix.Kill(program.PID, unix.SIGKILL))
		}
	}
}

// forget removes from connection tracking what was sent while there were no rules: those entries lead nowhere, and swallow later
// connections from the same ports for two minutes. See "Requests were lost" in the runbook.
func (p *brokenProxy) forget() {
	p.Helper()
	for _, args := range [][]string{{"-D", "-p", "tcp", "--state", "SYN_SENT"}, {"-D", "-p", "udp"}} {
		cmd := append([]string{"exec", "--name", p.l.Topology.Name, p.node, "--", "conntrack"}, args...)
		eventually(p.T, settled, func() error { // entries that end by themselves meanwhile make it stop half way
			out, err := command(p.T, "replumb-lab", cmd...).CombinedOutput()
			if err != nil && !strings.Contains(string(out), "0 flow entries") {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
}

// runBreaking runs apply to its end, and breaks a kube-proxy as soon as the first batch has moved. What is to be done just before comes
// last.
func runBreaking(t *testing.T, cmd *exec.Cmd, proxy *brokenProxy, before ...func()) (events []engine.Event, exit int, stderr string) {
	t.Helper()
	return runWatching(t, cmd, func(e engine.Event) {
		if proxy.resume == nil && e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "settle/batch 1 ") {
			for _, do := range before {
				do()
			}
			proxy.shatter()
		}
	})
}

// runWatching runs a command that writes events as JSON lines to its end.
func runWatching(t *testing.T, cmd *exec.Cmd, seen func(engine.Event)) (events []engine.Event, exit int, stderr string) {
	t.Helper()
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var e engine.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v in %q", err, lines.Text())
		}
		events = append(events, e)
		seen(e)
	}
	var status *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &status) {
		exit = status.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return events, exit, errOut.String()
}

// requireStopped fails the test unless a run was ended by the loss budget within a batch of when the kube-proxy broke.
func requireStopped(t *testing.T, events []engine.Event, exit int, stderr string) {
	t.Helper()
	if exit != 4 || !strings.Contains(stderr, "on node node1") {
		t.Fatalf("ended with %d, not with 4 and the name of the node: %s", exit, stderr)
	}
	broken := false
	batches := map[string]bool{}
	for _, e := range events {
		broken = broken || strings.HasPrefix(e.Step, "settle/batch 1 ")
		if broken && e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "hop/") {
			batches[e.Group] = true
		}
	}
	if len(batches) > 1 {
		t.Errorf("after the kube-proxy broke, Services of %d batches began to move: %v", len(batches), batches)
	}
}

// requireClients fails the test unless status names pods that hold connections to old addresses.
func requireClients(t *testing.T, l *lab.Lab) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		var page struct {
			Clients []struct {
				Pod  string `json:"pod"`
				Node string `json:"node"`
				Open int    `json:"open"`
			} `json:"clients"`
			Proof struct {
				Nodes int   `json:"nodes"`
				Sent  int64 `json:"sent"`
			} `json:"proof"`
		}
		must(t, json.Unmarshal([]byte(replumb(t, l, "status", "proven", "-o", "json")), &page))
		seen := map[string]bool{}
		for _, c := range page.Clients {
			if strings.HasPrefix(c.Pod, shopNamespace+"/client-") && c.Open > 0 {
				seen[c.Node] = true
			}
		}
		if len(seen) != len(l.NodeNames()) || page.Proof.Nodes != len(l.NodeNames()) || page.Proof.Sent == 0 {
			return fmt.Errorf("status has %+v", page)
		}
		return nil
	})
}

// requireReport fails the test unless the report has what happened: three runs, the Services that moved, what was lost and where, and who
// was waited for. With REPLUMB_REPORT_DIR the file itself is kept there.
func requireReport(t *testing.T, l *lab.Lab) {
	t.Helper()
	var got htmlreport.Document
	must(t, json.Unmarshal([]byte(replumb(t, l, "report", "proven", "-o", "json")), &got))
	t.Log(got.Summary)
	moved := 0
	for _, s := range got.Services {
		if s.Name == shopNamespace+"/cart" && s.From != "" && strings.HasPrefix(s.To, "172.20.") && s.At != nil {
			moved++
		}
	}
	onNode1 := 0
	for _, loss := range got.Losses {
		if loss.Node == "node1" {
			onNode1++
		}
	}
	if len(got.Runs) != 3 || moved != 1 || onNode1 == 0 || len(got.Users) == 0 || len(got.Probes) < 10 || got.Requests == nil {
		t.Errorf("the report has %d runs, moved cart %d times, %d losses on node1, %d clients of old addresses, %d probes: %+v",
			len(got.Runs), moved, onNode1, len(got.Users), len(got.Probes), got.Requests)
	}
	dir := os.Getenv("REPLUMB_REPORT_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	file := filepath.Join(dir, "proven.html")
	replumb(t, l, "report", "proven", "-o", file)
	if page, err := os.ReadFile(file); err != nil || !bytes.Contains(page, []byte(got.Summary)) {
		t.Errorf("%d bytes of HTML without the summary, %v", len(page), err)
	}
}

// removeClients ends the pods of clients in some namespaces, also when the test is over.
func removeClients(t *testing.T, l *lab.Lab, namespaces ...string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, namespace := range namespaces {
		pods := l.Client().CoreV1().Pods(namespace)
		all, err := pods.List(ctx, metav1.ListOptions{})
		must(t, err)
		for _, p := range all.Items {
			isClient := func(prefix string) bool { return strings.HasPrefix(p.Name, prefix) }
			if !slices.ContainsFunc([]string{"client-", "api-client-", "ipv4-", "ipv6-"}, isClient) {
				continue
			}
			must(t, pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		}
	}
}
