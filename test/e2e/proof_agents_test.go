package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// testProofHolds has agents pass barriers. A kube-proxy that stands still holds the move up: it waits for that very node, says so, and goes
// on by itself. An agent that stands still ends the run, with the name of its node and not as a loss, and the same command goes on once it
// is back. Nothing is lost meanwhile. Then finish waits for those who still use old addresses. The control gives the
// node a second instead of asking for proof, and loses.
func testProofHolds(t *testing.T, l *lab.Lab) {
	s, callees := lightTraffic(t, l)
	backIfFailed(t, l, "holds")
	all := straggle(t, l, callees)
	file := proven{name: "holds", to: "172.25.0.0/16", drain: "5s", wait: "30s"}.write(t)
	h := &holdUp{T: t, l: l, node: "node1"}
	lived := s.during(t, "a move that is held up", func() {
		events, exit, stderr := runWatching(t, applying(t, l, file), h.see)
		t.Logf("apply with an agent that stands still: exit %d: %s", exit, stderr)
		h.requireHeld(events)
		requireSilent(t, exit, stderr, "node1")
		requireUnlocked(t, l, "holds")
		h.wake()
		t.Log(replumb(t, l, "apply", "-f", file))
	})
	lived.requireNothingLost(t, traffic.All)
	requireAllIn(t, l, "172.25.0.0/16")

	s.watch.Stop()
	removeClients(t, l, shopNamespace)
	all.requireListed("holds")
	waited := false
	_, exit, stderr := runWatching(t, command(t, "replumb", "finish", "holds", "--yes", "-o", "json", "--kubeconfig", l.Kubeconfig()),
		func(e engine.Event) {
			if e.Kind == engine.StepWaiting && e.Step == "soak" && strings.Contains(e.Error, "still use old addresses") && !waited {
				waited = true
				t.Log(e.Error)
				all.stop()
			}
		})
	if exit != 0 || !waited {
		t.Fatalf("finish ended with %d, and had waited for those who use old addresses: %v: %s", exit, waited, stderr)
	}
	requireNoTrace(t, l)
	t.Run("control", func(t *testing.T) { unheld(t, l) })
}

// unheld moves without proof while a kube-proxy stands still.
func unheld(t *testing.T, l *lab.Lab) {
	s, _ := lightTraffic(t, l)
	onNode1 := func(s traffic.Source) bool { return s.Via == traffic.ByName && s.Node == "node1" }
	file := writeMigration(t, "unheld", "172.29.0.0/16", "barrier: {mode: Wait, wait: 1s}", "1s")
	began := time.Now().Truncate(time.Second)
	resume := stopProxy(t, l, "node1")
	replumb(t, l, "apply", "-f", file, "--without-agent")
	var lost int
	// It shows when the node's clients get the new addresses: CoreDNS gives out what it knows for up to 30 s.
	eventually(t, settled, func() error {
		soFar := span{from: began, to: time.Now(), heard: s.watch.Snapshot()}
		if lost = soFar.stats(t, onNode1).Failed; lost == 0 {
			return errors.New("nothing was lost on node1")
		}
		return nil
	})
	resume()
	t.Logf("control: without proof %d requests by name were lost on node1 before its kube-proxy went on", lost)
	s.watch.Stop()
	removeClients(t, l, shopNamespace)
	replumb(t, l, "finish", "unheld", "--yes")
	(&brokenProxy{T: t, l: l, node: "node1"}).forget()
}

// holdUp stops the kube-proxy of a node when the first batch has moved, and lets it go on when the move waits for it; then it stops the
// node's agent when the second batch has moved.
type holdUp struct {
	*testing.T
	l    *lab.Lab
	node string

	proxyStopped, held, agentStopped int // by how many events had come; 0: not yet
	seen                             int
	resume, wake                     func()
}

func (h *holdUp) see(e engine.Event) {
	h.Helper()
	h.seen++
	settles := e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "settle/")
	switch {
	case settles && strings.HasPrefix(e.Step, "settle/batch 1 ") && h.proxyStopped == 0:
		h.resume, h.proxyStopped = stopProxy(h.T, h.l, h.node), h.seen
	case waitsFor(e, h.node) && h.held == 0 && h.proxyStopped > 0:
		h.Log(e.Error)
		h.held = h.seen
		h.resume()
	case settles && strings.HasPrefix(e.Step, "settle/batch 2 ") && h.agentStopped == 0:
		h.wake, h.agentStopped = stopAgent(h.T, h.l, h.node), h.seen
	}
}

// waitsFor reports whether a barrier waits for a node, and for no other.
func waitsFor(e engine.Event, node string) bool {
	return e.Kind == engine.StepWaiting && strings.HasPrefix(e.Step, "barrier/") && strings.HasSuffix(e.Error, " on node "+node)
}

// requireHeld fails the test unless the move waited each time, and went on after the first.
func (h *holdUp) requireHeld(events []engine.Event) {
	h.Helper()
	if h.held == 0 || h.agentStopped == 0 {
		h.Fatalf("the kube-proxy was stopped after %d events, waited for after %d, and the agent stopped after %d",
			h.proxyStopped, h.held, h.agentStopped)
	}
	for i, e := range events {
		if e.Kind != engine.StepStarted || !strings.HasPrefix(e.Step, "hop/") {
			continue
		}
		if i > h.proxyStopped && i < h.held {
			h.Errorf("%s began while the kube-proxy of %s stood still", e.Step, h.node)
		}
		if i > h.agentStopped {
			h.Errorf("%s began while the agent of %s stood still", e.Step, h.node)
		}
	}
}

// requireSilent fails the test unless a run was ended because nothing is known of a node, whose name begins like this.
func requireSilent(t *testing.T, exit int, stderr, node string) {
	t.Helper()
	line := lineWith(stderr, "error:")
	named := strings.Contains(line, "nothing has been heard for ") && strings.Contains(line, " of node "+node)
	if exit != 1 || !named || lineWith(stderr, "hint:") == "" {
		t.Fatalf("ended with %d, not with 1 and that nothing is heard of %s: %s", exit, node, stderr)
	}
	if lost := lineWith(stderr, "lost:"); lost != "" {
		t.Errorf("silence was taken for a loss: %s", lost)
	}
}

// lineWith is the one line that begins with a word; empty if there is none, or several.
func lineWith(text, word string) string {
	var found []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, word) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// requireUnlocked fails the test if the lock is held.
func requireUnlocked(t *testing.T, l *lab.Lab, migration string) {
	t.Helper()
	var page struct {
		Lock string `json:"lock"`
	}
	if err := json.Unmarshal([]byte(replumb(t, l, "status", migration, "-o", "json")), &page); err != nil || page.Lock != "" {
		t.Errorf("the lock is held by %q, %v", page.Lock, err)
	}
}

// stopAgent stops the agent in the network of a node until wake is called.
func stopAgent(t *testing.T, l *lab.Lab, node string) (wake func()) {
	t.Helper()
	pid := agentProcess(t, l, node, v1alpha1.RoleAgent)
	must(t, unix.Kill(pid, unix.SIGSTOP))
	wake = func() { _ = unix.Kill(pid, unix.SIGCONT) }
	t.Cleanup(wake)
	return wake
}

// agentProcess is the process of a node's agent, in the network of the node or in that of pods. The machines of a lab are processes of
// this one, and so are their pods'.
func agentProcess(t *testing.T, l *lab.Lab, node, role string) int {
	t.Helper()
	pod := agentPod(t, l, node, role)
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	must(t, err)
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(environ, []byte("POD_UID="+string(pod.UID)+"\x00")) {
			continue // it has ended meanwhile, or is another's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		must(t, err)
		return pid
	}
	t.Fatalf("pod %s has no process", pod.Name)
	return 0
}

// agentPod is the pod of a node's agent.
func agentPod(t *testing.T, l *lab.Lab, node, role string) *corev1.Pod {
	t.Helper()
	all, err := l.Client().CoreV1().Pods(v1alpha1.SystemNamespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: fmt.Sprintf("%s=%s", v1alpha1.LabelRole, role), FieldSelector: "spec.nodeName=" + node,
	})
	must(t, err)
	for i := range all.Items {
		if all.Items[i].DeletionTimestamp.IsZero() {
			return &all.Items[i]
		}
	}
	t.Fatalf("there is no %s on %s", role, node)
	return nil
}
