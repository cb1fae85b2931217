package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// toCiliumAlone is the Migration that replaces flannel and kube-proxy.
const toCiliumAlone = "to-cilium-alone"

// TestInPlaceProxy replaces flannel by Cilium and then kube-proxy as well, which is a program of the nodes in either of its modes: node by node
// and under traffic of clients on the nodes' own network and of pods, there with replumb killed on the way, back, there again and for good. No
// request is lost, and node ports answer that are made without kube-proxy. The control takes kube-proxy away before Cilium does its work, and
// loses.
func TestInPlaceProxy(t *testing.T) {
	topology := named("e2e-inplace-kp")
	topology.CNI, topology.Beside = lab.Flannel, lab.Cilium
	topology.Nodes = []lab.ProxyMode{lab.IPTables, lab.NFTables, lab.IPTables}
	l := bringUp(t, topology)
	if err := l.Workers().RestartProxies(t.Context(), netip.MustParsePrefix(bothPods)); err != nil {
		t.Fatal(err)
	}
	s := servingAllKinds(t, l, traffic.Calls.SeenAsAny)
	requireNoProxyLoses(t, l, s, l.NodeNames()[2])
	file := writeProxySwitch(t, l)

	there := s.during(t, "kube-proxy being replaced", func() {
		for _, moment := range []func(engine.Event) bool{
			eventOf(engine.StepStarted, "replace/node1"), eventOf(engine.StepStarted, "health/node1"), eventOf(engine.StepStarted, "services/node2"),
		} {
			if code := attendProxies(t, l, moment, "apply", "-f", file, "--yes"); code != -1 {
				t.Fatalf("apply ended with exit code %d before the event came", code)
			}
		}
		requireDone(t, attendProxies(t, l, nil, "apply", "-f", file, "--yes"))
	})
	there.requireNothingLost(t, traffic.Permitted)
	requireProxies(t, l, false)
	newNodePorts(t, l) // which returns when all of them answer at every node
	removeNamespaces(t, l, doorsNamespace)

	back := s.during(t, "kube-proxy coming back", func() { requireDone(t, attendProxies(t, l, nil, "rollback", toCiliumAlone, "--yes")) })
	back.requireNothingLost(t, traffic.Permitted)
	requireProxies(t, l, true)

	again := s.during(
		t,
		"kube-proxy being replaced again",
		func() { requireDone(t, attendProxies(t, l, nil, "apply", "-f", file, "--yes")) },
	)
	again.requireNothingLost(t, traffic.Permitted)
	finish := s.during(t, "finish", func() { shown(t, l, "finish", toCiliumAlone, "--yes") })
	finish.requireNothingLost(t, traffic.Permitted)
	requireProxies(t, l, false)
	requireNoProxyRules(t, l)
	newNodePorts(t, l)
	removeNamespaces(t, l, doorsNamespace)
	requireNoTrace(t, l)
}

// attendProxies runs a command and is the operator, who stops and starts kube-proxies as they are told. It returns the exit code, which is -1 if
// the command was killed.
func attendProxies(t *testing.T, l *lab.Lab, killAt func(engine.Event) bool, args ...string) int {
	t.Helper()
	o := operator{lab: l, killAt: killAt, instead: map[string]func(context.Context) error{}}
	for _, node := range l.NodeNames() {
		o.instead["services/"+node] = func(ctx context.Context) error { return l.Workers().StopProxy(ctx, node) }
		o.instead["services-back/"+node] = func(ctx context.Context) error { return l.Workers().StartProxy(ctx, node) }
	}
	_, code, _ := o.attend(t, command(t, "replumb", append(args, "-o", "json", "--kubeconfig", l.Kubeconfig())...))
	return code
}

func requireDone(t *testing.T, code int) {
	t.Helper()
	if code != 0 {
		t.Fatalf("it ended with exit code %d", code)
	}
}

// requireNoProxyRules: nothing of kube-proxy is left in the kernel, and what the kubelet has there is.
func requireNoProxyRules(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, node := range l.NodeNames() {
		const look = "iptables-save | grep -E 'KUBE-(SERVICES|SVC-|SEP-|POSTROUTING|FORWARD)'; nft list tables | grep -w kube-proxy; true"
		if out, err := l.Exec(t.Context(), node, "/bin/sh", "-c", look); err != nil || len(out) > 0 {
			t.Errorf("%s still has of kube-proxy (%v):\n%s", node, err, out)
		}
	}
}

// requireNoProxyLoses is the control: kube-proxy goes from a node, with its rules, where nothing does its work. It is back afterwards.
func requireNoProxyLoses(t *testing.T, l *lab.Lab, s *shop, node string) {
	t.Helper()
	lost := s.during(t, "a node without kube-proxy", func() {
		if err := l.Workers().StopProxy(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		const flush = "iptables-save | grep -v KUBE- | iptables-restore" // as Cilium's guide has it
		if out, err := l.Exec(t.Context(), node, "/bin/sh", "-c", flush); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		reported := traffic.Until(time.Now().Add(10 * time.Second))
		if err := s.watch.Await(t.Context(), settled, "ten seconds of reports", traffic.All, reported); err != nil {
			t.Fatal(err)
		}
		if err := l.Workers().StartProxy(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	})
	forgetUntranslated(t, l, node)
	stats := lost.stats(t, traffic.All)
	if stats.Failed == 0 {
		t.Errorf("none of %d requests was lost without kube-proxy: the test proves nothing", stats.Sent)
	}
	t.Logf(
		"control: with kube-proxy gone from a node before Cilium leads to Services, %d of %d requests were lost",
		stats.Failed,
		stats.Sent,
	)
	if err := s.watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady); err != nil {
		t.Fatal(err)
	}
}

// forgetUntranslated removes what a node's connection tracking remembers of packets to Services that nothing has translated. For two minutes they
// would go untranslated again whenever a client comes to use a port that it used meanwhile, though kube-proxy is back.
func forgetUntranslated(t *testing.T, l *lab.Lab, node string) {
	t.Helper()
	machine, err := l.Machine(node)
	if err != nil {
		t.Fatal(err)
	}
	var n uint
	var failed error
	err = machine.Inside(t.Context(), func() {
		n, failed = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, untranslated(lab.Default().ServiceCIDR))
	})
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	t.Logf("control: %d connections that nothing translated are forgotten", n)
}

// untranslated matches connections to a range whose answers would come from where they went.
type untranslated netip.Prefix

// MatchConntrackFlow is what netlink asks.
func (u untranslated) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	to, ok := netip.AddrFromSlice(f.Forward.DstIP)
	return ok && netip.Prefix(u).Contains(to.Unmap()) && f.Forward.DstIP.Equal(f.Reverse.SrcIP)
}

func writeProxySwitch(t *testing.T, l *lab.Lab) string {
	t.Helper()
	body, err := lab.CiliumManifestsInPlaceOfProxies(l, netip.MustParsePrefix(newPods))
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: %s}
spec:
  cni:
    to: cilium
    mode: InPlace
    kubeProxy: Replace
    policies: Drop
    manifests: [network.yaml]
    podCIDR: %s
    gateWait: 10m
    canary: {image: %q}
    vouch: {kubeProxy: true}
    inPlace: {timeout: 3m, workloads: 2}
`, toCiliumAlone, newPods, workload.ReplumbImage)
	return writeWithManifests(t, body, text)
}
