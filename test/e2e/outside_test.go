package e2e

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// elsewhere is what kube-proxies are told to be the range of pods: no pod is in it, as those of a second pool would not be.
const elsewhere = "10.99.0.0/16"

// TestOutside has kube-proxies take pods for clients from outside of the cluster, in both modes. Where their configuration can be seen, check
// names the pods. Where it cannot, agents lose the requests that pods would lose, to the Service with one endpoint, and the move stops
// before a Service of the shop begins to. The control goes on without agents: pods lose what they send to the Service with one endpoint.
func TestOutside(t *testing.T) {
	l := bringUp(t, named("e2e-outside"))
	must(t, l.Workers().RestartProxies(t.Context(), netip.MustParsePrefix(elsewhere)))
	s := strangers(t, l)
	file := proven{name: "outside", to: "172.20.0.0/16", drain: "5s"}.write(t)
	requireOutside(t, l, file)

	before := s.during(t, "a move that agents stop", func() {
		moved := ""
		_, exit, stderr := runWatching(t, applying(t, l, file), func(e engine.Event) {
			if e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "hop/"+shopNamespace) {
				moved = e.Step
			}
		})
		t.Logf("apply with pods that kube-proxy does not know: exit %d: %s", exit, stderr)
		if exit != 4 || !strings.Contains(stderr, "pod/"+v1alpha1.ProbeSingleOld) || moved != "" {
			t.Fatalf("it ended with %d, and %q had begun", exit, moved)
		}
	})
	before.requireNothingLost(t, traffic.All)

	after := s.during(t, "the same without agents", func() {
		_, exit, stderr := runWatching(t, applying(t, l, file, "--without-agent"), func(engine.Event) {})
		if exit != 0 {
			t.Errorf("without agents it ended with %d: %s", exit, stderr)
		}
	})
	lost := after.stats(t, func(from traffic.Source) bool { return from.Via == traffic.ByOldAddress })
	if lost.Failed == 0 {
		t.Errorf("control: of %d requests to old addresses none was lost: kube-proxy knows the pods", lost.Sent)
	}
	t.Logf("control: without agents all Services moved, and %d of %d requests to old addresses were lost", lost.Failed, lost.Sent)
}

// strangers are clients in pods that kube-proxy does not know: servers see the address of a node in place of theirs.
func strangers(t *testing.T, l *lab.Lab) *shop {
	t.Helper()
	callees, err := openShop(t.Context(), l)
	must(t, err)
	calls := traffic.Call(shopNamespace, callees, traffic.Rates{Request: 5})
	for _, targets := range calls.Targets {
		for i := range targets {
			targets[i].ExpectClientAddress = ""
		}
	}
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), calls)
	must(t, err)
	t.Cleanup(func() { watch.Stop(); removeClients(t, l, shopNamespace) })
	s := &shop{watch: watch}
	s.steady(t)
	return s
}

// requireOutside fails the test unless check blocks and names pods, where kube-proxy's configuration is to be seen.
func requireOutside(t *testing.T, l *lab.Lab, file string) {
	t.Helper()
	maps := l.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem)
	shown := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"},
		Data: map[string]string{
			"config.conf": "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: " + elsewhere + "\n",
		},
	}
	if _, err := maps.Create(t.Context(), shown, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out, err := command(t, "replumb", "check", "-f", file, "--kubeconfig", l.Kubeconfig()).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "RP1205") || !strings.Contains(string(out), "lie outside of clusterCIDR "+elsewhere) {
		t.Fatalf("check: %v\n%s", err, out)
	}
	must(t, maps.Delete(t.Context(), shown.Name, metav1.DeleteOptions{}))
}
