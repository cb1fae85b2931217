package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

const (
	shopNamespace   = "shop"
	furtherServices = 16
	// minRequests is how many requests each move must have survived to count, where the machine carries the clients at their full rates.
	minRequests = 10_000
	settled     = time.Minute
)

// Requests per second, client and target, where the machine carries them. With three times as many, clients alone took half a core.
func rates() traffic.Rates { return traffic.Rates{Request: 12, Stream: 5, LookUp: 5} }

// naiveRates are those of the control, which is over in seconds.
func naiveRates() traffic.Rates { return traffic.Rates{Request: 36} }

// shop is the example application in the shared lab, with clients on every node that never stop calling.
type shop struct {
	watch *traffic.Watch
	// gate is a node port that is connected to meanwhile; nil if none is.
	gate *gate
	// prompt is how answers may differ from those before anything was changed; as of a move of Services if it is zero.
	prompt traffic.Promptness
}

// shopUnderTraffic starts the shop for the first test that asks, with clients that call until the test of its lab ends. Later ones find it
// at whatever addresses it has then; old addresses are those it had at first.
func shopUnderTraffic(t *testing.T, l *lab.Lab) func(*testing.T) *shop {
	ctx := t.Context()
	once := sync.OnceValues(func() (*shop, error) {
		callees, err := openShop(ctx, l)
		if err != nil {
			return nil, err
		}
		calls := traffic.Call(shopNamespace, callees, rates()).AndKeep(callees, rates())
		watch, err := traffic.Start(ctx, l.Client(), l.NodeNames(), calls)
		if err != nil {
			return nil, err
		}
		return &shop{watch: watch}, nil
	})
	return func(t *testing.T) *shop {
		t.Helper()
		s, err := once()
		must(t, err)
		t.Log(s.watch.Load())
		return s
	}
}

// openShop creates the shop in a lab.
func openShop(ctx context.Context, l *lab.Lab) ([]traffic.Callee, error) {
	objects := []runtime.Object{workload.Namespace(shopNamespace)}
	for _, echo := range workload.Shop(shopNamespace) {
		objects = append(objects, echo.Objects()...)
	}
	return start(ctx, l, shopNamespace, append(objects, workload.FurtherServices(shopNamespace, furtherServices)...))
}

// start creates objects, waits until they are ready and returns the Services that stand before a Deployment.
func start(ctx context.Context, l *lab.Lab, namespace string, objects []runtime.Object) ([]traffic.Callee, error) {
	if l.Topology.Installer != lab.ByLab {
		spreadOverWorkers(objects)
	}
	if err := workload.Ensure(ctx, l.Client(), objects...); err != nil {
		return nil, err
	}
	if err := workload.WaitReady(ctx, l.Client(), settled, objects...); err != nil {
		return nil, err
	}
	services, err := l.Client().CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var callees []traffic.Callee
	for _, s := range services.Items {
		if len(s.Labels) > 0 { // the further ones have none
			callees = append(callees, traffic.Callee{Name: s.Name, Address: s.Spec.ClusterIP})
		}
	}
	return callees, nil
}

// spreadOverWorkers leaves control planes, where they are nodes, out of what pods are spread over.
func spreadOverWorkers(objects []runtime.Object) {
	for _, o := range objects {
		var pods *corev1.PodTemplateSpec
		switch o := o.(type) {
		case *appsv1.Deployment:
			pods = &o.Spec.Template
		case *appsv1.StatefulSet:
			pods = &o.Spec.Template
		default:
			continue
		}
		for i := range pods.Spec.TopologySpreadConstraints {
			pods.Spec.TopologySpreadConstraints[i].NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor)
		}
	}
}

// span is a stretch of time in which clients were watched.
type span struct {
	what     string
	from, to time.Time
	heard    map[traffic.Source]probe.Series
	load     traffic.Load
	prompt   traffic.Promptness
	// gate is what was seen of a node port, by node.
	gate map[string]knocks
}

// during runs do and returns what clients lived through meanwhile, and for two seconds more.
func (s *shop) during(t *testing.T, what string, do func()) span {
	t.Helper()
	from := time.Now().Truncate(time.Second)
	if s.gate == nil {
		do()
		return s.since(t, what, from)
	}
	s.gate.open()
	do()
	lived := s.since(t, what, from)
	lived.gate = s.gate.seen()
	return lived
}

func (s *shop) since(t *testing.T, what string, from time.Time) span {
	t.Helper()
	to := time.Now().Truncate(time.Second).Add(3 * time.Second)
	must(t, s.watch.Await(t.Context(), settled, "traffic after "+what, traffic.All, traffic.Until(to)))
	return span{what: what, from: from, to: to, heard: s.watch.Snapshot(), load: s.watch.Load(), prompt: s.prompt}
}

// stats adds up what the chosen sources saw.
func (sp span) stats(t *testing.T, chosen func(traffic.Source) bool) probe.Stats {
	t.Helper()
	var all []probe.Stats
	for from, series := range sp.heard {
		if chosen(from) {
			stats, err := series.Between(sp.from, sp.to).Stats()
			must(t, err)
			all = append(all, stats)
		}
	}
	return probe.Merge(all...)
}

// shownLosses bounds how many stretches of failures a test prints: a machine that stands still for minutes has thousands.
const shownLosses = 100

// requireNothingLost fails the test if the chosen sources saw failures, and names the stretches of them.
func (sp span) requireNothingLost(t *testing.T, chosen func(traffic.Source) bool) {
	t.Helper()
	stretches := 0
	for from, series := range sp.heard {
		if !chosen(from) {
			continue
		}
		for _, loss := range series.Between(sp.from, sp.to).Losses() {
			if stretches++; stretches > shownLosses {
				continue
			}
			t.Errorf("%s: %s lost %d from %s to %s: %s, such as %s", sp.what, from, loss.Failed,
				loss.Start.Format(time.StampMilli), loss.End.Format(time.StampMilli), probe.FormatErrors(loss.Errors), loss.Example)
		}
	}
	if more := stretches - shownLosses; more > 0 {
		t.Errorf("%s: and %d stretches of failures more", sp.what, more)
	}
	for node, knocks := range sp.gate {
		if knocks.Failed() > 0 || knocks.Tried == 0 {
			t.Errorf("%s: the node port at %s: %s, from %s to %s", sp.what, node, knocks,
				knocks.First.Format(time.StampMilli), knocks.Last.Format(time.StampMilli))
		} else {
			t.Logf("%s: the node port at %s: %s", sp.what, node, knocks)
		}
	}
	if broken := sp.reconnects(chosen); broken > 0 {
		t.Errorf("%s: %d long-lived connections broke", sp.what, broken)
	}
	for _, v := range slices.Concat(traffic.Ways(), traffic.ClusterWays(), traffic.OutsideWays()) {
		way := sp.stats(t, func(s traffic.Source) bool { return s.Via == v && chosen(s) })
		if way.Sent > 0 {
			t.Logf(
				"%s, %s: %d requests, %d failed, %d late, %d not measured, longest gap %s, p99 %s",
				sp.what,
				v,
				way.Sent,
				way.Failed,
				way.Late,
				way.NotMeasured,
				way.LongestGap.Round(time.Millisecond),
				way.Percentile(99).Round(time.Millisecond),
			)
		}
	}
	sp.requireMeasured(t, chosen)
	sp.requirePrompt(t, chosen)
}

// requireMeasured ends the test if the machine kept too many requests from being measured: nothing is said of the others then.
func (sp span) requireMeasured(t *testing.T, chosen func(traffic.Source) bool) {
	t.Helper()
	total := sp.stats(t, chosen)
	if err := probe.Measured(total.Sent, total.NotMeasured); err != nil {
		t.Fatalf("%s: %v", sp.what, err)
	}
}

// requirePrompt fails the test if Services did not answer as soon as they did before anything was changed.
func (sp span) requirePrompt(t *testing.T, chosen func(traffic.Source) bool) {
	t.Helper()
	for v, err := range sp.unprompt(t, chosen) {
		t.Errorf("%s, %s: %v", sp.what, v, err)
	}
}

// unprompt says of which ways the answers were worse than before. API servers are restarted by tests themselves, and their clients have their
// own patience.
func (sp span) unprompt(t *testing.T, chosen func(traffic.Source) bool) map[traffic.Via]error {
	t.Helper()
	may := sp.prompt
	if may == (traffic.Promptness{}) {
		may = traffic.OfServices()
	}
	worse := map[traffic.Via]error{}
	for _, v := range append(traffic.Ways(), traffic.ByNewAddress) {
		way := sp.stats(t, func(s traffic.Source) bool { return s.Via == v && chosen(s) })
		if err := may.Check(sp.load.Baseline, way); err != nil {
			worse[v] = err
		}
	}
	return worse
}

// reconnects is how many long-lived connections of the chosen sources broke.
func (sp span) reconnects(chosen func(traffic.Source) bool) (broken int) {
	for from, series := range sp.heard {
		if !chosen(from) {
			continue
		}
		for _, w := range series.Between(sp.from, sp.to) {
			broken += w.Reconnects
		}
	}
	return broken
}

// requireEnough fails the test unless the client of every node sent its share of minRequests, at the rates that the machine carries.
func (sp span) requireEnough(t *testing.T, nodes []string) {
	t.Helper()
	want := int(minRequests * sp.load.Share / float64(len(nodes)))
	for _, node := range nodes {
		got := sp.stats(t, func(s traffic.Source) bool { return s.Node == node && s.Via != traffic.ByLookUp }).Sent
		if got < want {
			t.Errorf("%s: the client on %s sent %d requests, which prove little; want %d", sp.what, node, got, want)
		}
	}
}

// requireNaiveLoses is the control: the same probes, at a Service that is moved by deleting and recreating it, must
// see losses. Otherwise their silence about replumb means nothing.
func requireNaiveLoses(t *testing.T, l *lab.Lab) {
	t.Helper()
	name := strings.ToLower("control-" + strings.NewReplacer("/", "-", ".", "-", "Test", "").Replace(t.Name()))
	echo := workload.Echo{Namespace: name, Name: "cart", PartOf: "control", Replicas: 2}
	callees, err := start(t.Context(), l, name, append([]runtime.Object{workload.Namespace(name)}, echo.Objects()...))
	must(t, err)
	t.Cleanup(func() {
		_ = l.Client().CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), traffic.Call(name, callees, naiveRates()))
	must(t, err)
	defer watch.Stop()
	must(t, watch.Await(t.Context(), settled, "the control to be steady", traffic.All, traffic.Steady))
	control, began := &shop{watch: watch}, time.Now().Truncate(time.Second)
	deleteAndRecreate(t, l, name, "cart")
	var total probe.Stats
	eventually(t, settled, func() error { // the former address answers no more: how soon that is clear depends on the machine
		lived := control.since(t, "delete and recreate", began)
		total = lived.stats(t, traffic.All)
		switch {
		case total.Failed == 0:
			return fmt.Errorf("the naive way lost none of %d requests: the probes see no loss", total.Sent)
		case len(lived.unprompt(t, traffic.All)) == 0:
			return errors.New("the naive way was as prompt as before it began: the probes see no gap")
		}
		return nil
	})
	t.Logf("control: the naive way lost %d of %d requests", total.Failed, total.Sent)
}

func deleteAndRecreate(t *testing.T, l *lab.Lab, namespace, name string) {
	t.Helper()
	services := l.Client().CoreV1().Services(namespace)
	old, err := services.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	// The other address is chosen while the old one is taken: a small range, as a pinned Service keeps, may
	// have no third.
	again := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-again", Labels: old.Labels},
		Spec:       corev1.ServiceSpec{Selector: old.Spec.Selector, Ports: old.Spec.Ports},
	}
	chosen, err := services.Create(t.Context(), again, metav1.CreateOptions{})
	must(t, err)
	for _, each := range []string{chosen.Name, name} {
		must(t, services.Delete(t.Context(), each, metav1.DeleteOptions{}))
	}
	again.Name, again.Spec.ClusterIP = name, chosen.Spec.ClusterIP
	_, err = services.Create(t.Context(), again, metav1.CreateOptions{})
	must(t, err)
}
