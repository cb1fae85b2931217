package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/labtest"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// withCilium has a network of pods by Cilium, on two nodes of these proxy modes.
func withCilium(name string, proxies ...lab.ProxyMode) lab.Topology {
	topology := named(name)
	topology.CNI, topology.Nodes = lab.Cilium, proxies
	return topology
}

// TestCiliumLab sees that a lab with Cilium is one, beside kube-proxy and in its place: pods of both nodes reach each other, Services by name and
// address, cluster DNS and the API; node ports answer at both nodes; NetworkPolicies hold, and it is they that deny; and agents may be replaced
// meanwhile. Nothing of what agents set is the host's.
func TestCiliumLab(t *testing.T) {
	before := labtest.HostState(t)
	for _, topology := range []lab.Topology{
		withCilium("e2e-cilium", lab.IPTables, lab.NFTables),
		withCilium("e2e-cilium-alone", lab.NoProxy, lab.NoProxy),
	} {
		t.Run(topology.Name, func(t *testing.T) {
			l := bringUp(t, topology)
			requireProxies(t, l, topology.Nodes[0] != lab.NoProxy)
			s := guarded(t, l, "guarded")
			s.callTheAPI(t, l)

			lived := s.during(t, "agents being replaced", func() { replaceAgents(t, l) })
			lived.requireNothingLost(t, traffic.Permitted)
			lived.requireDenied(t)
			requireVerdictsAreThePolicies(t, l, s, "guarded")

			newNodePorts(t, l) // which returns when all of them answer at both nodes
			removeNamespaces(t, l, doorsNamespace)
		})
		labtest.RequireNothingLeft(t, topology.Name)
	}
	labtest.RequireUnchanged(t, before)
}

// TestPastCilium sees that Services do not move behind this Cilium beside kube-proxy, whatever they say (RP1210), and why: a Service that gives its
// address to another, as in a hop, does not answer there any more. With kube-proxy alone it does, as testWholeRange and others see.
func TestPastCilium(t *testing.T) {
	const namespace = "past-cilium"
	l := bringUp(t, withCilium("e2e-past-cilium", lab.IPTables, lab.NFTables))
	s := guarded(t, l, namespace)
	file := writeMigration(t, namespace, newRange, "", drain)
	requireBlocked(t, l, file, "RP1210")
	for service := range servicesOf(t, l, namespace) {
		annotate(t, l, namespace, service, v1alpha1.AnnotationStrategy, v1alpha1.StrategyHop)
	}
	requireBlocked(t, l, file, "RP1210")

	at := servicesOf(t, l, namespace)["cart"].Spec.ClusterIP
	giveAway(t, l, namespace, "cart")
	awaitReports(t, s) // every kube-proxy knows of it long before
	lost := s.during(t, "the address of another Service", func() { awaitReports(t, s) })
	stats := lost.stats(t, func(s traffic.Source) bool { return s.Service == "cart" && s.Via == traffic.ByOldAddress })
	t.Logf("%d of %d requests to %s were lost", stats.Failed, stats.Sent, at)
	if stats.Failed == 0 {
		t.Errorf("none of %d requests to %s was lost: RP1210 refuses what is possible", stats.Sent, at)
	}
}

// giveAway has another Service with the same endpoints answer at the address of one, which gives it up.
func giveAway(t *testing.T, l *lab.Lab, namespace, name string) {
	t.Helper()
	services := l.Client().CoreV1().Services(namespace)
	own, err := services.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	other := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-other"},
		Spec: corev1.ServiceSpec{
			Selector: own.Spec.Selector, Ports: own.Spec.Ports, ExternalIPs: []string{own.Spec.ClusterIP},
		},
	}
	if _, err := services.Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := fmt.Appendf(
		nil,
		`{"spec":{"type":"ExternalName","externalName":"%s-other.%s.svc.cluster.local","clusterIP":null,"clusterIPs":null,
		"ipFamilies":null,"ipFamilyPolicy":null,"internalTrafficPolicy":null}}`,
		name,
		namespace,
	)
	if _, err := services.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// requireBlocked fails the test unless check ends with the exit code of blockers, and names one.
func requireBlocked(t *testing.T, l *lab.Lab, file, finding string) {
	t.Helper()
	const blocked = 3 // docs/troubleshooting.md
	cmd := command(t, "replumb", "check", "-f", file, "--kubeconfig", l.Kubeconfig())
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != blocked || !strings.Contains(string(out), finding) {
		t.Errorf("check ended with exit code %d, without %s or without being blocked:\n%s", code, finding, out)
	}
}

// annotate adds an annotation to a Service.
func annotate(t *testing.T, l *lab.Lab, namespace, service, key, value string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	must(t, err)
	if _, err := l.Client().CoreV1().Services(namespace).Patch(
		t.Context(), service, types.MergePatchType, patch, metav1.PatchOptions{},
	); err != nil {
		t.Fatal(err)
	}
}

// callTheAPI has pods of both nodes call the API by its Service from now on, and returns when they are answered.
func (s *shop) callTheAPI(t *testing.T, l *lab.Lab) {
	t.Helper()
	must(t, workload.Ensure(t.Context(), l.Client(), workload.Namespace(callersNamespace)))
	api, err := l.Client().CoreV1().Services(metav1.NamespaceDefault).Get(t.Context(), "kubernetes", metav1.GetOptions{})
	must(t, err)
	calls := traffic.CallAPI(callersNamespace, api.Spec.ClusterIP, traffic.Rates{Request: 2, Stream: 1})
	must(t, s.watch.Add(t.Context(), l.Client(), l.NodeNames(), calls))
	s.awaitVerdicts(t)
}

// requireProxies fails the test unless every node runs a kube-proxy, or none does.
func requireProxies(t *testing.T, l *lab.Lab, every bool) {
	t.Helper()
	for _, node := range l.NodeNames() {
		if runs := pidOf(t, l, node, "kube-proxy") != 0; runs != every {
			t.Errorf("kube-proxy runs on %s: %v", node, runs)
		}
	}
}

// replaceAgents deletes Cilium's agents of all nodes at once, and returns when there are others that are ready.
func replaceAgents(t *testing.T, l *lab.Lab) {
	t.Helper()
	pods, agents := l.Client().CoreV1().Pods(metav1.NamespaceSystem), metav1.ListOptions{LabelSelector: "k8s-app=cilium"}
	old := map[types.UID]bool{}
	for _, p := range listed(t, l, agents) {
		old[p.UID] = true
	}
	if len(old) != len(l.NodeNames()) {
		t.Fatalf("there are %d agents on %d nodes", len(old), len(l.NodeNames()))
	}
	must(t, pods.DeleteCollection(t.Context(), metav1.DeleteOptions{}, agents))
	eventually(t, 3*settled, func() error {
		now := listed(t, l, agents)
		for _, p := range now {
			if old[p.UID] || !connectivity.Ready(&p) {
				return fmt.Errorf("agent %s is not replaced by one that is ready", p.Name)
			}
		}
		if len(now) != len(l.NodeNames()) {
			return fmt.Errorf("there are %d agents", len(now))
		}
		return nil
	})
}

// listed are pods of the cluster's own namespace.
func listed(t *testing.T, l *lab.Lab, which metav1.ListOptions) []corev1.Pod {
	t.Helper()
	list, err := l.Client().CoreV1().Pods(metav1.NamespaceSystem).List(t.Context(), which)
	must(t, err)
	return list.Items
}
