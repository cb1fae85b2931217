package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

const (
	// toCalico is the Migration that goes there in place.
	toCalico = "to-calico-inplace"
	// guardedNamespace has pods alone, which have all moved; what calls from the nodes' own network is elsewhere.
	guardedNamespace = "guarded"
)

// TestInPlace replaces the network of a cluster that serves, node by node, under traffic of clients on the nodes' own network and of
// pods that move like all others and that NetworkPolicies let in: from flannel to Calico, with replumb killed on the way, back, there
// again and for good; and from Calico to flannel. No request is lost. Two controls lose: without what keeps pods' addresses
// between both networks, policies refuse pods that they let in; and with the old network removed before the new one comes.
func TestInPlace(t *testing.T) {
	topology := named("e2e-inplace")
	topology.CNI = lab.Flannel
	topology.Nodes = slices.Repeat(lab.Default().Nodes[:1], 3)
	l := bringUpForBoth(t, topology)
	s := servingAllKinds(t, l, asThemselves, workload.Policies(guardedNamespace)...)

	thereAndBack(t, l, s, writeSwitch(t, l, v1alpha1.Calico), toCalico, newPods, oldPods).requireEnough(t, l.NodeNames())
	requireUncrossedLoses(t, l, s, writeSwitch(t, l, v1alpha1.Calico))
	switchForGood(t, l, s, writeSwitch(t, l, v1alpha1.Calico), toCalico, newPods, "flannel")
	requirePoliciesHold(t, l, s)
	next := v1alpha1.Flannel
	if !testing.Short() {
		switchForGood(t, l, s, writeSwitch(t, l, next), switchName(next, v1alpha1.CNIInPlace), oldPods, "cali")
		next = v1alpha1.Calico
	}
	requireDrainedLoses(t, l, s, next)
}

// bringUpForBoth brings up a lab whose kube-proxies know the pods of both networks. Its name servers have room for seconds of questions, and come
// before other pods: as all pods of a node start, a hundred processes wait for two processors, which control planes have for themselves elsewhere.
// A question without an answer in time is a loss to agents.
func bringUpForBoth(t *testing.T, topology lab.Topology) *lab.Lab {
	t.Helper()
	roomForQuestions(t)
	l := bringUp(t, topology)
	favourNameServers(t, l)
	kubectl(t, l, "rollout status deployment/coredns --timeout=2m -n kube-system")
	must(t, l.Workers().RestartProxies(t.Context(), netip.MustParsePrefix(bothPods)))
	return l
}

// TestInPlaceWatched has agents on every node watch the way to Calico, with replumb killed on it, and back: a single request that one of them loses
// ends a command. Clients call less often than elsewhere: agents have a small share of the processors, and where a hundred processes wait for two
// of them a probe of five seconds says nothing of a network.
func TestInPlaceWatched(t *testing.T) {
	topology := named("e2e-inplace-seen")
	topology.CNI = lab.Flannel
	topology.Nodes = slices.Repeat(lab.Default().Nodes[:1], 3)
	l := bringUpForBoth(t, topology)
	s := nodesUnderTraffic(t, l, traffic.Rates{Request: 2, LookUp: 1})
	addMembers(t, l, s, asThemselves, workload.Policies(guardedNamespace)...)
	file := watchedBy(t, writeSwitch(t, l, v1alpha1.Calico))

	there := s.during(t, "the way there, watched", func() { killedOnTheWay(t, l, file) })
	there.requireNothingLost(t, traffic.Permitted)
	requireNothingLostBy(t, l, toCalico)
	requireAddressesIn(t, l, guardedNamespace, netip.MustParsePrefix(newPods))
	back := s.during(t, "the way back, watched", func() { shown(t, l, "rollback", toCalico, "--yes") })
	back.requireNothingLost(t, traffic.Permitted)
	requireAddressesIn(t, l, guardedNamespace, netip.MustParsePrefix(oldPods))
	requireNoTrace(t, l)
}

// servingAllKinds is a cluster that serves clients of all kinds: on the nodes' own network, in pods that move, of node ports from another machine,
// and of name servers.
func servingAllKinds(t *testing.T, l *lab.Lab, seen func(traffic.Calls) traffic.Calls, policies ...runtime.Object) *shop {
	t.Helper()
	s := nodesUnderTraffic(t, l, switchRates())
	addMembers(t, l, s, seen, policies...)
	addAskers(t, l, s)
	s.gate = openGate(t, l, s.watch.Load().Share)
	requireCarried(t, s)
	return s
}

// requireCarried ends the test unless nothing is lost for a while in which nothing is changed. What a machine loses that does not carry the
// clients says nothing of a switch, and goes on for an hour.
func requireCarried(t *testing.T, s *shop) {
	t.Helper()
	quiet := s.during(t, "before anything is changed", func() {
		enough := time.Now().Add(quietFor)
		must(t, s.watch.Await(t.Context(), settled, "traffic on a quiet cluster", traffic.All, traffic.Until(enough)))
	})
	if quiet.requireNothingLost(t, traffic.Permitted); t.Failed() {
		t.Fatal("this machine does not carry the test's clients\nhint: end what runs beside, or take one with faster processors")
	}
	t.Log(s.watch.Load())
}

// quietFor is how long clients call before anything is changed.
const quietFor = 15 * time.Second

// switchRates are those of each client for each Service and way, where the machine carries them.
func switchRates() traffic.Rates { return traffic.Rates{Request: 10, LookUp: 1} }

// dnsRate is how many look-ups a second all nodes have together of one name. They ask again as resolvers do: on two cores, a name server that
// does not run for a second drops what its receive buffer does not hold, whatever the network does.
const dnsRate = 200

// asThemselves fails requests at which a caller is seen to have another address than its own.
func asThemselves(c traffic.Calls) traffic.Calls { return c }

// addMembers adds Services, and pods that call them and move like all others; and the policies that guard these Services, if there are any.
func addMembers(t *testing.T, l *lab.Lab, s *shop, seen func(traffic.Calls) traffic.Calls, policies ...runtime.Object) {
	t.Helper()
	const namespace = guardedNamespace
	front := workload.Echo{Namespace: namespace, Name: workload.GuestsMay, PartOf: workload.PartOfVariety, Replicas: 2}
	cart := workload.Echo{Namespace: namespace, Name: "cart", PartOf: workload.PartOfVariety, Replicas: 2}
	objects := slices.Concat(
		[]runtime.Object{workload.Namespace(namespace)}, front.Objects(), cart.Objects(), ledger().Stateful(), policies,
	)
	callees, err := start(t.Context(), l, namespace, objects)
	must(t, err)
	members := traffic.Call(namespace, callees, traffic.Rates{Request: 1, LookUp: 1}).As(workload.Member(), nil)
	members = seen(members)
	members.Client = "member"
	must(t, s.watch.AddRoving(t.Context(), l.Client(), l.NodeNames(), members))
	must(t, s.watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady))
}

// ledger is the StatefulSet of the guarded namespace.
func ledger() workload.Echo {
	return workload.Echo{Namespace: guardedNamespace, Name: "ledger", PartOf: workload.PartOfVariety, Replicas: 2}
}

// addAskers has all nodes ask for the pods of the StatefulSet, which have no common address.
func addAskers(t *testing.T, l *lab.Lab, s *shop) {
	t.Helper()
	name := workload.Headless(ledger().Name)
	calls := traffic.Calls{Namespace: shopNamespace, Client: "asker", Targets: map[traffic.Via][]probe.Target{traffic.ByLookUp: {
		{
			Name:    name,
			Kind:    probe.DNS,
			Address: name + "." + guardedNamespace + ".svc.cluster.local.",
			Rate:    dnsRate / float64(len(l.NodeNames())),
		},
	}}}
	must(t, s.watch.Add(t.Context(), l.Client(), l.NodeNames(), calls.FromHost()))
	must(t, s.watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady))
}

// killedOnTheWay runs apply, and kills it on the way: as the new network comes, as a node is emptied, as it is switched, and as it is tried.
func killedOnTheWay(t *testing.T, l *lab.Lab, file string) {
	t.Helper()
	for _, moment := range []func(engine.Event) bool{
		eventOf(engine.StepStarted, "started/node1"), eventOf(engine.StepStarted, "drain/node1"), eventOf(engine.StepStarted, "switch/node1"),
		eventOf(engine.StepStarted, "canary/node2"), eventOf(engine.StepStarted, "uncordon/node2"),
	} {
		o := operator{lab: l, killAt: moment}
		if _, code, _ := o.attend(
			t,
			command(t, "replumb", "apply", "-f", file, "--yes", "-o", "json", "--kubeconfig", l.Kubeconfig()),
		); code != -1 {
			t.Fatalf("apply ended with exit code %d before the event came", code)
		}
	}
	shown(t, l, "apply", "-f", file, "--yes")
}

// thereAndBack goes to a network, with replumb killed on the way, and back. It returns what clients lived through on the way there.
func thereAndBack(t *testing.T, l *lab.Lab, s *shop, file, name, there, back string) span {
	t.Helper()
	way := s.during(t, "the way there by "+name, func() { killedOnTheWay(t, l, file) })
	way.requireNothingLost(t, traffic.Permitted)
	requireAddressesIn(t, l, guardedNamespace, netip.MustParsePrefix(there))
	home := s.during(t, "the way back by "+name, func() { shown(t, l, "rollback", name, "--yes") })
	home.requireNothingLost(t, traffic.Permitted)
	requireAddressesIn(t, l, guardedNamespace, netip.MustParsePrefix(back))
	return way
}

// requirePoliciesHold fails the test unless the policies of the guarded namespace deny what they forbid. Guests come and go with it.
func requirePoliciesHold(t *testing.T, l *lab.Lab, s *shop) {
	t.Helper()
	services, err := l.Client().CoreV1().Services(guardedNamespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	var callees []traffic.Callee
	for i := range services.Items {
		if at := services.Items[i].Spec.ClusterIP; at != corev1.ClusterIPNone {
			callees = append(callees, traffic.Callee{Name: services.Items[i].Name, Address: at})
		}
	}
	for _, calls := range callsOf(guardedNamespace, callees, traffic.Rates{Request: 1, Forbidden: 1}) {
		if calls.Client != "guest" {
			continue
		}
		watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), calls)
		must(t, err)
		guests := &shop{watch: watch, prompt: traffic.OfPods()}
		guests.awaitVerdicts(t)
		watch.Stop()
		for _, node := range l.NodeNames() { // nothing would replace them: the next switch would wait for their end
			err := l.Client().CoreV1().Pods(guardedNamespace).Delete(t.Context(), calls.Client+"-"+node, metav1.DeleteOptions{})
			must(t, err)
		}
	}
}

// switchForGood goes to a network and finishes. Nothing of the old one is left on nodes.
func switchForGood(t *testing.T, l *lab.Lab, s *shop, file, name, pods, gone string) {
	t.Helper()
	there := s.during(t, "the switch for good by "+name, func() { shown(t, l, "apply", "-f", file, "--yes") })
	there.requireNothingLost(t, traffic.Permitted)
	requireAddressesIn(t, l, guardedNamespace, netip.MustParsePrefix(pods))
	finish := s.during(t, "finish of "+name, func() { shown(t, l, "finish", name, "--yes") })
	finish.requireNothingLost(t, traffic.Permitted)
	for _, node := range l.NodeNames() {
		links, err := l.Exec(t.Context(), node, "ip", "-br", "link")
		if err != nil || strings.Contains(string(links), gone) {
			t.Errorf("%s has (%v):\n%s", node, err, links)
		}
		files, err := l.Exec(t.Context(), node, "ls", "/etc/cni/net.d")
		if err != nil || strings.Contains(string(files), "replumb") || strings.Contains(string(files), gone) {
			t.Errorf("%s has (%v):\n%s", node, err, files)
		}
		if out, err := l.Exec(t.Context(), node, "/bin/sh", "-c", "nft list tables | grep crossing || true"); err != nil || len(out) > 0 {
			t.Errorf("%s still keeps addresses between both networks (%v): %s", node, err, out)
		}
	}
	requireNoTrace(t, l)
}

// requireUncrossedLoses is the control for policies: in the middle of a switch, without what keeps pods' addresses between both networks, a
// policy refuses pods that it lets in, since it sees a node.
func requireUncrossedLoses(t *testing.T, l *lab.Lab, s *shop, file string) {
	t.Helper()
	o := operator{lab: l, killAt: eventOf(engine.StepStarted, "cordon/node3")}
	if _, code, _ := o.attend(
		t, command(t, "replumb", "apply", "-f", file, "--yes", "-o", "json", "--kubeconfig", l.Kubeconfig()),
	); code != -1 {
		t.Fatalf("apply ended with exit code %d before the last node", code)
	}
	lost := s.during(t, "a boundary that hides pods", func() {
		sets := l.Client().AppsV1().DaemonSets(v1alpha1.SystemNamespace)
		must(t, sets.Delete(t.Context(), toCalico+"-crossing", metav1.DeleteOptions{}))
		eventually(t, settled, func() error {
			pods, err := l.Client().CoreV1().Pods(v1alpha1.SystemNamespace).List(t.Context(), metav1.ListOptions{
				LabelSelector: "replumb.dev/on-node=cross",
			})
			if err == nil && len(pods.Items) > 0 {
				err = fmt.Errorf("%d pods are left", len(pods.Items))
			}
			return err
		})
		for _, node := range l.NodeNames() {
			if out, err := l.Exec(t.Context(), node, "nft", "delete", "table", "ip", "replumb-crossing"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		awaitReports(t, s)
	})
	stats := lost.stats(t, traffic.All)
	if stats.Failed == 0 {
		t.Errorf("none of %d requests was lost without pods' own addresses: the test proves nothing", stats.Sent)
	}
	t.Logf("control: where both networks hide pods, %d of %d requests were lost", stats.Failed, stats.Sent)
	shown(t, l, "rollback", toCalico, "--yes")
	must(t, s.watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady))
}

// requireDrainedLoses is the control for the switch as a whole: the old network goes before the new one comes.
func requireDrainedLoses(t *testing.T, l *lab.Lab, s *shop, to v1alpha1.CNIName) {
	t.Helper()
	file := writeSwitchAs(t, l, to, "Drained")
	lost := s.during(t, "one network after the other", func() {
		shown(t, l, "apply", "-f", file, "--accept-downtime", "--yes")
	})
	stats := lost.stats(t, traffic.All)
	if stats.Failed == 0 {
		t.Errorf("none of %d requests was lost with one network after the other: the test proves nothing", stats.Sent)
	}
	t.Logf("control: with one network after the other, %d of %d requests were lost", stats.Failed, stats.Sent)
}

func switchName(to v1alpha1.CNIName, mode v1alpha1.CNIMode) string {
	return strings.ToLower(fmt.Sprintf("to-%s-%s", to, mode))
}

func writeSwitch(t *testing.T, l *lab.Lab, to v1alpha1.CNIName) string {
	t.Helper()
	return writeSwitchAs(t, l, to, v1alpha1.CNIInPlace)
}

// rangeOf is what pods get their addresses from with a network: two that replace each other have different ones.
func rangeOf(to v1alpha1.CNIName) string {
	if to == v1alpha1.Flannel {
		return oldPods
	}
	return newPods
}

func writeSwitchAs(t *testing.T, l *lab.Lab, to v1alpha1.CNIName, mode v1alpha1.CNIMode) string {
	t.Helper()
	return writeSwitchIn(t, l, to, mode, rangeOf(to))
}

func writeSwitchIn(t *testing.T, l *lab.Lab, to v1alpha1.CNIName, mode v1alpha1.CNIMode, pods string) string {
	t.Helper()
	manifests := map[v1alpha1.CNIName]func(*lab.Lab, netip.Prefix) ([]byte, error){
		v1alpha1.Calico: lab.CalicoManifests, v1alpha1.Flannel: lab.FlannelManifests, v1alpha1.Cilium: lab.CiliumManifests,
	}
	body, err := manifests[to](l, netip.MustParsePrefix(pods))
	must(t, err)
	text := fmt.Sprintf(`apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: %s}
spec:
  cni:
    to: %s
    mode: %s
    policies: Drop
    manifests: [network.yaml]
    podCIDR: %s
    vouch: {kubeProxy: true}
    inPlace: {timeout: 3m, workloads: 2}
  proof: {agents: Disabled}
  image: %q
`, switchName(to, mode), to, mode, pods, workload.ReplumbImage)
	return writeWithManifests(t, body, text)
}

// watchedBy has agents on every node watch a Migration that a file has, which a loss ends at once.
func watchedBy(t *testing.T, file string) string {
	t.Helper()
	return rewrite(t, file, func(text string) string {
		return strings.Replace(text, "  proof: {agents: Disabled}\n", "  proof: {agents: Enabled, wait: 1m, soak: 5s}\n", 1)
	})
}

// writeWithManifests writes a Migration, and beside it what it names network.yaml.
func writeWithManifests(t *testing.T, manifests []byte, migration string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string][]byte{"network.yaml": manifests, "cni.yaml": []byte(migration)} {
		must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	return filepath.Join(dir, "cni.yaml")
}

// awaitReports waits until all clients have said what ten seconds from now on were like.
func awaitReports(t *testing.T, s *shop) {
	t.Helper()
	reported := traffic.Until(time.Now().Add(10 * time.Second))
	must(t, s.watch.Await(t.Context(), settled, "ten seconds of reports", traffic.All, reported))
}
