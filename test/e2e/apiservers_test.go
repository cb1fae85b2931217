package e2e

import (
	"crypto/tls"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// requireKilledAPIServersLose is the control for what calls the API server: when two of three are killed instead of
// restarted as an operator's tooling does, the same clients must lose something.
func requireKilledAPIServersLose(t *testing.T, l *lab.Lab, s *shop) {
	t.Helper()
	ofAPI := func(s traffic.Source) bool { return slices.Contains(traffic.ClusterWays(), s.Via) }
	began := time.Now().Truncate(time.Second)
	killed := s.during(t, "killing API servers", func() {
		for _, name := range l.ControlPlanes()[:2] {
			kill(t, l, name, "kube-apiserver")
		}
		eventually(t, settled, func() error {
			soFar := span{from: began, to: time.Now(), heard: s.watch.Snapshot()}
			if soFar.stats(t, ofAPI).Failed == 0 {
				return errors.New("nothing was lost")
			}
			return nil
		})
	})
	lost := killed.stats(t, ofAPI)
	t.Logf("control: %d of %d requests were lost when two API servers were killed", lost.Failed, lost.Sent)
}

// requireServes fails the test unless the API server at address has a certificate for each of the hosts.
func requireServes(t *testing.T, address string, hosts ...string) {
	t.Helper()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	must(t, err)
	defer func() { _ = conn.Close() }()
	for _, host := range hosts {
		if err := conn.(*tls.Conn).ConnectionState().PeerCertificates[0].VerifyHostname(host); err != nil {
			t.Errorf("API server at %s: %v", address, err)
		}
	}
}

// requireServiceCIDR fails the test unless API server and controller manager of each control plane run with the range, or with both ranges, where
// the lab has both families.
func requireServiceCIDR(t *testing.T, l *lab.Lab, want ...netip.Prefix) {
	t.Helper()
	var texts []string
	for _, r := range want {
		texts = append(texts, r.String())
	}
	flag := "--service-cluster-ip-range=" + strings.Join(texts, ",")
	for _, name := range l.ControlPlanes() {
		for _, program := range []string{"kube-apiserver", "kube-controller-manager"} {
			if command := commandOf(t, l, name, program); !slices.Contains(command, flag) {
				t.Errorf("%s on %s runs with %s", program, name, strings.Join(command, " "))
			}
		}
	}
}

// commandOf is what a program of the control plane runs with: a program of the machine, or one in a pod.
func commandOf(t *testing.T, l *lab.Lab, machine, program string) []string {
	t.Helper()
	if l.Topology.Installer == lab.ByLab {
		m, err := l.Machine(machine)
		must(t, err)
		p, err := m.Program(t.Context(), program)
		must(t, err)
		return p.Argv
	}
	out, err := l.Shell(t.Context(), machine, "cat /proc/$(pgrep -o -f '^"+program+" ')/cmdline")
	must(t, err)
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// kill ends a program on a machine with SIGKILL.
func kill(t *testing.T, l *lab.Lab, machine, program string) {
	t.Helper()
	signal(t, l, machine, program, unix.SIGKILL)
}

// signal sends one to a program on a machine, and returns its process.
func signal(t *testing.T, l *lab.Lab, machine, program string, s unix.Signal) int {
	t.Helper()
	pid := pidOf(t, l, machine, program)
	if pid == 0 {
		t.Fatalf("%s does not run on %s", program, machine)
	}
	must(t, unix.Kill(pid, s))
	return pid
}
