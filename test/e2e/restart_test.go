package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/lab"
	"github.com/replumb/replumb/internal/traffic"
	"github.com/replumb/replumb/internal/workload"
)

// gatesScript stands in for an apply that waits at every gate.
const gatesScript = `
for gate in certificates kubelets api-servers kubelets; do
	echo '{"kind":"StepWaiting","step":"gate/'$gate'"}'
done
exit 7`

// TestControlPlanesRestart has an operator restart kubelets and, with another range, all API servers, while pods on
// both nodes call the API server and cluster DNS. Nothing may be lost; when API servers are killed instead, something
// must be.
func TestControlPlanesRestart(t *testing.T) {
	l := highlyAvailable(t)
	s := apiUnderTraffic(t, l)
	o := operator{
		lab: l, kubernetes: netip.MustParseAddr("172.24.0.99"), dns: netip.MustParseAddr("172.24.0.10"),
		serviceCIDR: netip.MustParsePrefix("172.24.0.0/16"),
	}
	graceful := s.during(t, "the restart", func() {
		events, code, gates := o.attend(t, exec.CommandContext(t.Context(), "sh", "-c", gatesScript))
		if len(events) != 4 || code != 7 || len(gates) != 3 {
			t.Errorf("the operator saw %d events and exit code %d, and acted at %v; want 4, 7 and each of 3 gates once",
				len(events), code, gates)
		}
	})
	graceful.requireNothingLost(t, traffic.All)
	for _, v := range traffic.ClusterWays() {
		way := graceful.stats(t, func(s traffic.Source) bool { return s.Via == v })
		t.Logf("%s: %d requests, %d failed, longest gap %s", v, way.Sent, way.Failed, way.LongestGap.Round(time.Millisecond))
	}
	for _, address := range l.APIServers() {
		requireServes(t, address, "172.24.0.99", "172.24.0.1", "10.96.0.1")
	}
	requireServiceCIDR(t, l, o.serviceCIDR)

	// The kubelets' restart left pods alone.
	pods, err := l.Client().CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.RestartCount > 0 }) {
			t.Errorf("pod %s/%s was restarted", p.Namespace, p.Name)
		}
	}

	// The control.
	began := time.Now().Truncate(time.Second)
	killed := s.during(t, "killing API servers", func() {
		for _, name := range l.ControlPlanes()[:2] {
			kill(t, l, name, "kube-apiserver")
		}
		eventually(t, settled, func() error {
			soFar := span{from: began, to: time.Now(), heard: s.watch.Snapshot()}
			if soFar.stats(t, traffic.All).Failed == 0 {
				return errors.New("nothing was lost")
			}
			return nil
		})
	})
	lost := killed.stats(t, traffic.All)
	t.Logf("control: %d of %d requests were lost when two API servers were killed", lost.Failed, lost.Sent)
}

// apiUnderTraffic starts clients of what a cluster offers to pods.
func apiUnderTraffic(t *testing.T, l *lab.Lab) *shop {
	t.Helper()
	const namespace = "callers"
	if err := workload.Ensure(t.Context(), l.Client(), workload.Namespace(namespace)); err != nil {
		t.Fatal(err)
	}
	rates := traffic.Rates{Request: 20, Stream: 20, LookUp: 20}
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(),
		traffic.CallAPI(namespace, "10.96.0.1", rates).AndAsk("10.96.0.10", rates))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watch.Stop)
	if err := watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady); err != nil {
		t.Fatal(err)
	}
	return &shop{watch: watch}
}

// requireServes fails the test unless the API server at address has a certificate for each of the hosts.
func requireServes(t *testing.T, address string, hosts ...string) {
	t.Helper()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // only what it claims is looked at
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for _, host := range hosts {
		if err := conn.(*tls.Conn).ConnectionState().PeerCertificates[0].VerifyHostname(host); err != nil {
			t.Errorf("API server at %s: %v", address, err)
		}
	}
}

// requireServiceCIDR fails the test unless API server and controller manager of each control plane run with the range.
func requireServiceCIDR(t *testing.T, l *lab.Lab, want netip.Prefix) {
	t.Helper()
	for _, name := range l.ControlPlanes() {
		m, err := l.Machine(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, program := range []string{"kube-apiserver", "kube-controller-manager"} {
			p, err := m.Program(t.Context(), program)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(p.Argv, "--service-cluster-ip-range="+want.String()) {
				t.Errorf("%s on %s runs with %s", program, name, strings.Join(p.Argv, " "))
			}
		}
	}
}

// kill ends a program on a machine with SIGKILL.
func kill(t *testing.T, l *lab.Lab, machine, program string) {
	t.Helper()
	m, err := l.Machine(machine)
	if err != nil {
		t.Fatal(err)
	}
	info, err := m.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range info.Programs {
		if p.Name == program && p.PID != 0 {
			if err := unix.Kill(p.PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal(fmt.Errorf("%s does not run on %s", program, machine))
}
