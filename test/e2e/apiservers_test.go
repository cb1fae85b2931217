package e2e

import (
	"crypto/tls"
	"errors"
	"fmt"
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
		m, err := l.Machine(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, program := range []string{"kube-apiserver", "kube-controller-manager"} {
			p, err := m.Program(t.Context(), program)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(p.Argv, flag) {
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
