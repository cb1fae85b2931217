package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

const (
	// Both ranges lie in bothPods, which kube-proxy shall take for pods.
	oldPods, newPods, bothPods = "10.244.0.0/16", "10.245.0.0/16", "10.244.0.0/15"
)

// everywhere is a DaemonSet, and the Service before it.
const everywhere = "everywhere"

// nodesWithRanges is a lab of its own whose Nodes carry the ranges of pods, and whose kube-proxies know old and new ones.
func nodesWithRanges(t *testing.T) *lab.Lab {
	t.Helper()
	l := bringUp(t, named("e2e-nodes"))
	must(t, l.Workers().RestartProxies(t.Context(), netip.MustParsePrefix(bothPods)))
	return l
}

// TestNodesCarryRanges moves a cluster whose Nodes carry the ranges of pods, node by node, while clients on both nodes call
// Services by name and by address. replumb is killed on the way, before, in and after the moment in which a Node is gone.
// Then everything goes back, unless time is short, and there again for good. The controller manager never ends but by the
// operator's hand, and no Service fails.
func TestNodesCarryRanges(t *testing.T) {
	l := nodesWithRanges(t)
	s := nodesUnderTraffic(t, l, traffic.Rates{Request: 10, LookUp: 5})
	before := nodesByName(t, l)
	file := writeNodes(t)

	there := s.during(t, "the move of nodes", func() {
		for _, moment := range []func(engine.Event) bool{
			eventOf(engine.StepWaiting, "drain/node1"), eventOf(engine.StepStarted, "switch/node1"),
			eventOf(engine.StepStarted, "agent/node1"), eventOf(engine.StepStarted, "switch/node2"),
		} {
			o := operator{lab: l, podCIDR: netip.MustParsePrefix(newPods), killAt: moment}
			if _, code, _ := o.attend(
				t,
				command(t, "replumb", "apply", "-f", file, "-o", "json", "--kubeconfig", l.Kubeconfig()),
			); code != -1 {
				t.Fatalf("apply ended with exit code %d before the event came", code)
			}
		}
		attendNodes(t, l, newPods, "apply", "-f", file)
	})
	there.requireNothingLost(t, traffic.All)
	there.requireEnough(t, l.NodeNames())
	requireNodesIn(t, l, newPods)
	requireSameNodes(t, before, nodesByName(t, l))

	if !testing.Short() {
		back := s.during(t, "the rollback of nodes", func() { attendNodes(t, l, oldPods, "rollback", "pods", "--yes") })
		back.requireNothingLost(t, traffic.All)
		requireNodesIn(t, l, oldPods)
		requireSameNodes(t, before, nodesByName(t, l))
		again := s.during(t, "the second move of nodes", func() { attendNodes(t, l, newPods, "apply", "-f", file) })
		again.requireNothingLost(t, traffic.All)
	}
	finish := s.during(t, "finish", func() { attendNodes(t, l, newPods, "finish", "pods", "--yes") })
	finish.requireNothingLost(t, traffic.All)
	requireNodesIn(t, l, newPods)
	requireSameNodes(t, before, nodesByName(t, l))
	requireNoTrace(t, l)
	if err := (operator{lab: l}).managersNeverExited(t.Context()); err != nil {
		t.Error(err)
	}
	requireDeletingLoses(t, l, s)
	requireManagerRefuses(t, l)
}

// nodesUnderTraffic starts workloads with more than one pod and a budget each, one with a single pod, and one on every node;
// and clients in the nodes' own network, since what is in the pod network has to move.
func nodesUnderTraffic(t *testing.T, l *lab.Lab, rates traffic.Rates) *shop {
	t.Helper()
	objects := []runtime.Object{workload.Namespace(shopNamespace)}
	for _, echo := range workload.Shop(shopNamespace) {
		d := echo.Deployment()
		// With two nodes, one of which is empty, both pods have to be on the other.
		d.Spec.Template.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.ScheduleAnyway
		objects = append(objects, d, echo.Service())
	}
	onAll := workload.Echo{Namespace: shopNamespace, Name: everywhere, PartOf: "shop"}
	callees, err := start(t.Context(), l, shopNamespace, append(objects, onAll.Service()))
	must(t, err)
	makeEverywhere(t, l, onAll)
	for _, echo := range workload.Shop(shopNamespace) {
		if echo.Replicas < 2 {
			continue
		}
		_, err := l.Client().PolicyV1().PodDisruptionBudgets(shopNamespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: echo.Name},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: echo.Deployment().Spec.Selector,
			},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	calls := traffic.Call(shopNamespace, callees, rates)
	for _, c := range callees {
		calls.Targets[traffic.ByLookUp] = append(calls.Targets[traffic.ByLookUp], probe.Target{
			Name: c.Name, Kind: probe.DNS, Address: c.Name + "." + shopNamespace + ".svc.cluster.local.", Rate: rates.LookUp,
		})
	}
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), calls.FromHost())
	must(t, err)
	t.Cleanup(watch.Stop)
	must(t, watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady))
	return &shop{watch: watch, prompt: traffic.OfPods()}
}

// makeEverywhere makes a DaemonSet of echo servers, in the pod network.
func makeEverywhere(t *testing.T, l *lab.Lab, echo workload.Echo) {
	t.Helper()
	d := echo.Deployment()
	d.Spec.Template.Spec.TopologySpreadConstraints = nil
	set := &appsv1.DaemonSet{
		ObjectMeta: d.ObjectMeta, Spec: appsv1.DaemonSetSpec{Selector: d.Spec.Selector, Template: d.Spec.Template},
	}
	if _, err := l.Client().AppsV1().DaemonSets(shopNamespace).Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEverywhere(t, l)
}

// awaitEverywhere waits until its pods are ready on every node.
func awaitEverywhere(t *testing.T, l *lab.Lab) {
	t.Helper()
	eventually(t, settled, func() error {
		now, err := l.Client().AppsV1().DaemonSets(shopNamespace).Get(t.Context(), everywhere, metav1.GetOptions{})
		if err == nil && int(now.Status.NumberReady) < len(l.NodeNames()) {
			err = fmt.Errorf("%d pods are ready", now.Status.NumberReady)
		}
		return err
	})
}

// awaitNoneEnds waits until no pod of the shop is about to end, and all are ready.
func awaitNoneEnds(t *testing.T, l *lab.Lab) {
	t.Helper()
	eventually(t, settled, func() error {
		pods, err := l.Client().CoreV1().Pods(shopNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=shop"})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
			if !p.DeletionTimestamp.IsZero() || !ready {
				return fmt.Errorf("pod %s is not ready, or ends", p.Name)
			}
		}
		return nil
	})
}

func writeNodes(t *testing.T) string {
	t.Helper()
	return writeSpec(t, "pods", `
  podCIDR:
    from: [%s]
    to: [%s]
    roll: {timeout: 3m}
    nodes: {gateWait: 3m}
  image: "replumb.local/replumb:lab"
  proof: {agents: Disabled}
`, oldPods, newPods)
}

// attendNodes runs a command of replumb to its end while the operator acts at its gates.
func attendNodes(t *testing.T, l *lab.Lab, to string, args ...string) {
	t.Helper()
	o := operator{lab: l, podCIDR: netip.MustParsePrefix(to)}
	events, code, gates := o.attend(t, command(t, "replumb", append(args, "-o", "json", "--kubeconfig", l.Kubeconfig())...))
	t.Logf("%s: acted at %v", strings.Join(args, " "), gates)
	if code != 0 {
		for _, e := range events[max(0, len(events)-8):] {
			t.Logf("%s %s %s %s", e.Kind, e.Step, e.Message, e.Error)
		}
		t.Fatalf("replumb %s: exit code %d", strings.Join(args, " "), code)
	}
}

func nodesByName(t *testing.T, l *lab.Lab) map[string]corev1.Node {
	t.Helper()
	all, err := l.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	byName := map[string]corev1.Node{}
	for _, n := range all.Items {
		byName[n.Name] = n
	}
	return byName
}

// requireSameNodes fails the test unless there are the nodes that were there, each with its labels and without traces.
func requireSameNodes(t *testing.T, was, is map[string]corev1.Node) {
	t.Helper()
	if len(was) != len(is) {
		t.Errorf("there were %d nodes, and are %d", len(was), len(is))
	}
	for name := range was {
		a, b := was[name], is[name]
		for key, value := range a.Labels {
			if b.Labels[key] != value {
				t.Errorf("node %s has lost its label %s=%s", name, key, value)
			}
		}
		if b.Spec.Unschedulable || len(b.Spec.Taints) > 0 {
			t.Errorf("node %s takes no pods: %v", name, b.Spec.Taints)
		}
	}
}

// requireNodesIn fails the test unless every pod off the hosts' network, and every Node, is in a range.
func requireNodesIn(t *testing.T, l *lab.Lab, want string) {
	t.Helper()
	in := netip.MustParsePrefix(want)
	for name, n := range nodesByName(t, l) {
		if p, err := netip.ParsePrefix(n.Spec.PodCIDR); err != nil || !in.Overlaps(p) {
			t.Errorf("node %s has %s, which is not of %s", name, n.Spec.PodCIDR, want)
		}
	}
	pods, err := l.Client().CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, p := range pods.Items {
		a, err := netip.ParseAddr(p.Status.PodIP)
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if !p.Spec.HostNetwork && !ended && p.DeletionTimestamp == nil && (err != nil || !in.Contains(a)) {
			t.Errorf("pod %s/%s has %q, which is not of %s", p.Namespace, p.Name, p.Status.PodIP, want)
		}
	}
}

// requireDeletingLoses is the control: the same clients must see losses when all pods are deleted at once.
func requireDeletingLoses(t *testing.T, l *lab.Lab, s *shop) {
	t.Helper()
	lost := s.during(t, "deleting all pods at once", func() {
		err := l.Client().CoreV1().Pods(shopNamespace).DeleteCollection(t.Context(), metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=shop"})
		must(t, err)
		awaitNoneEnds(t, l) // what follows must not get losses of this
		must(t, s.watch.Await(
			t.Context(),
			settled,
			"a second without failures",
			traffic.All,
			traffic.Until(time.Now().Add(8*time.Second)),
		))
	})
	total := lost.stats(t, traffic.All)
	if total.Failed == 0 {
		t.Errorf("deleting all pods at once lost none of %d requests: the probes see no loss", total.Sent)
	}
	t.Logf("control: deleting all pods at once lost %d of %d requests", total.Failed, total.Sent)
}

// requireManagerRefuses is the other control: a controller manager that is given one range while Nodes have another, as it
// would be without the first gate, ends as often as it is started.
func requireManagerRefuses(t *testing.T, l *lab.Lab) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 25*time.Second)
	defer stop()
	if err := l.ControlPlaneNodes().RestartControllerManagers(ctx, true, netip.MustParsePrefix(oldPods)); err == nil {
		eventually(t, settled, func() error {
			if (operator{lab: l}).managersNeverExited(t.Context()) == nil {
				return fmt.Errorf("the controller manager runs with a range that no Node has")
			}
			return nil
		})
	}
	err := (operator{lab: l}).managersNeverExited(t.Context())
	t.Logf("control: with a range that no Node has: %v", err)
	if err == nil {
		t.Error("the controller manager starts with a range that no Node has")
	}
}
