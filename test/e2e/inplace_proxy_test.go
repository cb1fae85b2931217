package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// toCiliumAlone is the Migration that replaces flannel and kube-proxy.
const toCiliumAlone = "to-cilium-alone"

// TestInPlaceProxy replaces flannel by Cilium and then kube-proxy as well: node by node and under traffic of clients on the nodes' own network and
// of pods, there with replumb killed on the way, back, there again and for good. No request is lost, and node ports answer that are made without
// kube-proxy. The control takes kube-proxy away before Cilium does its work, and loses. kube-proxy is a program of the nodes in either of its
// modes, which people stop and start at gates, or a DaemonSet as kubeadm has it, whose pods replumb keeps off nodes itself.
func TestInPlaceProxy(t *testing.T) {
	t.Run("programs", func(t *testing.T) {
		topology := forCiliumAlone("e2e-inplace-kp")
		topology.Nodes = []lab.ProxyMode{lab.IPTables, lab.NFTables, lab.IPTables}
		replaceProxies(t, proxyPrograms{bringUpForBoth(t, topology)}, "services/node2")
	})
	t.Run("DaemonSet", func(t *testing.T) {
		topology := forCiliumAlone("e2e-inplace-kp-ds")
		topology.Nodes, topology.ProxyPods = []lab.ProxyMode{lab.IPTables, lab.IPTables, lab.IPTables}, true
		replaceProxies(t, proxyPods{bringUpForBoth(t, topology)}, "proxy-gone/node2")
	})
}

func forCiliumAlone(name string) lab.Topology {
	topology := named(name)
	topology.CNI, topology.Beside = lab.Flannel, lab.Cilium
	return topology
}

// replaceProxies kills replumb in the end at a step about kube-proxy of the second node.
func replaceProxies(t *testing.T, p proxies, last string) {
	l := p.in()
	s := servingAllKinds(t, l, traffic.Calls.SeenAsAny)
	requireNoProxyLoses(t, p, s, l.NodeNames()[2])
	file := writeProxySwitch(t, l)
	apply := func(killAt func(engine.Event) bool) int {
		return attendProxies(t, p, killAt, "apply", "-f", file, "--yes")
	}

	there := s.during(t, "kube-proxy being replaced", func() {
		for _, step := range []string{"replace/node1", "health/node1", last} {
			if code := apply(eventOf(engine.StepStarted, step)); code != -1 {
				t.Fatalf("apply ended with exit code %d before %s", code, step)
			}
		}
		requireDone(t, apply(nil))
	})
	there.requireNothingLost(t, traffic.Permitted)
	p.require(t, false)
	newNodePorts(t, l) // which returns when all of them answer at every node
	removeNamespaces(t, l, doorsNamespace)

	back := s.during(t, "kube-proxy coming back", func() { requireDone(t, attendProxies(t, p, nil, "rollback", toCiliumAlone, "--yes")) })
	back.requireNothingLost(t, traffic.Permitted)
	p.require(t, true)

	again := s.during(t, "kube-proxy being replaced again", func() { requireDone(t, apply(nil)) })
	again.requireNothingLost(t, traffic.Permitted)
	finish := s.during(t, "finish", func() { shown(t, l, "finish", toCiliumAlone, "--yes") })
	finish.requireNothingLost(t, traffic.Permitted)
	p.require(t, false)
	requireNoProxyRules(t, l)
	newNodePorts(t, l)
	removeNamespaces(t, l, doorsNamespace)
	requireNoTrace(t, l)
}

// proxies are the kube-proxies of a lab, however they run.
type proxies interface {
	in() *lab.Lab
	// stop takes kube-proxy from a node and leaves its rules; start brings it back.
	stop(t *testing.T, node string)
	start(t *testing.T, node string)
	// require fails the test unless every node runs one, or none does.
	require(t *testing.T, every bool)
	// gates is what people do at them.
	gates() map[string]func(context.Context) error
}

// attendProxies runs a command with what people do for it, and returns its exit code, which is -1 if it was killed.
func attendProxies(t *testing.T, p proxies, killAt func(engine.Event) bool, args ...string) int {
	t.Helper()
	o := operator{lab: p.in(), killAt: killAt, instead: p.gates()}
	_, code, _ := o.attend(t, command(t, "replumb", append(args, "-o", "json", "--kubeconfig", p.in().Kubeconfig())...))
	return code
}

// proxyPrograms are programs of nodes.
type proxyPrograms struct{ *lab.Lab }

func (p proxyPrograms) in() *lab.Lab { return p.Lab }

func (p proxyPrograms) stop(t *testing.T, node string) {
	t.Helper()
	must(t, p.Workers().StopProxy(t.Context(), node))
}

func (p proxyPrograms) start(t *testing.T, node string) {
	t.Helper()
	must(t, p.Workers().StartProxy(t.Context(), node))
}

func (p proxyPrograms) require(t *testing.T, every bool) {
	t.Helper()
	requireProxies(t, p.Lab, every)
}

// gates say when to stop and start kube-proxies.
func (p proxyPrograms) gates() map[string]func(context.Context) error {
	acts := map[string]func(context.Context) error{}
	for _, node := range p.NodeNames() {
		acts["services/"+node] = func(ctx context.Context) error { return p.Workers().StopProxy(ctx, node) }
		acts["services-back/"+node] = func(ctx context.Context) error { return p.Workers().StartProxy(ctx, node) }
	}
	return acts
}

// proxyPods are those of a DaemonSet.
type proxyPods struct{ *lab.Lab }

func (p proxyPods) in() *lab.Lab { return p.Lab }

// machines are those that a pod of kube-proxy runs on. Control planes are nodes where kubeadm has made the cluster.
func (p proxyPods) machines() []string {
	if p.Topology.Installer == lab.ByLab {
		return p.NodeNames()
	}
	return slices.Concat(p.ControlPlanes(), p.NodeNames())
}

// stop keeps the pods off the node, and returns when its own has ended.
func (p proxyPods) stop(t *testing.T, node string) {
	t.Helper()
	p.allow(t, &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{node}},
		}}},
	}}})
	p.await(t, func(nodes []string) bool { return !slices.Contains(nodes, node) })
}

// start has the pods on every node.
func (p proxyPods) start(t *testing.T, _ string) {
	t.Helper()
	p.allow(t, nil)
	p.require(t, true)
}

func (p proxyPods) allow(t *testing.T, nodes *corev1.Affinity) {
	t.Helper()
	sets := p.Client().AppsV1().DaemonSets(metav1.NamespaceSystem)
	ds, err := sets.Get(t.Context(), "kube-proxy", metav1.GetOptions{})
	must(t, err)
	ds.Spec.Template.Spec.Affinity = nodes
	if _, err := sets.Update(t.Context(), ds, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (p proxyPods) require(t *testing.T, every bool) {
	t.Helper()
	p.await(t, func(nodes []string) bool {
		return every && len(nodes) == len(p.machines()) || !every && len(nodes) == 0
	})
}

// await waits until kube-proxy runs, and is ready, on the nodes that it is to.
func (p proxyPods) await(t *testing.T, as func(nodes []string) bool) {
	t.Helper()
	eventually(t, settled, func() error {
		var nodes []string
		for _, pod := range listed(t, p.Lab, metav1.ListOptions{LabelSelector: "k8s-app=kube-proxy"}) {
			if !connectivity.Ready(&pod) || pod.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is not ready, or ends", pod.Name)
			}
			nodes = append(nodes, pod.Spec.NodeName)
		}
		if !as(nodes) {
			return fmt.Errorf("kube-proxy runs on %v", nodes)
		}
		return nil
	})
}

// gates are none: replumb keeps the pods off nodes itself.
func (proxyPods) gates() map[string]func(context.Context) error { return nil }

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
func requireNoProxyLoses(t *testing.T, p proxies, s *shop, node string) {
	t.Helper()
	l := p.in()
	lost := s.during(t, "a node without kube-proxy", func() {
		p.stop(t, node)
		const flush = "iptables-save | grep -v KUBE- | iptables-restore" // as Cilium's guide has it
		if out, err := l.Exec(t.Context(), node, "/bin/sh", "-c", flush); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		reported := traffic.Until(time.Now().Add(10 * time.Second))
		must(t, s.watch.Await(t.Context(), settled, "ten seconds of reports", traffic.All, reported))
		p.start(t, node)
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
	must(t, s.watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady))
}

// forgetUntranslated removes what a node's connection tracking remembers of packets to Services that nothing has translated. For two minutes they
// would go untranslated again whenever a client comes to use a port that it used meanwhile, though kube-proxy is back.
func forgetUntranslated(t *testing.T, l *lab.Lab, node string) {
	t.Helper()
	machine, err := l.Machine(node)
	must(t, err)
	var n uint
	var failed error
	err = machine.Inside(t.Context(), func() {
		n, failed = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, untranslated(lab.Default().ServiceCIDR))
	})
	must(t, errors.Join(err, failed))
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
	must(t, err)
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
    vouch: {kubeProxy: true}
    inPlace: {timeout: 3m, workloads: 2}
  proof: {agents: Disabled}
  image: %q
`, toCiliumAlone, newPods, workload.ReplumbImage)
	return writeWithManifests(t, body, text)
}
