package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// testKilledAndFinished kills apply again and again, each time at another event, under traffic; run once more, it goes
// through. Then it finishes. The bridges have the other form here, and a tenant claims addresses that are not his.
func testKilledAndFinished(t *testing.T, l *lab.Lab, s *shop) {
	file := writeMigration(t, "killed", "172.26.0.0/16", "bridge: ExternalIPs", shortDrain)
	cart := shopServices(t, l)["cart"]
	tenant := newForger(t, l)
	whole := s.during(t, "the move with kills", func() {
		applyUntil(t, l, file, eventOf(engine.StepStarted, "range/"))
		applyUntil(t, l, file, eventOf(engine.StepDone, "bridge/"))
		tenant.forge("killed", cart.Spec.ClusterIP, [3]string{"172.26.200.1", "172.26.200.2", "172.26.200.3"})
		for _, moment := range []func(engine.Event) bool{
			eventOf(engine.StepStarted, "barrier/"),
			eventOf(engine.StepStarted, "hop/"), eventOf(engine.StepDone, "hop/"), eventOf(engine.StepStarted, "settle/"),
			eventOf(engine.StepStarted, "hop/"), eventOf(engine.StepStarted, "bridge/"), eventOf(engine.StepDone, "hop/"),
		} {
			applyUntil(t, l, file, moment)
		}
		replumb(t, l, "apply", "-f", file)
	})
	whole.requireNothingLost(t, traffic.All)
	requireAllIn(t, l, "172.26.0.0/16")

	byName := func(s traffic.Source) bool { return s.Via != traffic.ByOldAddress }
	end := s.during(t, "finish", func() { replumb(t, l, "finish", "killed", "--yes") })
	end.requireNothingLost(t, byName)
	tenant.requireSilence()
	tenant.leave()
	requireNoTrace(t, l)
	requireNaiveLoses(t, l)

	// The control of finish itself: what it says it takes away no longer answers.
	eventually(t, settled, func() error {
		after := s.during(t, "finish is over", func() {})
		if old := after.stats(t, func(s traffic.Source) bool { return s.Via == traffic.ByOldAddress }); old.OK > 0 {
			return fmt.Errorf("old addresses answered %d of %d requests", old.OK, old.Sent)
		}
		return nil
	})
}

// testBarrier stops the kube-proxy of one node. The move must wait for exactly that node, say so, and lose nothing; the
// control, which waits a second instead of for proof, must lose requests on that node. It comes last, since the losses
// of the control linger in the connection tracking of the node.
func testBarrier(t *testing.T, l *lab.Lab, s *shop) {
	byName := func(s traffic.Source) bool { return s.Via == traffic.ByName }
	onNode1 := func(s traffic.Source) bool { return byName(s) && s.Node == "node1" }

	proven := writeMigration(t, "waited", "172.27.0.0/16", "", "1s")
	waited := s.during(t, "the move with a proxy stopped", func() {
		resume := func() {}
		defer func() { resume() }()
		stopped := 0 // events until then; the first batch goes through, and the proxy stops while it settles
		seen := 0
		stuck := applyUntil(t, l, proven, func(e engine.Event) bool {
			seen++
			if stopped == 0 && e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "settle/") {
				resume, stopped = stopProxy(t, l, "node1"), seen
			}
			return e.Kind == engine.StepWaiting && strings.HasPrefix(e.Step, "barrier/") && strings.HasSuffix(e.Error, "on node node1")
		})
		for _, e := range stuck[stopped:] {
			if strings.HasPrefix(e.Step, "hop/") {
				t.Errorf("%s %s before node1 knew its bridge", e.Kind, e.Step)
			}
		}
		resume()
		replumb(t, l, "apply", "-f", proven)
	})
	waited.requireNothingLost(t, byName)
	requireAllIn(t, l, "172.27.0.0/16")
	replumb(t, l, "finish", "waited", "--yes")

	unproven := writeMigration(t, "unwaited", "172.28.0.0/16", "barrier: {mode: Wait, wait: 1s}", "1s")
	began := time.Now().Truncate(time.Second)
	lost := s.during(t, "the move without proof", func() {
		resume := stopProxy(t, l, "node1")
		defer resume()
		replumb(t, l, "apply", "-f", unproven)
		// It shows when the node's clients get the new addresses: CoreDNS gives out what it knows for a while.
		eventually(t, settled, func() error {
			soFar := span{from: began, to: time.Now(), heard: s.watch.Snapshot()}
			if soFar.stats(t, onNode1).Failed == 0 {
				return errors.New("nothing was lost on node1")
			}
			return nil
		})
	})
	got := lost.stats(t, onNode1)
	t.Logf("control: without proof %d of %d requests by name were lost on node1", got.Failed, got.Sent)
}

// stopProxy stops a node's kube-proxy until resume is called; it may be called twice.
func stopProxy(t *testing.T, l *lab.Lab, node string) (resume func()) {
	t.Helper()
	return suspend(t, l, node, "kube-proxy")
}

// suspend stops a program on a machine, with its connections, until resume is called; it may be called twice.
func suspend(t *testing.T, l *lab.Lab, machine, program string) (resume func()) {
	t.Helper()
	pid := signal(t, l, machine, program, unix.SIGSTOP)
	resume = func() { _ = unix.Kill(pid, unix.SIGCONT) }
	t.Cleanup(resume)
	return resume
}

func eventOf(kind engine.EventKind, step string) func(engine.Event) bool {
	return func(e engine.Event) bool { return e.Kind == kind && strings.HasPrefix(e.Step, step) }
}

// applyUntil runs apply, kills it with SIGKILL at the first event that matches, and returns the events up to then. It
// fails the test if apply ends before.
func applyUntil(t *testing.T, l *lab.Lab, file string, matches func(engine.Event) bool) []engine.Event {
	t.Helper()
	return runUntil(t, command(t, "replumb", "apply", "-f", file, "-o", "json", "--kubeconfig", l.Kubeconfig()), matches)
}

// runUntil runs a command that writes events as JSON lines until an event that matches, and kills it there.
func runUntil(t *testing.T, cmd *exec.Cmd, matches func(engine.Event) bool) []engine.Event {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var events []engine.Event
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var e engine.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v in %q", err, lines.Text())
		}
		events = append(events, e)
		if matches(e) {
			must(t, cmd.Process.Kill())
			_ = cmd.Wait()
			return events
		}
	}
	for _, e := range events[max(0, len(events)-5):] {
		t.Logf("one of the last events: %s %s %s %s", e.Kind, e.Phase, e.Step, e.Error)
	}
	t.Fatalf("the command ended before the event came, after %d: %v: %s", len(events), cmd.Wait(), stderr.String())
	return nil
}

// replumb runs a command of replumb to its successful end and returns what it wrote to standard output.
func replumb(t *testing.T, l *lab.Lab, args ...string) string {
	t.Helper()
	out, err := command(t, "replumb", append(args, "--kubeconfig", l.Kubeconfig())...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		t.Fatalf("replumb %s: %v\n%s%s", strings.Join(args, " "), err, out, exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// drain is longer than CoreDNS may remember a name (30 s), as it must be for nothing to be lost when bridges go; shortDrain is, where
// forgetNamesSoon has been called.
const (
	drain      = "35s"
	shortDrain = "8s"
)

// writeMigration writes a Migration of every Service; more is a line for its serviceCIDR.
func writeMigration(t *testing.T, name, to, more, drain string) string {
	t.Helper()
	return writeSpec(t, name, `
  serviceCIDR:
    to: [%s]
    drain: %s
    clusterServices: Stay
    refresh: {mode: Report}
    %s
  batch: {size: 4, settle: 1s}
`, to, drain, more)
}

// shopServices are the Services of the shop by name.
func shopServices(t *testing.T, l *lab.Lab) map[string]corev1.Service {
	t.Helper()
	return servicesOf(t, l, shopNamespace)
}

// servicesOf are the Services of a namespace by name.
func servicesOf(t *testing.T, l *lab.Lab, namespace string) map[string]corev1.Service {
	t.Helper()
	list, err := l.Client().CoreV1().Services(namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	services := map[string]corev1.Service{}
	for _, s := range list.Items {
		services[s.Name] = s
	}
	return services
}

// requireAllIn fails the test unless every Service of the shop, bridges aside, has its address in the range.
func requireAllIn(t *testing.T, l *lab.Lab, cidr string) {
	t.Helper()
	requireServicesIn(t, shopServices(t, l), cidr)
}

// requireServicesIn fails the test for each of the Services, bridges aside, that has its address elsewhere.
func requireServicesIn(t *testing.T, services map[string]corev1.Service, cidr string) {
	t.Helper()
	to := netip.MustParsePrefix(cidr)
	for name, s := range services {
		if s.Labels[v1alpha1.LabelRole] == v1alpha1.RoleBridge {
			continue
		}
		if a, err := netip.ParseAddr(s.Spec.ClusterIP); err != nil || !to.Contains(a) {
			t.Errorf("service %s is at %q, not in %s", name, s.Spec.ClusterIP, cidr)
		}
	}
}

// requireSame fails the test for each Service that is not, but for its resourceVersion and who wrote it, as it was.
func requireSame(t *testing.T, before, after map[string]corev1.Service) {
	t.Helper()
	for name := range after {
		if _, ok := before[name]; !ok {
			t.Errorf("service %s was not there before", name)
		}
	}
	for name, b := range before {
		a := after[name]
		a.ResourceVersion, b.ResourceVersion = "", ""
		a.ManagedFields, b.ManagedFields = nil, nil
		was, err := json.Marshal(b)
		must(t, err)
		is, err := json.Marshal(a)
		must(t, err)
		if !bytes.Equal(was, is) {
			t.Errorf("service %s was\n%s\nand is\n%s", name, was, is)
		}
	}
}

// requireNoTrace fails the test for whatever of replumb is left in the cluster beside the Migrations, which are kept as
// a record.
func requireNoTrace(t *testing.T, l *lab.Lab) {
	t.Helper()
	services, err := l.Client().CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, s := range services.Items {
		for key := range s.Annotations {
			if strings.Contains(key, "replumb.dev") {
				t.Errorf("service %s/%s still has annotation %s", s.Namespace, s.Name, key)
			}
		}
		if s.Labels[v1alpha1.LabelRole] != "" {
			t.Errorf("service %s/%s, a %s, is still there", s.Namespace, s.Name, s.Labels[v1alpha1.LabelRole])
		}
	}
	for _, held := range heldAddresses(t, l) {
		t.Errorf("address %s is still held", held)
	}
	if _, err := l.Client().CoreV1().Namespaces().Get(t.Context(), v1alpha1.SystemNamespace, metav1.GetOptions{}); err == nil {
		t.Errorf("namespace %s is still there", v1alpha1.SystemNamespace)
	}
}

// heldAddresses are those that replumb reserves. Where there are no IPAddresses, Services stand for them.
func heldAddresses(t *testing.T, l *lab.Lab) (names []string) {
	t.Helper()
	ours := metav1.ListOptions{LabelSelector: v1alpha1.LabelRole}
	all, err := l.Client().NetworkingV1().IPAddresses().List(t.Context(), ours)
	if err == nil {
		for _, ip := range all.Items {
			names = append(names, ip.Name)
		}
		return names
	}
	beta, betaErr := l.Client().NetworkingV1beta1().IPAddresses().List(t.Context(), ours)
	if betaErr == nil {
		for _, ip := range beta.Items {
			names = append(names, ip.Name)
		}
		return names
	}
	if !apierrors.IsNotFound(err) || !apierrors.IsNotFound(betaErr) {
		t.Fatal(errors.Join(err, betaErr))
	}
	return nil
}
