package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestKubeadmGates moves the whole Service range of a cluster that kubeadm has made, by one command and one file: replumb passes the gates
// itself. It is killed while a kubelet and while the only API server restarts, goes there, back and there again, and ends; then kubeadm
// upgrades. With one control plane the API is away while its server restarts; nothing else may be lost. After the way back every file is as
// it was.
func TestKubeadmGates(t *testing.T) {
	topology := named("e2e-kubeadm-gates")
	topology.Installer, topology.Nodes = lab.Kubeadm, []lab.ProxyMode{lab.IPTables, lab.IPTables}
	passGates(t, topology, "kubeadm/kubelet/node1", "kubeadm/flags/kube-apiserver/cp1")
}

// TestKubeadmPlanes does the same with three control planes, others of which answer while one restarts: calls of API servers may fail, but not
// for longer than othersAnswerWithin. It is killed while the third certificate and the second API server change. Clients call until it is back.
func TestKubeadmPlanes(t *testing.T) {
	topology := highlyAvailable("e2e-kubeadm-planes")
	topology.Installer, topology.Nodes = lab.Kubeadm, []lab.ProxyMode{lab.IPTables, lab.IPTables}
	passGates(t, topology, "kubeadm/certificate/cp3", "kubeadm/flags/kube-apiserver/cp2")
}

// passGates moves the whole range of a cluster, killed when these steps have begun, back, there again, and finishes.
func passGates(t *testing.T, topology lab.Topology, killedAt ...string) {
	t.Helper()
	l := bringUp(t, topology)
	s := wholeUnderTraffic(t, l)
	k := &byThePage{T: t, l: l}
	file := k.byItself(writeWhole(t, l, "whole", drain))
	before := k.written()

	var restart time.Duration
	moved := s.during(t, "the whole move", func() {
		for _, step := range killedAt {
			o := operator{lab: l, killAt: eventOf(engine.StepStarted, step)}
			if _, code, _ := o.attend(t, command(t, "replumb", "apply", "-f", file, "-o", "json", "--kubeconfig", l.Kubeconfig())); code != -1 {
				t.Fatalf("apply ended with exit code %d before the event came", code)
			}
		}
		restart = k.alone(attendAs(t, operator{lab: l}, 0, "apply", "-f", file))
	})
	moved.requireNothingLost(t, butAPI)
	moved.requireAPIAwayFor(t, topology.ControlPlanes, restart)
	requireWhole(t, l, newRange)
	k.nothingBringsBack()

	back := s.during(t, "the whole rollback", func() {
		restart = k.alone(attendAs(t, operator{lab: l}, 0, "rollback", "whole", "--yes"))
	})
	back.requireNothingLost(t, butAPI)
	back.requireAPIAwayFor(t, topology.ControlPlanes, restart)
	requireWhole(t, l, oldRange)
	requireNoTrace(t, l)
	k.requireWritten(before)

	if topology.ControlPlanes > 1 { // six machines are more than two processors carry beside clients for a third time: agents watch alone
		s.endClients(t, l)
		k.alone(attendAs(t, operator{lab: l}, 0, "apply", "-f", file))
	} else {
		again := s.during(t, "the move there again", func() { restart = k.alone(attendAs(t, operator{lab: l}, 0, "apply", "-f", file)) })
		again.requireNothingLost(t, butAPI)
		again.requireAPIAwayFor(t, topology.ControlPlanes, restart)
		s.endClients(t, l) // finish would wait for those of old addresses
	}
	k.alone(attendAs(t, operator{lab: l}, 0, "finish", "whole", "--yes"))
	requireWhole(t, l, newRange)
	requireNoTrace(t, l)
	for _, on := range slices.Concat(l.ControlPlanes(), l.NodeNames()) {
		_, err := l.Shell(t.Context(), on, "test ! -e /etc/kubernetes/replumb")
		must(t, err)
	}
	k.upgradeToTheSame(oldRange, oldDNS)
	requireWhole(t, l, newRange)
	requireNaiveLoses(t, l) // at last: finish would wait for its clients of old addresses, too
}

func (s *shop) endClients(t *testing.T, l *lab.Lab) {
	t.Helper()
	s.watch.Stop()
	removeClients(t, l, shopNamespace, callersNamespace)
}

// byItself has replumb pass the gates of a migration in a file.
func (k *byThePage) byItself(file string) string {
	k.Helper()
	text, err := os.ReadFile(file)
	must(k.T, err)
	edited := strings.Replace(string(text), "  serviceCIDR:\n", "  serviceCIDR:\n    gates: Kubeadm\n", 1) +
		fmt.Sprintf("  image: %q\n  proof: {agents: Enabled, soak: 5s, wait: 1m}\n", workload.ReplumbImage)
	must(k.T, os.WriteFile(file, []byte(edited), 0o600))
	return file
}

// requireAPIAwayFor fails the test if clients of API servers were without an answer for longer than the longest restart of one, where no
// other is left to answer, and a client's call may last.
func (sp span) requireAPIAwayFor(t *testing.T, controlPlanes int, restart time.Duration) {
	t.Helper()
	seen := sp.stats(t, func(s traffic.Source) bool { return !butAPI(s) })
	t.Logf("%s: %d calls of API servers, %d failed, %d late, longest gap %s; the longest restart took %s", sp.what, seen.Sent, seen.Failed, seen.Late,
		seen.LongestGap.Round(time.Millisecond), restart.Round(time.Second/10))
	if controlPlanes > 1 {
		restart = 0
	}
	restart += othersAnswerWithin // a call that began just before it, or that the Service led nowhere just after
	if seen.Sent == 0 || seen.LongestGap > restart {
		t.Errorf("%s: API servers did not answer for %s, in %d calls", sp.what, seen.LongestGap, seen.Sent)
	}
}

// othersAnswerWithin is how long clients may be led to an API server that has ended, before those that lead them there have noticed.
const othersAnswerWithin = 5 * time.Second

// alone fails the test if a run has asked a person for anything, and says how long each gate took on each node. It returns how long the
// longest restart of an API server took. Finish names clients that have just ended, and goes on by itself when they have been away for a while.
func (k *byThePage) alone(events []engine.Event) (restart time.Duration) {
	k.Helper()
	began := map[string]time.Time{}
	for _, e := range events {
		switch gate := strings.HasPrefix(e.Step, "kubeadm/"); {
		case gate && e.Kind == engine.StepStarted:
			began[e.Step] = e.Time
		case gate && e.Kind == engine.StepDone && !began[e.Step].IsZero():
			took := e.Time.Sub(began[e.Step])
			k.Logf("%s took %s", e.Step, took.Round(time.Second/10))
			if strings.Contains(e.Step, "/kube-apiserver/") {
				restart = max(restart, took)
			}
		}
		if e.Kind == engine.StepWaiting && e.Guide != "" && e.Step != "soak" {
			k.Errorf("step %s asked a person: %s", e.Step, e.Guide)
		}
	}
	return restart
}

// written are the files and ConfigMaps that gates are about, of each node. Certificates that were renewed are others by right.
func (k *byThePage) written() map[string]string {
	k.Helper()
	all := map[string]string{}
	for _, on := range slices.Concat(k.l.ControlPlanes(), k.l.NodeNames()) {
		for _, file := range []string{
			"/etc/kubernetes/manifests/kube-apiserver.yaml", "/etc/kubernetes/manifests/kube-controller-manager.yaml", "/var/lib/kubelet/config.yaml",
		} {
			out, err := k.l.Shell(k.Context(), on, "cat "+file+" 2>/dev/null || true")
			must(k.T, err)
			all[on+":"+file] = string(out)
		}
	}
	for _, name := range []string{"kubeadm-config", "kubelet-config"} {
		config, err := k.l.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(k.Context(), name, metav1.GetOptions{})
		must(k.T, err)
		all[name] = config.Data["ClusterConfiguration"] + config.Data["kubelet"]
	}
	return all
}

func (k *byThePage) requireWritten(want map[string]string) {
	k.Helper()
	for name, is := range k.written() {
		if was, there := want[name]; there && is != was { // a node that has joined since was not there
			k.Errorf("%s is other than before:\n%s\nwas\n%s", name, is, was)
		}
	}
}
