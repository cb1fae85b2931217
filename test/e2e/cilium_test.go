package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

// callTheAPI has pods of both nodes call the API by its Service from now on, and returns when they are answered.
func (s *shop) callTheAPI(t *testing.T, l *lab.Lab) {
	t.Helper()
	if err := workload.Ensure(t.Context(), l.Client(), workload.Namespace(callersNamespace)); err != nil {
		t.Fatal(err)
	}
	api, err := l.Client().CoreV1().Services(metav1.NamespaceDefault).Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	calls := traffic.CallAPI(callersNamespace, api.Spec.ClusterIP, traffic.Rates{Request: 2, Stream: 1})
	if err := s.watch.Add(t.Context(), l.Client(), l.NodeNames(), calls); err != nil {
		t.Fatal(err)
	}
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
	if err := pods.DeleteCollection(t.Context(), metav1.DeleteOptions{}, agents); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}
