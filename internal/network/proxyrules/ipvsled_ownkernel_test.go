//go:build root && ownkernel

package proxyrules

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/network/ipvs"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/ownkernel"
)

// TestIPVSLed has a node go out of mode ipvs, back, and out again as a Migration leads it: by what
// replumb runs there, in that order, with both kube-proxies side by side.
func TestIPVSLed(t *testing.T) {
	s := apitest.Start(t, "10.96.0.0/16")
	out := ownkernel.Run(t, "TestIPVSLedInside", strings.Join([]string{s.Kubeconfig, os.Getenv(assetsVariable), s.Etcd}, ","), 20*time.Minute)
	t.Log(out)
}

// keepalived has a virtual server that is not kube-proxy's, and kube-router such a set.
const keepalived, routerSet = "172.30.0.9:80", "KUBE-SRC-AAAAAAAAAAAAAAAA"

// TestIPVSLedInside is what TestIPVSLed runs.
func TestIPVSLedInside(t *testing.T) {
	n := newIPVSNode(t)
	n.addNode(t)
	calls := n.addAllKinds(t)
	program(t, "", "sh", "-c", "ip addr add 172.30.0.9/32 dev lo; ipvsadm -A -t "+keepalived+"; ipvsadm -a -t "+keepalived+" -r 10.244.1.7:8080 -m; "+
		"ipset create "+routerSet+" hash:ip")
	n.runProxy(t, IPVS)
	n.awaitProof(t, IPVS, BesideIPVS)
	n.awaitAll(t, calls)

	open := n.hold(t, slices.DeleteFunc(slices.Clone(calls), func(c [2]string) bool { return c[1] == ranged }))
	l := n.during(t, calls, func() { n.lead(t, IPTables) })
	t.Logf("to iptables: %s", l)
	requireFew(t, l)
	if r, err := host().RemoveIPVS(); err != nil || len(r.Problems) == 0 {
		t.Errorf("with %d open connections: %+v, %v", len(open), r, err)
	} else {
		t.Logf("not removed: %s", r)
	}
	awaitMode(t, IPVS, all) // it is all there still
	broken := open.broken()
	t.Logf("of %d open connections %v are broken", len(open), broken)
	if len(broken) > len(open)/10 {
		t.Errorf("%d of %d open connections are broken", len(broken), len(open))
	}

	l = n.during(t, calls, func() {
		n.lead(t, IPVS)
		clean(t, nodecleanup.ProxyBesideIPVS)
		n.awaitAll(t, calls)
	})
	t.Logf("back to ipvs: %s", l)
	requireLost(t, l, func([2]string) bool { return false })
	if save := program(t, "", "iptables-save"); strings.Contains(save, "KUBE-SVC-") || strings.Contains(save, "KUBE-EXT-") || strings.Contains(save, "KUBE-EXTERNAL-SERVICES") {
		t.Errorf("left of mode iptables:\n%s", save)
	}

	program(t, "", "ipvsadm", "--set", "100", "20", "60") // seconds until a connection whose end was not seen is forgotten; else 900
	l = n.during(t, calls, func() { n.lead(t, IPTables) })
	t.Logf("to iptables again: %s", l)
	requireFew(t, l)
	n.finish(t, calls)
	n.removeTooEarly(t, calls)
}

// requireFew fails the test if more than one call of a thousand failed. In mode ipvs alone one has,
// of tens of thousands, and why is not known.
func requireFew(t *testing.T, l *lost) {
	t.Helper()
	failed := l.failed
	for c, n := range l.by {
		if c[1] == ranged {
			failed -= n
		}
	}
	if failed > l.sent/1000 {
		t.Errorf("%d of %d calls failed", failed, l.sent)
	}
}

// all are ClusterIPs, node ports and further addresses.
const all = 15

func host() nodecleanup.Host { return nodecleanup.Host{Root: "/"} }

// lead does what the steps of a Migration do on a node.
func (n *ipvsNode) lead(t *testing.T, to string) {
	t.Helper()
	if to == IPTables {
		n.addService(t, "orphan", "10.96.0.30", nil)
		awaitMember(t, "KUBE-CLUSTER-IP 10.96.0.30,tcp:80")
		r, err := LeaveIPVS(t.Context(), host(), 0)
		must(t, err)
		t.Logf("leaving: %v", r.Found)
		requireOwnSource(t)
	}
	endFormer := n.runBeside(t, to)
	n.awaitProof(t, to, ByTurns)
	n.churn(t, map[string]bool{IPTables: true, IPVS: false}[to])
	endFormer()
	n.trial(t, to)
	n.awaitProof(t, to, BesideIPVS)
	if to == IPTables {
		n.quiesce(t)
	}
}

// quiesce has a Service that has lost its endpoints answer no more, instead of leading to where
// these were.
func (n *ipvsNode) quiesce(t *testing.T) {
	t.Helper()
	const orphan = "10.96.0.30:80"
	must(t, n.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), "orphan", metav1.DeleteOptions{}))
	await(t, "no rule leads from "+orphan, func() bool {
		return !strings.Contains(program(t, "", "iptables-save", "-t", "nat"), "-d 10.96.0.30/32")
	})
	who, err := n.call(here, orphan) // no endpoint is the node's, which could not answer itself
	t.Logf("a Service without endpoints is answered by %s, %v", who, err)
	if err != nil {
		t.Error("IPVS leads nowhere: the test proves nothing")
	}
	_, err = host().QuiesceIPVS()
	must(t, err)
	for range 3 {
		if who, err = n.call(here, orphan); err == nil {
			t.Errorf("a Service without endpoints is answered by %s", who)
		}
	}
	must(t, n.CoreV1().Services("default").Delete(t.Context(), "orphan", metav1.DeleteOptions{}))
}

// runBeside starts kube-proxy in another mode beside the one that runs.
func (n *ipvsNode) runBeside(t *testing.T, mode string) (endFormer func()) {
	t.Helper()
	former := n.proxy
	n.proxy = nil
	n.runProxy(t, mode)
	return func() {
		_ = former.Process.Kill()
		_ = former.Wait()
	}
}

// awaitProof returns when replumb says that a mode leads to everything.
func (n *ipvsNode) awaitProof(t *testing.T, mode string, by Against) {
	t.Helper()
	r, err := Programs{}.Await(t.Context(), mode, by, 4*time.Minute)
	if err != nil || len(r.Problems) > 0 {
		t.Fatalf("mode %s: %+v, %v\n%s", mode, r, err, state(t))
	}
	t.Logf("mode %s leads from %s", mode, r.Found)
}

// churn has Services come and go until the former kube-proxy was the last to write the chain that
// both write: the harder case for the one that is left.
func (n *ipvsNode) churn(t *testing.T, lastOfIPVS bool) {
	t.Helper()
	for i := range 20 {
		name := fmt.Sprint("churn-", i)
		n.addService(t, name, fmt.Sprint("10.96.2.", i+1), nil)
		n.removeService(t, name)
		late := time.After(5 * time.Second)
		for tick := time.NewTicker(300 * time.Millisecond); ; {
			if ofIPVS(program(t, "", "iptables-save", "-t", "nat")) == lastOfIPVS {
				tick.Stop()
				return
			}
			select {
			case <-tick.C:
				continue
			case <-late:
				tick.Stop()
			}
			break
		}
	}
	t.Fatalf("the former kube-proxy writes nothing\n%s", state(t))
}

// trial has the kube-proxy that is left write for a new Service.
func (n *ipvsNode) trial(t *testing.T, mode string) {
	t.Helper()
	n.addService(t, "trial", "10.96.3.1", nil)
	query := nodecleanup.ServiceQuery{Host: host(), Programmed: netip.MustParseAddr("10.96.3.1"), InIPVS: mode == IPVS, Timeout: time.Minute}
	r, err := query.Check(t.Context())
	if err != nil || len(r.Problems) > 0 {
		t.Fatalf("a new Service: %+v, %v\n%s", r, err, state(t))
	}
	n.removeService(t, "trial")
}

func (n *ipvsNode) removeService(t *testing.T, name string) {
	t.Helper()
	must(t, n.CoreV1().Services("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
	must(t, n.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// requireOwnSource: the node calls Services from an address of its own.
func requireOwnSource(t *testing.T) {
	t.Helper()
	c, err := net.DialTimeout("tcp", "10.96.0.20:80", 5*time.Second)
	must(t, err)
	defer func() { _ = c.Close() }()
	if from := c.LocalAddr().String(); strings.HasPrefix(from, "10.96.") {
		t.Errorf("the node calls from %s", from)
	}
}

// finish removes what mode ipvs has left, when the last connection has ended that needs it.
func (n *ipvsNode) finish(t *testing.T, calls [][2]string) {
	t.Helper()
	r, err := LeaveIPVS(t.Context(), host(), 4*time.Minute)
	if err != nil || len(r.Problems) > 0 {
		t.Errorf("it does not end: %+v, %v\n%s", r, err, state(t))
	}
	last := dialFromService(t)
	r, err = LeaveIPVS(t.Context(), host(), 0)
	if want := []string{"1 to 10.96.0.20:80 tcp, from 10.96.0.20"}; err != nil || !slices.Equal(r.Problems, want) {
		t.Errorf("got %+v, %v, want %q", r, err, want)
	}
	must(t, last.Close())
	open := n.hold(t, calls)
	l := n.during(t, calls, func() {
		r, err = host().RemoveIPVS()
		if err != nil || len(r.Problems) > 0 {
			t.Fatalf("%+v, %v\n%s", r, err, state(t))
		}
		n.awaitAll(t, calls)
	})
	broken := open.broken()
	t.Logf("removed with %d connections open: %s; broken are %v", len(open), l, broken)
	requireLost(t, l, func([2]string) bool { return false })
	if len(broken) > 0 {
		t.Errorf("%v are broken", broken)
	}
	requireNothingOfIPVS(t)
}

// dialFromService connects as a program of the node that did so before its turn: from the address
// that it connects to.
func dialFromService(t *testing.T) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("10.96.0.20")}, Timeout: 5 * time.Second}
	c, err := d.DialContext(t.Context(), "tcp", "10.96.0.20:80")
	must(t, err)
	if !echoes(c) {
		t.Error("it does not answer from the first")
	}
	return c
}

// requireNothingOfIPVS: what is left is that of others.
func requireNothingOfIPVS(t *testing.T) {
	t.Helper()
	own, err := ipvs.Servers()
	if servers := program(t, "", "ipvsadm", "-Sn"); err != nil || len(own) > 0 || !strings.Contains(servers, "-A -t "+keepalived) {
		t.Errorf("virtual servers are %v, %v\n%s", own, err, servers)
	}
	if sets := strings.Fields(program(t, "", "ipset", "list", "-n")); !slices.Equal(sets, []string{routerSet}) {
		t.Errorf("ipsets are %v", sets)
	}
	if links := program(t, "", "ip", "-o", "link"); strings.Contains(links, ipvs.Device) {
		t.Errorf("interfaces are\n%s", links)
	}
	save := program(t, "", "iptables-save") + program(t, "", "ip6tables-save")
	for _, name := range []string{"KUBE-IPVS", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES", "kube-proxy firewall rules"} {
		if strings.Contains(save, name) {
			t.Errorf("%s is left:\n%s", name, save)
		}
	}
}

// removeTooEarly is the control: what mode ipvs has left is removed while connections go by it.
func (n *ipvsNode) removeTooEarly(t *testing.T, calls [][2]string) {
	t.Helper()
	n.runProxy(t, IPVS)
	n.awaitProof(t, IPVS, BesideIPVS)
	n.awaitAll(t, calls)
	open := n.hold(t, calls)
	n.runProxy(t, IPTables)
	n.awaitProof(t, IPTables, BesideIPVS)
	own := dialFromService(t) // by rules
	defer func() { _ = own.Close() }()
	clean(t, nodecleanup.ProxyIPVS)
	if echoes(own) {
		t.Error("a connection from an address that is gone lives on: nothing has to wait for it")
	}
	broken := open.broken()
	t.Logf("removed at once: %d of %d open connections are broken", len(broken), len(open))
	if len(broken) < len(open)/2 {
		t.Error("few are broken: the test proves nothing")
	}
}
