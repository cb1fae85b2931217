package e2e

import (
	"cmp"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/ownaddress"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestOwnAddresses moves Services that keep their old address themselves, as one of their
// externalIPs: there, killed five times, back, there again and to the end of finish, under agents.
// Clients on every node call by name and at old addresses, and keep connections open. Nothing may
// be lost or late, no connection may break, and there is no bridge at any time. The control deletes
// and recreates a Service.
func TestOwnAddresses(t *testing.T) {
	l := bringUp(t, named("e2e-own-addresses"))
	moveByEtcd(t, l, v1alpha1.OverlapExternalIP)
}

// TestCiliumServices is the same behind Cilium in the place of kube-proxy, where they keep it as
// the address of a load balancer.
func TestCiliumServices(t *testing.T) {
	l := bringUp(t, withCilium("e2e-cilium-services", lab.NoProxy, lab.NoProxy))
	moveByEtcd(t, l, v1alpha1.OverlapLoadBalancer)
}

func moveByEtcd(t *testing.T, l *lab.Lab, form v1alpha1.OverlapForm) {
	t.Helper()
	forgetNamesSoon(t, l)
	s, _ := lightTraffic(t, l)
	on, file := onControlPlane(t, l), etcdMigration(t, "own")
	run := func(args ...string) { t.Helper(); succeed(t, on(t, args...)) }
	until := func(matches func(engine.Event) bool) { t.Helper(); runUntil(t, on(t, "apply", "-f", file, "-o", "json"), matches) }
	nothingLost := func(what string, chosen func(traffic.Source) bool, do func()) {
		t.Helper()
		lived := s.during(t, what, do)
		lived.requireNothingLost(t, chosen)
	}

	nothingLost("the move, killed five times", traffic.All, func() {
		for _, moment := range []func(engine.Event) bool{
			eventOf(engine.StepStarted, "canary"), eventOf(engine.StepDone, "own/"), eventOf(engine.StepStarted, "hop/shop"),
			eventOf(engine.StepDone, "hop/shop"), eventOf(engine.StepStarted, "settle/"),
		} {
			until(moment)
		}
		run("apply", "-f", file)
	})
	requireAllIn(t, l, newRange)
	requireKept(t, l, form)
	nothingLost("the way back", traffic.All, func() { run("rollback", "own", "--yes") })
	requireAllIn(t, l, oldRange)
	requireNoTrace(t, l)
	nothingLost("the move again", traffic.All, func() { run("apply", "-f", file) })
	requireAllIn(t, l, newRange)
	takeOff(t, l, "cart", form)
	requireKept(t, l, form)

	s = callByNameAlone(t, l, s)
	nothingLost("finish", traffic.All, func() { run("finish", "own", "--yes") })
	requireNoTrace(t, l)
	requireNaiveLoses(t, l)
}

// succeed runs a command to its successful end.
func succeed(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// etcdMigration moves all Services of users by etcd.
func etcdMigration(t *testing.T, name string) string {
	t.Helper()
	return writeSpec(t, name, `
  serviceCIDR:
    to: [%s]
    drain: %s
    clusterServices: Stay
    refresh: {mode: Report}
    strategies: {clusterIP: Etcd, nodePort: Etcd}
    %s
  batch: {size: 8, settle: 1s}
  proof: {agents: Enabled, image: %q, soak: 5s, wait: 1m}
`, newRange, shortDrain, storedEtcd, workload.ReplumbImage)
}

// requireKept fails the test unless every Service of the shop answers at its old address itself, in
// a form, and there is no bridge.
func requireKept(t *testing.T, l *lab.Lab, form v1alpha1.OverlapForm) {
	t.Helper()
	for name, svc := range shopServices(t, l) {
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
	if len(bridges.Items) > 0 {
		t.Errorf("there are %d bridges", len(bridges.Items))
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
		if len(svc.Labels) > 0 && svc.Spec.ClusterIP != corev1.ClusterIPNone {
			callees = append(callees, traffic.Callee{Name: name})
		}
	}
	calls := traffic.Call(shopNamespace, callees, traffic.Rates{Request: 5})
	delete(calls.Targets, traffic.ByOldAddress)
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), calls)
	must(t, err)
	t.Cleanup(watch.Stop)
	named := &shop{watch: watch}
	named.steady(t)
	return named
}
