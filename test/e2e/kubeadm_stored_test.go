package e2e

import (
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/etcdrelay"
	"github.com/replumb/replumb/lab/lab"
)

// TestKubeadmStored moves the whole Service range of a cluster that kubeadm has made in its etcd, Services of every kind, and back. The user names
// no etcd and has no certificate: transactions go through a pod on the control plane. replumb is killed in the midst, and the API server that all
// connections go through as well. Nothing is lost, at node ports either. The control deletes and recreates a Service.
func TestKubeadmStored(t *testing.T) {
	topology := named("e2e-kubeadm-stored")
	topology.Nodes = []lab.ProxyMode{lab.IPTables}
	moveWholeInEtcd(t, topology, "headless")
}

// TestKubeadmCilium is the same behind Cilium in the place of kube-proxy, but for a Service whose load balancer is another controller's: it is
// refused there.
func TestKubeadmCilium(t *testing.T) {
	moveWholeInEtcd(t, withCilium("e2e-kubeadm-cilium", lab.NoProxy), "headless", "outside")
}

func moveWholeInEtcd(t *testing.T, topology lab.Topology, staying ...string) {
	t.Helper()
	topology.Installer = lab.Kubeadm
	l := bringUp(t, topology)
	s := wholeUnderTraffic(t, l)
	s.gate = openGate(t, l, 1)
	k := &byThePage{T: t, l: l}
	file := k.inEtcd(k.byItself(writeWhole(t, l, "whole", drain)))
	before := k.written()
	for _, name := range staying {
		pin(t, l, types.NamespacedName{Namespace: shopNamespace, Name: name}, true)
	}

	moved := s.during(t, "the whole move", func() {
		o := operator{lab: l, killAt: eventOf(engine.StepStarted, "hop/shop/gate")}
		if _, code, _ := o.attend(t, command(t, "replumb", "apply", "-f", file, "-o", "json", "--kubeconfig", l.Kubeconfig())); code != -1 {
			t.Fatalf("apply ended with exit code %d before the event came", code)
		}
		k.requireRelay(true)
		o.killAt = k.killingAPIServer("hop/kube-system/kube-dns")
		k.alone(attendAs(t, o, 0, "apply", "-f", file))
	})
	moved.requireNothingLost(t, butAPI)
	k.requireRelay(false)
	requireWhole(t, l, newRange)
	all := shopServices(t, l)
	for _, name := range staying {
		delete(all, name)
	}
	requireServicesIn(t, all, newRange) // those that no hop can move among them

	back := s.during(t, "the whole rollback", func() { k.alone(attendAs(t, operator{lab: l}, 0, "rollback", "whole", "--yes")) })
	back.requireNothingLost(t, butAPI)
	requireWhole(t, l, oldRange)
	for _, name := range staying {
		pin(t, l, types.NamespacedName{Namespace: shopNamespace, Name: name}, false)
	}
	requireNoTrace(t, l)
	k.requireWritten(before)
	requireNaiveLoses(t, l)
}

// inEtcd has all Services of a migration move in etcd, which the file does not say how to reach.
func (k *byThePage) inEtcd(file string) string {
	k.Helper()
	text, err := os.ReadFile(file)
	must(k.T, err)
	const how = "  serviceCIDR:\n    strategies: {clusterIP: Etcd, nodePort: Etcd, loadBalancer: Etcd}\n    etcd: {source: Kubeadm}\n"
	must(k.T, os.WriteFile(file, []byte(strings.Replace(string(text), "  serviceCIDR:\n", how, 1)), 0o600))
	return file
}

// killingAPIServer kills the only API server when a step begins, and lets the run go on.
func (k *byThePage) killingAPIServer(step string) func(engine.Event) bool {
	killed := false
	k.Cleanup(func() {
		if !killed {
			k.Errorf("step %s has not begun", step)
		}
	})
	return func(e engine.Event) bool {
		if !killed && e.Kind == engine.StepStarted && e.Step == step {
			killed = true
			k.must("cp1", `kill -KILL $(ss -Hltnp 'sport = :6443' | sed -n 's/.*pid=\([0-9]*\).*/\1/p' | head -1)`)
		}
		return false
	}
}

// requireRelay fails the test unless the pod on the control plane is there, as a killed run leaves it and status names it, or gone.
func (k *byThePage) requireRelay(want bool) {
	k.Helper()
	_, err := k.l.Client().CoreV1().Pods(v1alpha1.SystemNamespace).Get(k.Context(), etcdrelay.Name, metav1.GetOptions{})
	if is := err == nil; is != want || err != nil && !apierrors.IsNotFound(err) {
		k.Errorf("the pod is there: %t, want %t (%v)", is, want, err)
	}
	out, err := command(k.T, "replumb", "status", "whole", "--kubeconfig", k.l.Kubeconfig()).Output()
	must(k.T, err)
	if named := strings.Contains(string(out), "pod "+etcdrelay.Key().String()+" on node cp1"); named != want {
		k.Errorf("status says\n%s", out)
	}
}
