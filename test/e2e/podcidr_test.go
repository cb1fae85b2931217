package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

const (
	varietyNamespace = "variety"
	// byHosts is where nodes themselves call pods.
	byHosts = "by-hosts"
	// atOnce is where all pods are deleted at once.
	atOnce = "at-once"
	// movedTo is the target of the pods' range.
	movedTo = "10.245.0.0/16"
	// apart is the range of a pool that no pod gets an address of unless it asks for it, as the clients do that call
	// throughout: replumb has no business with them.
	apart     = "10.250.0.0/24"
	apartPool = "apart"
	// poolsAnnotation asks for an address of one of these pools.
	poolsAnnotation = "cni.projectcalico.org/ipv4pools"
)

// testPodCIDR moves every pod of an application with workloads of all kinds to another range and finishes, under traffic of clients that
// stay, of clients that are restarted too, and of nodes themselves. No request towards a Service is lost, and what NetworkPolicies allow
// and deny is the same throughout. The controls restart pods the naive way, which loses, and take the policies away. TestPodCIDR goes
// back as well.
func testPodCIDR(t *testing.T, l *lab.Lab) {
	m := newPodMove(t, l)
	t.Cleanup(func() { removeNamespaces(t, l, varietyNamespace, byHosts) })
	m.apply(t)
	m.finish(t)
	requireAllAtOnceLoses(t, l)
	removeNamespaces(t, l, atOnce) // whose clients take the time of others
	requireVerdictsAreThePolicies(t, l, m.s, varietyNamespace)
}

// TestPodCIDR moves every pod to another range, back, and there again for good. A further control moves the addresses of tunnels the
// naive way.
func TestPodCIDR(t *testing.T) {
	l := bringUp(t, withCalico("e2e-pods"))
	m := newPodMove(t, l)
	m.apply(t)
	back := m.s.during(t, "the way back", func() { shown(t, l, "rollback", "pods", "--yes") })
	back.requireUnharmed(t)
	back.requireHostsConnectOnceMore(t)
	requireSettledIn(t, l, m.from)

	m.apply(t)
	m.finish(t)
	requireUnheldBreaks(t, l, m.s)
	requireAllAtOnceLoses(t, l)
	requireVerdictsAreThePolicies(t, l, m.s, varietyNamespace)
}

// podMove is a migration of all pods of a lab to another range, under traffic.
type podMove struct {
	l        *lab.Lab
	s        *shop
	from, to netip.Prefix
	file     string
}

func newPodMove(t *testing.T, l *lab.Lab) *podMove {
	t.Helper()
	m := &podMove{l: l, from: l.Topology.PodCIDR, to: netip.MustParsePrefix(movedTo)}
	m.s = varietyUnderTraffic(t, l)
	m.file = writePodMigration(t, "pods", m.from, m.to)
	requirePodsIn(t, l, m.from)
	return m
}

// apply moves the pods, and fails the test for what is lost or stays behind.
func (m *podMove) apply(t *testing.T) {
	t.Helper()
	moved := m.s.during(t, "the move", func() { shown(t, m.l, "apply", "-f", m.file) })
	moved.requireUnharmed(t)
	moved.requireNothingLost(t, fromHosts)
	requirePodsIn(t, m.l, m.to)
	requireTunnelsIn(t, m.l, m.to)
	requireGone(t, m.l, workload.BarePodName)
}

// finish gives the old range up, and fails the test for what is lost or left.
func (m *podMove) finish(t *testing.T) {
	t.Helper()
	finish := m.s.during(t, "finish", func() { shown(t, m.l, "finish", "pods", "--yes") })
	finish.requireUnharmed(t)
	finish.requireHostsConnectOnceMore(t)
	requireSettledIn(t, m.l, m.to)
}

// shown runs a command of replumb that takes minutes to its successful end, and logs what it says as it says it.
func shown(t *testing.T, l *lab.Lab, args ...string) {
	t.Helper()
	cmd := command(t, "replumb", append(args, "--kubeconfig", l.Kubeconfig())...)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = cmd.Stdout
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		t.Logf("%s %s", time.Now().Format(time.TimeOnly), lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("replumb %s: %v", args[0], err)
	}
}

// varietyUnderTraffic starts the application, and clients of it: on every node one that stays where it is, with an address
// of a pool of its own, and one that a Deployment keeps, which moves like everything else.
func varietyUnderTraffic(t *testing.T, l *lab.Lab) *shop {
	t.Helper()
	createApart(t, l)
	objects := append([]runtime.Object{workload.Namespace(varietyNamespace)}, workload.Variety(varietyNamespace)...)
	callees, err := start(t.Context(), l, varietyNamespace, objects)
	must(t, err)
	var staying, moving []traffic.Calls
	for _, c := range callsOf(varietyNamespace, callees, podRates()) {
		staying = append(staying, c.As(c.Labels, map[string]string{poolsAnnotation: `["` + apartPool + `"]`}))
	}
	for _, c := range callsOf(varietyNamespace, callees, podRates()) {
		c.Client = "moving-" + c.Client
		moving = append(moving, c)
	}
	staying = append(staying, hostsCall(t, l))
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), staying...)
	must(t, err)
	t.Cleanup(watch.Stop)
	for _, c := range moving {
		must(t, watch.AddRoving(t.Context(), l.Client(), l.NodeNames(), c))
	}
	s := &shop{watch: watch, prompt: traffic.OfPods()}
	s.awaitVerdicts(t)
	return s
}

// podRates leave two cores the time to restart a pod network under them: some 50 clients and Services multiply them.
func podRates() traffic.Rates {
	return traffic.Rates{Request: 1, Stream: 1, LookUp: 1, Forbidden: 1}
}

// hostsCall has clients on the nodes' own network keep connections to pods of the other node that stay where they are,
// through the tunnels whose addresses change.
func hostsCall(t *testing.T, l *lab.Lab) traffic.Calls {
	t.Helper()
	var targets []probe.Target
	for _, node := range l.NodeNames() {
		pod := workload.Echo{Namespace: byHosts, Name: "at-" + node, PartOf: "hosts"}.Pod()
		pod.Spec.NodeName, pod.Annotations = node, map[string]string{poolsAnnotation: `["` + apartPool + `"]`}
		if _, err := start(t.Context(), l, byHosts, []runtime.Object{workload.Namespace(byHosts), pod}); err != nil {
			t.Fatal(err)
		}
		has, err := l.Client().CoreV1().Pods(byHosts).Get(t.Context(), pod.Name, metav1.GetOptions{})
		must(t, err)
		targets = append(targets, probe.Target{
			Name: pod.Name, Kind: probe.Stream, Address: net.JoinHostPort(has.Status.PodIP, strconv.Itoa(workload.TCPPort)), Rate: 5,
		})
	}
	return traffic.Calls{Namespace: byHosts, Targets: map[traffic.Via][]probe.Target{traffic.ByStream: targets}}.FromHost()
}

func createApart(t *testing.T, l *lab.Lab) {
	t.Helper()
	pool := calico.Empty("IPPool", apartPool)
	spec := map[string]any{
		"cidr": apart, "blockSize": int64(28), "ipipMode": "Never", "vxlanMode": "Always", "natOutgoing": true,
		"nodeSelector": "!all()", // Calico gives out addresses of it only to who asks
	}
	must(t, unstructured.SetNestedMap(pool.Object, spec, "spec"))
	if err := clusterClient(t, l).Create(t.Context(), pool); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func clusterClient(t *testing.T, l *lab.Lab) client.Client {
	t.Helper()
	c, err := client.New(l.RESTConfig(), client.Options{})
	must(t, err)
	return c
}

// requireUnharmed fails the test for every request towards a Service that was lost, and every verdict that was not as ever.
func (sp span) requireUnharmed(t *testing.T) {
	t.Helper()
	sp.requireNothingLost(t, func(s traffic.Source) bool { return traffic.Permitted(s) && !fromHosts(s) })
	sp.requireDenied(t)
	moving := sp.stats(t, func(s traffic.Source) bool { return strings.HasPrefix(s.Client, "moving-") })
	if moving.Sent == 0 {
		t.Errorf("%s: clients that move sent nothing", sp.what)
	}
}

func fromHosts(s traffic.Source) bool { return s.Namespace == byHosts }

// requireHostsConnectOnceMore fails the test if what a node has open to a pod broke more than once: when the address that
// its tunnel had is given up for good, it is ended.
func (sp span) requireHostsConnectOnceMore(t *testing.T) {
	t.Helper()
	for from, series := range sp.heard {
		if !fromHosts(from) {
			continue
		}
		losses := series.Between(sp.from, sp.to).Losses()
		if len(losses) > 1 || len(losses) == 1 && losses[0].Failed > 1 {
			t.Errorf("%s: %s broke more than once: %+v", sp.what, from, losses)
		}
	}
}

func writePodMigration(t *testing.T, name string, from, to netip.Prefix) string {
	t.Helper()
	return writeSpec(t, name, `
  podCIDR:
    from: [%s]
    to: [%s]
    roll: {parallel: 2, barePods: Evict}
  image: %s
  proof: {agents: Disabled}
`, from, to, workload.ReplumbImage)
}

// requirePodsIn fails the test unless every pod that has an address of its own, clients that stay aside, has one of the
// range.
func requirePodsIn(t *testing.T, l *lab.Lab, cidr netip.Prefix) {
	t.Helper()
	pods, err := l.Client().CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	stays := netip.MustParsePrefix(apart)
	in := 0
	for i := range pods.Items {
		p := &pods.Items[i]
		for _, a := range calico.PodAddresses(p) {
			switch {
			case cidr.Contains(a):
				in++
			case !stays.Contains(a):
				t.Errorf("pod %s/%s has address %s, not one of %s", p.Namespace, p.Name, a, cidr)
			}
		}
	}
	t.Logf("%d pods have addresses of %s", in, cidr)
}

// requireGone fails the test if the pod, which is not started again, is still there.
func requireGone(t *testing.T, l *lab.Lab, name string) {
	t.Helper()
	_, err := l.Client().CoreV1().Pods(varietyNamespace).Get(t.Context(), name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("pod %s: %v, not that it is gone", name, err)
	}
}

// requireSettledIn fails the test unless everything is in the range, and nothing tells that it was ever elsewhere.
func requireSettledIn(t *testing.T, l *lab.Lab, cidr netip.Prefix) {
	t.Helper()
	requirePodsIn(t, l, cidr)
	requireTunnelsIn(t, l, cidr)
	requirePools(t, l, cidr)
	requireNoTrace(t, l)
	requireNothingHeld(t, l)
}

// requireNothingHeld fails the test if a node keeps an address that its tunnel had, or Calico one in reserve.
func requireNothingHeld(t *testing.T, l *lab.Lab) {
	t.Helper()
	requireNothingOnLoopback(t, l)
	err := clusterClient(t, l).Get(t.Context(), client.ObjectKey{Name: "replumb-pods"}, calico.Empty("IPReservation", ""))
	if !apierrors.IsNotFound(err) {
		t.Errorf("the reservation of tunnels' addresses: %v", err)
	}
}

func requireNothingOnLoopback(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, node := range l.NodeNames() {
		out, err := l.Exec(t.Context(), node, "ip", "-4", "-oneline", "address", "show", "dev", "lo")
		must(t, err)
		if n := strings.Count(string(out), "\n"); n != 1 {
			t.Errorf("the loopback interface of %s has %d addresses:\n%s", node, n, out)
		}
	}
}

// requirePools fails the test unless there is only that pool beside the clients', it gives addresses out, and nothing in
// Calico's data is amiss.
func requirePools(t *testing.T, l *lab.Lab, cidr netip.Prefix) {
	t.Helper()
	// Calico's own daemons take a moment to give back the addresses of pods that have just ended.
	eventually(t, settled, func() error {
		state, err := calico.Load(t.Context(), clusterClient(t, l))
		if err != nil {
			return err
		}
		var enabled []netip.Prefix
		for _, p := range state.Pools {
			if p.Name != apartPool && !p.Spec.Disabled {
				enabled = append(enabled, p.CIDR)
			}
		}
		if len(state.Pools) != 2 || !slices.Equal(enabled, []netip.Prefix{cidr}) {
			return fmt.Errorf("there are %d pools, of which %v are enabled", len(state.Pools), enabled)
		}
		return audit(t, l, state)
	})
}

func audit(t *testing.T, l *lab.Lab, state *calico.State) error {
	t.Helper()
	pods, err := l.Client().CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	nodes, err := l.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	var all []error
	for _, p := range state.Audit(pods.Items, nodes.Items) {
		all = append(all, errors.New(p.String()))
	}
	return errors.Join(all...)
}

// requireUnheldBreaks is the control for what nodes have open to pods of other nodes: when their tunnels are moved the naive
// way, by disabling the pool, it must break.
func requireUnheldBreaks(t *testing.T, l *lab.Lab, s *shop) {
	t.Helper()
	const third, thirdPool = "10.246.0.0/16", "third"
	c := clusterClient(t, l)
	disable := func(name string, disabled bool) {
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"disabled":%t}}`, disabled))
		must(t, c.Patch(t.Context(), calico.Empty("IPPool", name), patch))
	}
	state, err := calico.Load(t.Context(), c)
	must(t, err)
	now := state.Pools[slices.IndexFunc(state.Pools, func(p calico.Pool) bool { return p.Name != apartPool })]
	other := calico.Empty("IPPool", thirdPool)
	other.Object["spec"] = map[string]any{
		"cidr": third, "blockSize": int64(26), "ipipMode": "Never", "vxlanMode": "Always", "natOutgoing": true, "nodeSelector": "all()",
	}
	must(t, c.Create(t.Context(), other))
	broken := s.during(t, "moving tunnels the naive way", func() {
		began := time.Now().Truncate(time.Second)
		disable(now.Name, true)
		requireTunnelsIn(t, l, netip.MustParsePrefix(third))
		eventually(t, settled, func() error {
			if (span{from: began, to: time.Now(), heard: s.watch.Snapshot()}).stats(t, fromHosts).Failed == 0 {
				return errors.New("nothing was lost")
			}
			return nil
		})
		disable(now.Name, false)
		disable(thirdPool, true)
		requireTunnelsIn(t, l, now.CIDR)
	})
	total := broken.stats(t, fromHosts)
	t.Logf("control: moving tunnels the naive way lost %d of %d requests of nodes", total.Failed, total.Sent)
	must(t, c.Delete(t.Context(), other))
}

// requireAllAtOnceLoses is the control: when all pods of a similar application are deleted at once, the same probes must
// see losses.
func requireAllAtOnceLoses(t *testing.T, l *lab.Lab) {
	t.Helper()
	s := guarded(t, l, atOnce)
	began := time.Now().Truncate(time.Second)
	lost := s.during(t, "deleting all pods at once", func() {
		of := metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=" + workload.PartOfVariety}
		var now int64
		err := l.Client().CoreV1().Pods(atOnce).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now}, of)
		must(t, err)
		eventually(t, settled, func() error {
			soFar := span{from: began, to: time.Now(), heard: s.watch.Snapshot()}
			if soFar.stats(t, traffic.Permitted).Failed == 0 {
				return errors.New("nothing was lost")
			}
			return nil
		})
	})
	total := lost.stats(t, traffic.Permitted)
	t.Logf("control: deleting all pods at once lost %d of %d requests", total.Failed, total.Sent)
}
