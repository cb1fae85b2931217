package e2e

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestKubeadmNodes moves the workers of a cluster that kubeadm has made to another network, where others join by the command that kubeadm prints.
// The control plane, which is a node of the old network, stays. replumb is killed before a drain, in it and before the first worker ends. Clients
// on the control plane, and others that move, call Services and the API, and lose nothing. The control ends a worker as it is.
func TestKubeadmNodes(t *testing.T) {
	topology := withCalico("e2e-kubeadm-nodes")
	topology.Installer, topology.Nodes = lab.Kubeadm, []lab.ProxyMode{lab.IPTables, lab.IPTables}
	topology.Networks = append(topology.Networks, lab.Network{Name: "b", CIDR: netip.MustParsePrefix("172.31.0.0/24")})
	l := bringUp(t, topology)
	stays, rates := l.ControlPlanes()[0], traffic.Rates{Request: 10, LookUp: 2}
	objects := []runtime.Object{workload.Namespace(shopNamespace)}
	for _, echo := range workload.Shop(shopNamespace) {
		objects = append(objects, echo.Objects()...)
	}
	callees, err := start(t.Context(), l, shopNamespace, objects)
	must(t, err)
	calls := traffic.Call(shopNamespace, callees, rates)
	watch, err := traffic.Start(t.Context(), l.Client(), []string{stays}, calls)
	must(t, err)
	t.Cleanup(watch.Stop)
	s := &shop{watch: watch, prompt: traffic.OfPods()}
	fromInside(t, l, s, traffic.Rates{Request: 5, LookUp: 2})
	must(t, watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady))
	was, file := l.NodeNames(), workersTo(t, l, "172.30.0.0/24", "172.31.0.0/24")

	moved := s.during(t, "the move of workers", func() {
		for _, at := range []string{"close/", "drain/", "terminate/"} {
			o := operator{lab: l, killAt: func(e engine.Event) bool { return e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, at) }}
			if _, code, _ := o.attend(t, command(t, "replumb", "apply", "-f", file, "-o", "json", "--kubeconfig", l.Kubeconfig())); code != -1 {
				t.Fatalf("apply ended with exit code %d before step %s", code, at)
			}
		}
		attendAs(t, operator{lab: l}, 0, "apply", "-f", file)
		attendAs(t, operator{lab: l}, 0, "finish", "workers", "--yes")
	})
	moved.requireNothingLost(t, traffic.All)
	for _, name := range was {
		if slices.Contains(l.NodeNames(), name) {
			t.Errorf("%s has not ended", name)
		}
	}
	all, err := l.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(all.Items) != 1+len(was) {
		t.Errorf("there are %d Nodes, want the control plane and as many workers as before, %d", len(all.Items), len(was))
	}
	watch.Stop()
	requireEndLoses(t, l, calls, stays, l.NodeNames()[0])
}

// workersTo writes a Migration of workers to another network, and answers its actions until the test ends.
func workersTo(t *testing.T, l *lab.Lab, from, to string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "replumb-owner-") // a socket's path may have 107 characters
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	action := answering(t, dir, (&owner{t: t, lab: l}).serve)
	m := &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "workers"},
		Spec: v1alpha1.MigrationSpec{
			Nodes: &v1alpha1.NodesSpec{
				Old: v1alpha1.NodeSet{CIDRs: []string{from}}, New: v1alpha1.NodeSet{CIDRs: []string{to}},
				Join: v1alpha1.JoinSpec{Provision: action}, Terminate: v1alpha1.TerminateSpec{Action: action},
			},
			Image: workload.ReplumbImage, Proof: v1alpha1.ProofSpec{Agents: v1alpha1.AgentsEnabled},
		},
	}
	body, err := yaml.Marshal(m)
	must(t, err)
	path := filepath.Join(dir, "workers.yaml")
	must(t, os.WriteFile(path, body, 0o600))
	return path
}

// TestKubeadmControlPlane moves two workers and the only control plane, which is a node as well and joins by the command that kubeadm prints, to
// another network, as TestNodesMove does, after what the page says of API servers that are to end. Calls of API servers are counted apart, but
// those from outside: where nodes are slow to lead elsewhere, one is refused for a moment. Nobody else loses anything.
func TestKubeadmControlPlane(t *testing.T) {
	topology := twoNetworks("e2e-kubeadm-vpc")
	topology.Installer, topology.ControlPlanes, topology.Nodes = lab.Kubeadm, 1, []lab.ProxyMode{lab.IPTables, lab.IPTables}
	l := bringUp(t, topology)
	favourSystem(t, l)
	(&byThePage{T: t, l: l}).endServersLater()
	s := fromOutside(t, l, traffic.Rates{Request: 5, LookUp: 2})
	fromInside(t, l, s, traffic.Rates{Request: 2, LookUp: 1})
	serveLonger(t, l)
	must(t, s.watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady))
	o := &owner{t: t, lab: l}
	moved := o.moveAll(s)
	moved.requireNothingLost(t, butAPI)
	moved.requireAPIAwayFor(t, 2, 0) // one joins before the other ends
	moved.requireMany(t, minOutside/4)
	o.requireMoved()
	o.requireEverything()
	s.watch.Stop()
	requireDeletedNodeLoses(t, l, fromOutside(t, l, outsideRates()))
}

// endServersLater has API servers go on answering while they end, and those that join.
func (k *byThePage) endServersLater() {
	k.Helper()
	const edit = "kubectl -n kube-system edit configmap kubeadm-config"
	const extra = `s/^\( *\)certSANs:$/\1extraArgs:\n\1- name: shutdown-delay-duration\n\1  value: 20s\n&/`
	must(k.T, k.run(k.Context(), k.l.ControlPlanes()[0], edit, extra))
	for _, on := range k.l.ControlPlanes() {
		must(k.T, k.run(k.Context(), on, k.blocks("## Nodes")[0], ""))
	}
}

// serveLonger has pods go on serving for 20 seconds when they are to end, instead of eight. On two processors, on which others took 20 to start,
// kube-proxies that are pods themselves were seen without a pod that was evicted only seconds later, the last after 13.
func serveLonger(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, each := range []struct{ deployment, variable, namespace string }{
		{workload.IngressName, "INGRESS_DRAIN", workload.IngressNamespace}, {"front", "ECHO_DRAIN", shopNamespace}, {"cart", "ECHO_DRAIN", insideNamespace},
	} {
		of := "deployment/" + each.deployment + " -n " + each.namespace
		kubectl(t, l, "set env "+of+" "+each.variable+"=20s")
		kubectl(t, l, "rollout status "+of+" --timeout=4m")
	}
}
