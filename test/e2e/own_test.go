package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/ownaddress"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestOwnAddresses moves Services that keep their old address themselves, as one of their
// externalIPs: there, killed five times, back, there again and to the end of finish, under agents.
// Clients on every node call by name and at old addresses, and keep connections open. Nothing may
// be lost or late, no connection may break, and no bridge is left by apply. The control deletes and
// recreates a Service.
func TestOwnAddresses(t *testing.T) {
	moveItself(t, bringUp(t, named("e2e-own-addresses")), keepByEtcd(v1alpha1.OverlapExternalIP))
}

// TestOwnAddressesByAPI is the same with hops: ClusterIPs change by two patches, over a bridge.
func TestOwnAddressesByAPI(t *testing.T) {
	moveItself(t, bringUp(t, named("e2e-own-by-api")), keepByAPI())
}

// itself is a way in which Services move that keep their old address themselves.
type itself struct {
	strategy v1alpha1.Strategy
	form     v1alpha1.OverlapForm
	// kills are where a run is killed.
	kills []func(engine.Event) bool
}

func keepByAPI() itself {
	return itself{v1alpha1.StrategyOfHop, v1alpha1.OverlapExternalIP, []func(engine.Event) bool{
		eventOf(engine.StepStarted, "canary"), eventOf(engine.StepDone, "bridge/shop"), eventOf(engine.StepStarted, "hop/shop"),
		eventOf(engine.StepDone, "hop/shop"), eventOf(engine.StepStarted, "unbridge/"),
	}}
}

func keepByEtcd(form v1alpha1.OverlapForm) itself {
	return itself{v1alpha1.StrategyOfEtcd, form, []func(engine.Event) bool{
		eventOf(engine.StepStarted, "canary"), eventOf(engine.StepDone, "own/"), eventOf(engine.StepStarted, "hop/shop"),
		eventOf(engine.StepDone, "hop/shop"), eventOf(engine.StepStarted, "settle/"),
	}}
}

// TestCiliumServices is the same behind Cilium in the place of kube-proxy, where they keep it as
// the address of a load balancer.
func TestCiliumServices(t *testing.T) {
	l := bringUp(t, withCilium("e2e-cilium-services", lab.NoProxy, lab.NoProxy))
	moveItself(t, l, keepByEtcd(v1alpha1.OverlapLoadBalancer))
}

func moveItself(t *testing.T, l *lab.Lab, way itself) {
	t.Helper()
	form := way.form
	forgetNamesSoon(t, l)
	s := callEveryKind(t, l)
	on, file := onControlPlane(t, l), keepersMigration(t, "own", way.strategy)
	run := func(args ...string) { t.Helper(); succeed(t, on(t, args...)) }
	until := func(matches func(engine.Event) bool) {
		t.Helper()
		runUntil(t, on(t, "apply", "-f", file, "-o", "json"), matches)
	}
	nothingLost := func(what string, chosen func(traffic.Source) bool, do func()) {
		t.Helper()
		lived := s.during(t, what, do)
		lived.requireNothingLost(t, chosen)
	}

	nothingLost("the move, killed five times", traffic.All, func() {
		for _, moment := range way.kills {
			until(moment)
		}
		run("apply", "-f", file)
	})
	requireAllIn(t, l, newRange)
	requireKept(t, l, form)
	nothingLost("the way back", traffic.All, func() { run("rollback", "own", "--yes") })
	requireAllIn(t, l, oldRange)
	requireNoTrace(t, l)
	moveDNS(t, l, way.strategy, func(what string, args ...string) { nothingLost(what, traffic.All, func() { run(args...) }) })
	nothingLost("the move again", traffic.All, func() { run("apply", "-f", file) })
	requireAllIn(t, l, newRange)
	takeOff(t, l, "cart", form)
	requireKept(t, l, form)

	s = callByNameAlone(t, l, s)
	nothingLost("finish", traffic.All, func() { run("finish", "own", "--yes") })
	requireNoTrace(t, l)
	requireNaiveLoses(t, l)
}

// moveDNS has cluster DNS move too, there and back, while kubelets go on naming its old address to pods. Kubernetes is pinned: its certificates
// are another matter.
func moveDNS(t *testing.T, l *lab.Lab, strategy v1alpha1.Strategy, run func(what string, args ...string)) {
	t.Helper()
	pin(t, l, kubernetesService(), true)
	file := rewrite(t, keepersMigration(t, "dns", strategy), func(text string) string {
		return strings.Replace(text, "clusterServices: Stay", "clusterServices: Move", 1)
	})
	at := func() netip.Addr {
		svc, err := l.Client().CoreV1().Services(metav1.NamespaceSystem).Get(t.Context(), "kube-dns", metav1.GetOptions{})
		must(t, err)
		return netip.MustParseAddr(svc.Spec.ClusterIP)
	}
	run("the move of cluster DNS", "apply", "-f", file, "--until", "move")
	if to := netip.MustParsePrefix(newRange); !to.Contains(at()) {
		t.Errorf("cluster DNS is at %s", at())
	}
	run("the way back of cluster DNS", "rollback", "dns", "--yes")
	if from := netip.MustParsePrefix(oldRange); !from.Contains(at()) {
		t.Errorf("cluster DNS is back at %s", at())
	}
	pin(t, l, kubernetesService(), false)
	requireNoTrace(t, l)
}

func kubernetesService() types.NamespacedName {
	return types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}
}

// pin has a Service keep its address, or not.
func pin(t *testing.T, l *lab.Lab, svc types.NamespacedName, pinned bool) {
	t.Helper()
	value := any(nil)
	if pinned {
		value = v1alpha1.StrategyPin
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationStrategy: value}}})
	must(t, err)
	_, err = l.Client().CoreV1().Services(svc.Namespace).Patch(t.Context(), svc.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
}

// succeed runs a command to its successful end.
func succeed(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// everyKind are Services beside those of the shop: with datagrams, with session affinity, and one that leads pods to endpoints of their own node.
const everyKind = `
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: datagrams}
spec:
  selector: {app.kubernetes.io/name: cart}
  ports: [{name: udp, port: 9001, targetPort: udp, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: sticky}
spec:
  sessionAffinity: ClientIP
  selector: {app.kubernetes.io/name: catalog}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: near}
spec:
  internalTrafficPolicy: Local
  selector: {app.kubernetes.io/name: front}
  ports: [{name: http, port: 80, targetPort: http}]
`

// everyKindTarget is how one of them is called at a host.
func everyKindTarget(name, host string) probe.Target {
	switch name {
	case "datagrams":
		return probe.Target{Name: name, Kind: probe.UDP, Address: net.JoinHostPort(host, "9001"), Rate: 5}
	case "sticky":
		return probe.Target{Name: name, Kind: probe.HTTP, Address: net.JoinHostPort(host, "80"), Rate: 5, ExpectServer: "catalog"}
	}
	return probe.Target{Name: name, Kind: probe.HTTP, Address: net.JoinHostPort(host, "80"), Rate: 5, ExpectServer: "front"}
}

// callEveryKind has the shop and those Services called in all ways, and a node port from another machine, until the test ends.
func callEveryKind(t *testing.T, l *lab.Lab) *shop {
	t.Helper()
	callees, err := openShop(t.Context(), l)
	must(t, err)
	(&inCluster{T: t, l: l}).apply(everyKind)
	light := traffic.Rates{Request: 5, Stream: 5, LookUp: 5}
	calls := traffic.Call(shopNamespace, callees, light).AndKeep(callees, light)
	services := shopServices(t, l)
	for _, name := range []string{"datagrams", "sticky", "near"} {
		calls.Targets[traffic.ByName] = append(calls.Targets[traffic.ByName], everyKindTarget(name, name))
		calls.Targets[traffic.ByOldAddress] = append(calls.Targets[traffic.ByOldAddress], everyKindTarget(name, services[name].Spec.ClusterIP))
	}
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), calls)
	must(t, err)
	t.Cleanup(func() { watch.Stop(); removeClients(t, l, shopNamespace) })
	s := &shop{watch: watch}
	s.steady(t)
	s.gate = openGate(t, l, watch.Load().Share)
	return s
}

// keepersMigration moves all Services of users, and those of type ClusterIP by a strategy.
func keepersMigration(t *testing.T, name string, strategy v1alpha1.Strategy) string {
	t.Helper()
	return writeSpec(t, name, `
  serviceCIDR:
    to: [%s]
    drain: %s
    clusterServices: Stay
    refresh: {mode: Report}
    strategies: {clusterIP: %s, nodePort: Etcd}
    %s
  batch: {size: 8, settle: 1s}
  image: %q
  proof: {agents: Enabled, soak: 5s, wait: 1m}
`, newRange, "45s", strategy, storedEtcd, workload.ReplumbImage)
}

// requireKept fails the test unless every Service of the shop answers at its old address itself, in
// a form, and there is no bridge.
func requireKept(t *testing.T, l *lab.Lab, form v1alpha1.OverlapForm) {
	t.Helper()
	bridged := 0
	for name, svc := range shopServices(t, l) {
		if svc.Labels[v1alpha1.LabelRole] == v1alpha1.RoleBridge {
			continue
		}
		if name == "gate" && form == v1alpha1.OverlapExternalIP { // what pods send there would come from nodes
			bridged++
			continue
		}
		old, err := netip.ParseAddr(svc.Annotations[v1alpha1.AnnotationOldIP])
		must(t, err)
		if got, _ := ownaddress.FormOf(&svc, old); got != form {
			t.Errorf("service %s keeps %s as %s, want %s", name, old, cmp.Or(got, "nothing"), form)
		}
	}
	bridges, err := l.Client().CoreV1().Services("").List(t.Context(), metav1.ListOptions{
		LabelSelector: v1alpha1.LabelRole + "=" + v1alpha1.RoleBridge,
	})
	must(t, err)
	if len(bridges.Items) != bridged {
		t.Errorf("there are %d bridges, want %d", len(bridges.Items), bridged)
	}
	t.Logf("%d Services keep their old address as %s, %d addresses are held", len(shopServices(t, l)), form, len(heldAddresses(t, l)))
}

// takeOff has the owner of a Service take its old address off, and returns when it was put back.
func takeOff(t *testing.T, l *lab.Lab, name string, form v1alpha1.OverlapForm) {
	t.Helper()
	all := l.Client().CoreV1().Services(shopNamespace)
	svc, err := all.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	old, err := netip.ParseAddr(svc.Annotations[v1alpha1.AnnotationOldIP])
	must(t, err)
	if form != v1alpha1.OverlapExternalIP { // the freeze keeps its type, and nothing else can be taken off
		return
	}
	without := svc.DeepCopy()
	ownaddress.Remove(without, old)
	without.Labels[v1alpha1.LabelBreakGlass] = "true"
	_, err = all.Update(t.Context(), without, metav1.UpdateOptions{FieldManager: "somebody"})
	must(t, err)
	eventually(t, settled, func() error {
		now, err := all.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got, there := ownaddress.FormOf(now, old); !there {
			return fmt.Errorf("service %s does not answer at %s: %q", name, old, got)
		}
		return nil
	})
}

// callByNameAlone has clients of the shop call no old address any more, for which finish waits.
func callByNameAlone(t *testing.T, l *lab.Lab, s *shop) *shop {
	t.Helper()
	s.watch.Stop()
	removeClients(t, l, shopNamespace)
	callees := []traffic.Callee{}
	for name, svc := range shopServices(t, l) {
		if svc.Labels["app.kubernetes.io/name"] == name && svc.Labels[v1alpha1.LabelRole] == "" && svc.Spec.ClusterIP != corev1.ClusterIPNone {
			callees = append(callees, traffic.Callee{Name: name})
		}
	}
	calls := traffic.Call(shopNamespace, callees, traffic.Rates{Request: 5})
	delete(calls.Targets, traffic.ByOldAddress)
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), calls)
	must(t, err)
	t.Cleanup(watch.Stop)
	named := &shop{watch: watch, gate: s.gate}
	named.steady(t)
	return named
}
