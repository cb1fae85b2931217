package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/machine"
	"github.com/replumb/replumb/lab/traffic"
)

// testProofNodes has a node join in the middle of a move: it gets agents, and the move waits for it, as its kube-proxy stands still, and
// for no other. Then its kubelet ends. A node that is not ready is named, and another move does not wait for it, though its kube-proxy
// stands still again. When it is ready once more, finish waits for its agent.
func testProofNodes(t *testing.T, l *lab.Lab) {
	s, _ := lightTraffic(t, l)
	j := &joining{T: t, l: l, joined: filepath.Join(t.TempDir(), "joined")}
	t.Cleanup(j.leave)
	backIfFailed(t, l, "joined")
	backIfFailed(t, l, "unready")
	first := proven{
		name: "joined", to: "172.21.0.0/16", drain: "5s", wait: "3m",
		tiers: "tiers: [{name: first, services: [shop/cart]}, {name: rest}]\n" +
			"  hooks: [{name: join, when: AfterTier, timeout: 5m, exec: {command: [" +
			"sh, -c, 'until [ -e " + j.joined + " ]; do sleep 1; done']}}]",
	}.write(t)
	lived := s.during(t, "a node that joins", func() {
		events, exit, stderr := runWatching(t, applying(t, l, first), j.see)
		if exit != 0 || !j.waited {
			t.Fatalf("it ended with %d, and had waited for the node that joined: %v: %s", exit, j.waited, stderr)
		}
		j.requireHeld(events)
	})
	lived.requireNothingLost(t, traffic.All)
	requireAllIn(t, l, "172.21.0.0/16")
	if got := proofOf(t, l, "joined"); got.Nodes != 3 || len(got.Silent) > 0 {
		t.Errorf("status has %+v", got)
	}
	s.watch.Stop()
	removeClients(t, l, shopNamespace)
	replumb(t, l, "finish", "joined", "--yes")

	j.loseKubelet()
	second := proven{name: "unready", to: "172.23.0.0/16", drain: "5s"}.write(t)
	events, exit, stderr := runWatching(t, applying(t, l, second), func(engine.Event) {})
	if exit != 0 {
		t.Fatalf("with a node that is not ready it ended with %d: %s", exit, stderr)
	}
	if !slices.ContainsFunc(events, func(e engine.Event) bool {
		return e.Step == "agents/reporting" && e.Kind == engine.StepDone &&
			strings.Contains(e.Note, "not ready and not waited for: "+j.node)
	}) {
		t.Errorf("it is not said that %s is not waited for", j.node)
	}
	if got := proofOf(t, l, "unready"); got.Nodes != 2 || !slices.Equal(got.Silent, []string{j.node + ": the node is not ready"}) {
		t.Errorf("status has %+v", got)
	}
	requireAllIn(t, l, "172.23.0.0/16")

	j.resume()
	j.regainKubelet()
	events, exit, stderr = runWatching(t, command(t, "replumb", "finish", "unready", "--yes", "-o", "json", "--kubeconfig", l.Kubeconfig()),
		func(engine.Event) {})
	if exit != 0 {
		t.Fatalf("finish ended with %d: %s", exit, stderr)
	}
	for _, e := range events {
		if strings.Contains(e.Note, "not ready and not waited for") {
			t.Errorf("finish did not wait for a node: %s", e.Error)
		}
	}
	requireNoTrace(t, l)
}

type proofPage struct {
	Nodes  int      `json:"nodes"`
	Silent []string `json:"silent"`
}

func proofOf(t *testing.T, l *lab.Lab, migration string) proofPage {
	t.Helper()
	var page struct {
		Proof proofPage `json:"proof"`
	}
	must(t, json.Unmarshal([]byte(replumb(t, l, "status", migration, "-o", "json")), &page))
	return page.Proof
}

// joining is a node that joins while a hook holds the move up after its first tier.
type joining struct {
	*testing.T
	// joined is the file that the hook waits for.
	joined  string
	l       *lab.Lab
	node    string
	kubelet machine.Program
	resume  func()
	waited  bool
	// joinedAt and heldAt are by how many events had come.
	seen, joinedAt, heldAt int
}

func (j *joining) see(e engine.Event) {
	j.Helper()
	j.seen++
	switch {
	case e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "hook/") && j.node == "":
		began := time.Now()
		j.join()
		j.joinedAt = j.seen
		j.Logf("node %s had joined after %s", j.node, time.Since(began).Round(time.Second))
	case j.node != "" && waitsFor(e, j.node) && !j.waited:
		j.Log(e.Error)
		j.waited, j.heldAt = true, j.seen
		j.resume()
	}
}

// join adds a node, waits until both its agents report, and stops its kube-proxy.
func (j *joining) join() {
	j.Helper()
	member, err := j.l.Workers().Add(j.Context(), lab.Joining{Proxy: lab.IPTables})
	must(j, err)
	j.node = member.Name
	c, err := cluster.Connect(j.l.RESTConfig())
	must(j, err)
	eventually(j.T, 2*settled, func() error { return reportsWell(j.Context(), c, j.node) })
	j.resume = stopProxy(j.T, j.l, j.node)
	must(j, os.WriteFile(j.joined, nil, 0o600))
}

func (j *joining) requireHeld(events []engine.Event) {
	j.Helper()
	for _, e := range events[j.joinedAt:j.heldAt] {
		if e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "hop/") {
			j.Errorf("%s began before %s knew its bridge", e.Step, j.node)
		}
	}
}

// loseKubelet ends the kubelet of the node, waits until the node is not ready, and stops its kube-proxy.
func (j *joining) loseKubelet() {
	j.Helper()
	m, err := j.l.Machine(j.node)
	must(j, err)
	if j.kubelet, err = m.Program(j.Context(), "kubelet"); err != nil {
		j.Fatal(err)
	}
	must(j, m.Stop(j.Context(), j.kubelet.Name))
	j.untilReady(false)
	j.resume = stopProxy(j.T, j.l, j.node)
}

// regainKubelet has it run again, and waits until the node is ready.
func (j *joining) regainKubelet() {
	j.Helper()
	m, err := j.l.Machine(j.node)
	must(j, err)
	must(j, m.Run(j.Context(), j.kubelet))
	j.untilReady(true)
}

func (j *joining) untilReady(ready bool) {
	j.Helper()
	eventually(j.T, 2*time.Minute, func() error { // nodes are given 50 s to be heard of
		n, err := j.l.Client().CoreV1().Nodes().Get(j.Context(), j.node, metav1.GetOptions{})
		if err == nil && inventory.NodeReady(n) != ready {
			err = fmt.Errorf("that node %s is ready is %v", j.node, !ready)
		}
		return err
	})
}

// leave takes the node away.
func (j *joining) leave() {
	if j.node == "" {
		return
	}
	ctx := context.WithoutCancel(j.Context())
	if err := j.l.Workers().Remove(ctx, j.node); err != nil {
		j.Error(err)
	}
	if err := j.l.Client().CoreV1().Nodes().Delete(ctx, j.node, metav1.DeleteOptions{}); err != nil {
		j.Error(err)
	}
}

// reportsWell fails unless both agents of a node report, and have nothing to complain of.
func reportsWell(ctx context.Context, c client.Reader, node string) error {
	r := &v1alpha1.NodeReport{}
	if err := c.Get(ctx, client.ObjectKey{Name: node}, r); err != nil {
		return err
	}
	if len(r.Status.Agents) != 2 {
		return fmt.Errorf("%d agents of %s report", len(r.Status.Agents), node)
	}
	for _, a := range r.Status.Agents {
		if a.Problem != "" {
			return errors.New(a.Problem)
		}
	}
	return nil
}
