package lab

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// flag is what a program is told by one.
func flag(argv []string, name string) string {
	for _, arg := range argv {
		if value, ok := strings.CutPrefix(arg, name+"="); ok {
			return value
		}
	}
	return ""
}

func TestControlPlanePrograms(t *testing.T) {
	topology := Default()
	l := newLab(topology)
	if got := flag(l.ControlPlaneNodes().apiServer(l.with(ControlPlane)[0]).Argv, "--shutdown-delay-duration"); got != "" {
		t.Errorf("a single API server waits %s for others to take over", got)
	}
	topology.ControlPlanes = 3
	const members = "cp1=https://172.30.0.10:2380,cp2=https://172.30.0.9:2380,cp3=https://172.30.0.8:2380"
	l = newLab(topology)
	for _, m := range l.with(ControlPlane) {
		name, etcd, server := m.Name, l.ControlPlaneNodes().etcd(m), l.ControlPlaneNodes().apiServer(m)
		if got := flag(etcd.Argv, "--name"); got != name {
			t.Errorf("etcd on %s calls itself %s", name, got)
		}
		if got := flag(etcd.Argv, "--initial-cluster"); got != members {
			t.Errorf("etcd on %s has members %s", name, got)
		}
		if got := flag(server.Argv, "--advertise-address"); got != m.Address.String() {
			t.Errorf("API server on %s advertises %s", name, got)
		}
		if got := flag(server.Argv, "--shutdown-delay-duration"); got != shutdownDelay.String() || server.Grace <= shutdownDelay {
			t.Errorf("API server on %s has a delay of %q within a grace of %s", name, got, server.Grace)
		}
	}
}

func TestServingAddresses(t *testing.T) {
	topology := Default()
	first, second := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("172.24.0.1")
	for planes, want := range map[int][]string{
		1: {"172.30.0.10", "127.0.0.1", "10.96.0.1", "172.24.0.1"},
		3: {"172.30.0.10", "127.0.0.1", "172.30.0.1", "10.96.0.1", "172.24.0.1"},
	} {
		topology.ControlPlanes = planes
		var got []string
		l := newLab(topology)
		for _, a := range l.ControlPlaneNodes().serving(l.with(ControlPlane)[0], first, second, first).Addresses {
			got = append(got, a.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("with %d control planes cp1 is %v, want %v", planes, got, want)
		}
	}
}
