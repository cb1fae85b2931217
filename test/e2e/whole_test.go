package e2e

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// Both ends of the whole move.
const (
	oldRange, newRange = "10.96.0.0/16", "172.24.0.0/16"
	oldAPI, newAPI     = "10.96.0.1", "172.24.0.1"
	oldDNS, newDNS     = "10.96.0.10", "172.24.0.10"
)

// testWholeRange moves everything, kube-dns and kubernetes included, has pods refreshed and the API servers restarted with
// another flag, and retires the old range, while clients on an iptables node and on an nftables node call Services by
// name and by old address, over long-lived connections, ask cluster DNS and call the API server. The process is killed
// on the way, between the gates. Nothing may be lost. TestWholeRange goes back as well.
func testWholeRange(t *testing.T, l *lab.Lab) {
	forgetNamesSoon(t, l)
	s := wholeUnderTraffic(t, l)
	moveWhole(t, l, s, writeWhole(t, l, "whole", shortDrain),
		eventOf(engine.StepStarted, "hop/kube-system/kube-dns"), eventOf(engine.StepStarted, "hop/default/kubernetes"),
		eventOf(engine.StepWaiting, "retire/"))
	requireNaiveLoses(t, l)
	requireKilledAPIServersLose(t, l, s)
}

// TestWholeRange moves everything, and is killed more often on the way. Then all of it goes back. Nothing may be lost in either
// direction, and nothing be left.
func TestWholeRange(t *testing.T) {
	l := bringUp(t, highlyAvailable("e2e-whole"))
	s := wholeUnderTraffic(t, l)
	before := allServices(t, l)
	moveWhole(t, l, s, writeWhole(t, l, "whole", drain),
		eventOf(engine.StepStarted, "canary"), eventOf(engine.StepStarted, "hop/kube-system/kube-dns"),
		eventOf(engine.StepStarted, "hop/default/kubernetes"), eventOf(engine.StepWaiting, "restart/"),
		eventOf(engine.StepWaiting, "retire/"))

	back := s.during(t, "the whole rollback", func() { attend(t, l, oldRange, 0, "rollback", "whole", "--yes") })
	back.requireNothingLost(t, traffic.All)
	requireSame(t, before, allServices(t, l))
	requireWhole(t, l, oldRange)
	requireNoTrace(t, l)
	requireNaiveLoses(t, l)
	for _, address := range l.APIServers() {
		requireServes(t, address, oldAPI, newAPI)
	}
	requireKilledAPIServersLose(t, l, s)
}

// moveWhole applies a Migration of the whole range, killed at each of the moments and started again, and fails the test for
// whatever is lost or left behind.
func moveWhole(t *testing.T, l *lab.Lab, s *shop, file string, moments ...func(engine.Event) bool) {
	t.Helper()
	moved := s.during(t, "the whole move", func() {
		for _, moment := range moments {
			applyUntilAttended(t, l, file, moment)
		}
		attend(t, l, newRange, 0, "apply", "-f", file)
	})
	moved.requireNothingLost(t, traffic.All)
	moved.requireEnough(t, l.NodeNames())
	requireWhole(t, l, newRange)
}

// TestMatrixRollbackFromEveryPhase stops after each phase of apply in turn and goes back, under traffic: each time all
// Services must be as they were, field by field, and nothing be lost. That is also to and fro many times.
func TestMatrixRollbackFromEveryPhase(t *testing.T) {
	l := bringUp(t, highlyAvailable("e2e-matrix"))
	s := wholeUnderTraffic(t, l)
	file := writeWhole(t, l, "matrix", drain)
	before := allServices(t, l)
	for _, phase := range servicecidr.ApplyPhases() {
		if phase == "check" {
			continue // it leaves nothing to roll back
		}
		t.Run(phase, func(t *testing.T) {
			there := s.during(t, "apply until "+phase, func() { attend(t, l, newRange, 0, "apply", "-f", file, "--until", phase) })
			there.requireNothingLost(t, traffic.All)
			back := s.during(t, "back from "+phase, func() { attend(t, l, oldRange, 0, "rollback", "matrix", "--yes") })
			back.requireNothingLost(t, traffic.All)
			requireSame(t, before, allServices(t, l))
			requireWhole(t, l, oldRange)
			requireNoTrace(t, l)
		})
	}
	requireNaiveLoses(t, l)
}

// wholeUnderTraffic starts the shop, with Services of all kinds, and clients of it and of what the cluster offers.
func wholeUnderTraffic(t *testing.T, l *lab.Lab) *shop {
	t.Helper()
	callees, err := openShop(t.Context(), l)
	must(t, err)
	must(t, workload.Ensure(t.Context(), l.Client(), append(oddServices(), workload.Namespace(callersNamespace))...))
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(),
		traffic.Call(shopNamespace, callees, wholeRates()).AndKeep(callees, wholeRates()),
		traffic.CallAPI(callersNamespace, oldAPI, clusterRates()).AndAsk(oldDNS, clusterRates()))
	must(t, err)
	t.Cleanup(watch.Stop)
	s := &shop{watch: watch}
	s.steady(t)
	return s
}

// callersNamespace has the clients of what the cluster offers.
const callersNamespace = "callers"

// wholeRates are those of clients of the shop, clusterRates of what the cluster offers.
func wholeRates() traffic.Rates   { return traffic.Rates{Request: 6, Stream: 5, LookUp: 3} }
func clusterRates() traffic.Rates { return traffic.Rates{Request: 5, Stream: 5, LookUp: 5} }

// oddServices are Services of the other kinds: pinned, with node ports, without selector, headless.
func oddServices() []runtime.Object {
	var all []runtime.Object
	for name, spec := range map[string]corev1.ServiceSpec{
		"outside":  {Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To("example.com/none")},
		"at-nodes": {Type: corev1.ServiceTypeNodePort},
		"by-hand":  {},
		"headless": {ClusterIP: corev1.ClusterIPNone},
	} {
		spec.Ports = []corev1.ServicePort{{Port: 80}}
		all = append(all, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: shopNamespace, Name: name}, Spec: spec})
	}
	return all
}

// writeWhole writes a Migration of the whole range.
func writeWhole(t *testing.T, l *lab.Lab, name, drain string) string {
	t.Helper()
	return writeSpec(t, name, `
  serviceCIDR:
    to: [%s]
    drain: %s
    gateWait: 3m
    apiServers: [%s]
  batch: {size: 8, settle: 1s}
  tiers: [{name: further, services: [shop/further-001, shop/further-002]}, {name: shop, namespaces: [shop]}]
`, newRange, drain, strings.Join(l.APIServers(), ", "))
}

// tooling is the operator who brings the cluster's own parts to a range.
func tooling(l *lab.Lab, to string) operator {
	o := operator{
		lab:          l,
		kubernetes:   netip.MustParseAddr(newAPI),
		dns:          netip.MustParseAddr(newDNS),
		serviceCIDRs: []netip.Prefix{netip.MustParsePrefix(to)},
	}
	if to == oldRange {
		o.kubernetes, o.dns = netip.MustParseAddr(oldAPI), netip.MustParseAddr(oldDNS)
	}
	return o
}

// attend runs a command of replumb to its end while the operator acts at its gates.
func attend(t *testing.T, l *lab.Lab, to string, wantCode int, args ...string) []engine.Event {
	t.Helper()
	return attendAs(t, tooling(l, to), wantCode, args...)
}

// attendAs is attend by another operator.
func attendAs(t *testing.T, o operator, wantCode int, args ...string) []engine.Event {
	t.Helper()
	cmd := command(t, "replumb", append(args, "-o", "json", "--kubeconfig", o.lab.Kubeconfig())...)
	events, code, gates := o.attend(t, cmd)
	t.Logf("%s: acted at %v", strings.Join(args, " "), gates)
	if code != wantCode {
		for _, e := range events[max(0, len(events)-5):] {
			t.Logf("%s %s %s %s", e.Kind, e.Step, e.Message, e.Error)
		}
		t.Fatalf("replumb %s: exit code %d, want %d", strings.Join(args, " "), code, wantCode)
	}
	return events
}

// applyUntilAttended is applyUntil for a run that waits at gates on its way to the event.
func applyUntilAttended(t *testing.T, l *lab.Lab, file string, matches func(engine.Event) bool) {
	t.Helper()
	cmd := command(t, "replumb", "apply", "-f", file, "-o", "json", "--kubeconfig", l.Kubeconfig())
	o := tooling(l, newRange)
	o.killAt = matches
	if _, code, _ := o.attend(t, cmd); code != -1 {
		t.Fatalf("apply ended with exit code %d before the event came", code)
	}
}

// allServices are all Services of the cluster but those of namespaces that tests make for themselves.
func allServices(t *testing.T, l *lab.Lab) map[string]corev1.Service {
	t.Helper()
	services := map[string]corev1.Service{}
	list, err := l.Client().CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, s := range list.Items {
		services[s.Namespace+"/"+s.Name] = s
	}
	return services
}

// requireWhole fails the test unless the cluster's own Services, its ranges, its API servers and the pods of its workloads
// are all on a range.
func requireWhole(t *testing.T, l *lab.Lab, want string) {
	t.Helper()
	requireClusterOn(t, l, want)
	requireRefreshed(t, l, want)
}

// requireClusterOn is requireWhole without the pods.
func requireClusterOn(t *testing.T, l *lab.Lab, want string) {
	t.Helper()
	to := netip.MustParsePrefix(want)
	for name, s := range allServices(t, l) {
		if s.Namespace == v1alpha1.SystemNamespace { // replumb's own
			continue
		}
		pinned := s.Spec.Type == corev1.ServiceTypeLoadBalancer || s.Spec.ClusterIP == corev1.ClusterIPNone
		if a, err := netip.ParseAddr(s.Spec.ClusterIP); !pinned && (err != nil || (!to.Contains(a) && s.Labels["replumb.dev/role"] == "")) {
			t.Errorf("service %s is at %q, not in %s", name, s.Spec.ClusterIP, want)
		}
	}
	requireServiceCIDR(t, l, to)
	requireGiven(t, l, want)
}

// requireGiven fails the test unless a range is the default one; where there are no ServiceCIDRs, unless a new Service is given an address of it.
func requireGiven(t *testing.T, l *lab.Lab, want string) {
	t.Helper()
	ranges, err := l.Client().NetworkingV1().ServiceCIDRs().List(t.Context(), metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		requireGivenByFlag(t, l, want)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(ranges.Items, func(c networkingv1.ServiceCIDR) bool { return c.Name == "kubernetes" })
	if i < 0 || !slices.Equal(ranges.Items[i].Spec.CIDRs, []string{want}) {
		t.Errorf("the default servicecidr is not %s: %v", want, ranges.Items)
	}
}

func requireGivenByFlag(t *testing.T, l *lab.Lab, want string) {
	t.Helper()
	services := l.Client().CoreV1().Services(metav1.NamespaceDefault)
	made, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "given-"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, services.Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
	if a, err := netip.ParseAddr(made.Spec.ClusterIP); err != nil || !netip.MustParsePrefix(want).Contains(a) {
		t.Errorf("a new Service was given %q, which is not in %s", made.Spec.ClusterIP, want)
	}
}

// requireRefreshed looks at the environment and the resolv.conf of every echo server: the addresses they were given must
// all be in the range, but for that of the pinned Service.
func requireRefreshed(t *testing.T, l *lab.Lab, want string) {
	t.Helper()
	to := netip.MustParsePrefix(want)
	pods, err := l.Client().
		CoreV1().
		Pods(shopNamespace).
		List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=shop"})
	must(t, err)
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil {
			continue
		}
		given := addressesGiven(t, p.Name)
		if len(given) < 4 {
			t.Errorf("pod %s was given only %v", p.Name, given)
		}
		for name, a := range given {
			bridge := strings.Contains(name, "_BRIDGE_") // Services of the namespace as well, as far as a kubelet can tell
			if !to.Contains(a) && name != "OUTSIDE_SERVICE_HOST" && !bridge {
				t.Errorf("pod %s has %s=%s, not in %s", p.Name, name, a, want)
			}
		}
	}
	if len(pods.Items) == 0 {
		t.Error("there are no pods to look at")
	}
}

// addressesGiven are the Service addresses in the environment of an echo server, and the name server of its pod. The
// machines of a lab are processes of this one, and so are their pods'.
func addressesGiven(t *testing.T, pod string) map[string]netip.Addr {
	t.Helper()
	given := map[string]netip.Addr{}
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	must(t, err)
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(environ, []byte("POD_NAME="+pod+"\x00")) {
			continue // it has ended meanwhile, or is another's
		}
		for line := range strings.SplitSeq(string(environ), "\x00") {
			name, value, _ := strings.Cut(line, "=")
			if a, err := netip.ParseAddr(value); err == nil && strings.HasSuffix(name, "_SERVICE_HOST") {
				given[name] = a
			}
		}
		resolv, err := os.ReadFile(filepath.Join(filepath.Dir(file), "root/etc/resolv.conf"))
		must(t, err)
		for line := range strings.Lines(string(resolv)) {
			if a, err := netip.ParseAddr(strings.TrimSpace(strings.TrimPrefix(line, "nameserver "))); err == nil {
				given["nameserver"] = a
			}
		}
	}
	return given
}
