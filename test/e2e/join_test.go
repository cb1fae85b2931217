package e2e

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/labtest"
	"github.com/replumb/replumb/lab/traffic"
)

// TestNodesJoinAndLeave sees that a lab's second network is one: a node that joins in it has an address of it, a router away
// from the others, and everybody reaches everybody. Then the machine is taken away, and nothing of it is left.
func TestNodesJoinAndLeave(t *testing.T) {
	const name = "join"
	before := labtest.HostState(t)
	topology := lab.Default()
	topology.Name, topology.CNI, topology.Nodes = name, lab.CalicoCrossSubnet, []lab.ProxyMode{lab.IPTables}
	topology.Networks = append(topology.Networks, lab.Network{Name: "b", CIDR: netip.MustParsePrefix("172.31.0.0/24")})
	t.Cleanup(func() { _, _ = lab.Down(context.Background(), name) })
	if _, err := lab.Up(t.Context(), topology, lab.Options{Progress: t.Logf}); err != nil {
		t.Fatal(err)
	}
	out, err := command(t, "replumb-lab", "node", "add", "--name", name, "--network", "b", "--proxy", "nftables").Output()
	must(t, err)
	joined := strings.TrimSpace(string(out))
	l, err := lab.Open(name) // as another process has changed it
	must(t, err)
	requireIn(t, l, joined, topology.Networks[1].CIDR)
	requireRouter(t, l, joined, topology.Networks[1])

	s := guarded(t, l, "guarded") // its clients are on both nodes, and wait until all that is called answers on each
	lived := s.during(t, "two networks", func() {})
	lived.requireNothingLost(t, traffic.Permitted)
	lived.requireDenied(t)
	if tunneled(t, l) == 0 {
		t.Error("nothing between the networks went through a tunnel")
	}

	if _, err := l.Workers().Add(t.Context(), lab.Joining{Network: "c", Proxy: lab.IPTables}); !errors.As(err, new(*lab.InvalidError)) {
		t.Errorf("a node in a network that is not there: %v", err)
	}
	s.watch.Stop()
	must(t, l.Workers().Remove(t.Context(), joined))
	if got := l.NodeNames(); len(got) != 1 || got[0] == joined {
		t.Errorf("the nodes are %v without %s", got, joined)
	}
	links, err := l.Exec(t.Context(), "fabric", "ip", "-brief", "link")
	must(t, err)
	if strings.Contains(string(links), joined) {
		t.Errorf("the fabric still has a link to %s:\n%s", joined, links)
	}
	if _, err := lab.Down(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	labtest.RequireNothingLeft(t, name)
	labtest.RequireUnchanged(t, before)
}

// requireIn fails the test unless a node has an address of a network, and no other.
func requireIn(t *testing.T, l *lab.Lab, node string, network netip.Prefix) {
	t.Helper()
	n, err := l.Client().CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	must(t, err)
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(a.Address); err != nil || !network.Contains(ip) {
			t.Errorf("node %s has address %s, which is not of %s", node, a.Address, network)
		}
	}
}

// requireRouter fails the test unless a node reaches the first network through its own network's gateway.
func requireRouter(t *testing.T, l *lab.Lab, node string, network lab.Network) {
	t.Helper()
	out, err := l.Exec(t.Context(), node, "ip", "route", "get", "172.30.0.11")
	must(t, err)
	if want := "via " + network.Gateway().String(); !strings.Contains(string(out), want) {
		t.Errorf("node %s reaches the other network not %s, but: %s", node, want, out)
	}
}
