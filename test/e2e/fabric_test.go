package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/labtest"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// The labs of a fabric; the first makes it.
const (
	leftName  = "left"
	rightName = "right"
)

// TestNeighbours sees that two labs can be neighbours: one with flannel, which is what flannel is elsewhere, one with Calico; their
// machines reach each other, the names of both are in one zone, and both ingresses answer outside. Then the first is given
// Calico by its manifests. They go in the order in which they can.
func TestNeighbours(t *testing.T) {
	before := labtest.HostState(t)
	left, right := neighbours(t)
	requireFlannel(t, left)
	requireServed(t, left, "served")
	requireNamesLeadToBalancer(t, left, "a")
	requireNamesLeadToBalancer(t, right, "r")
	requireReached(t, left, right)
	requireReached(t, right, left)
	requireGivenCalico(t, left, "given", netip.MustParsePrefix("10.245.0.0/16"))

	invalid := (*lab.InvalidError)(nil)
	if _, err := lab.Down(t.Context(), leftName); !errors.As(err, &invalid) || !strings.Contains(err.Error(), rightName) {
		t.Errorf("taking the fabric from under the other: %v", err)
	}
	for _, name := range []string{rightName, leftName} {
		if _, err := lab.Down(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		labtest.RequireNothingLeft(t, name)
		if name == rightName {
			requireForgotten(t, left, right)
		}
	}
	labtest.RequireUnchanged(t, before)
}

// neighbours brings two labs up in one fabric.
func neighbours(t *testing.T) (left, right *lab.Lab) {
	t.Helper()
	down := func() {
		for _, name := range []string{rightName, leftName} {
			_, _ = lab.Down(context.Background(), name)
		}
	}
	down()
	t.Cleanup(down)
	first := lab.Default()
	first.Name, first.CNI, first.Edge, first.Fabric = leftName, lab.Flannel, true, "shared"
	second := lab.Default()
	second.Name, second.CNI, second.Edge, second.Fabric = rightName, lab.Calico, true, "shared"
	second.Nodes = []lab.ProxyMode{lab.NFTables}
	second.Networks = []lab.Network{{Name: "r", CIDR: netip.MustParsePrefix("172.31.0.0/24")}}
	labs := make([]*lab.Lab, 2)
	for i, topology := range []lab.Topology{first, second} {
		l, err := lab.Up(t.Context(), topology, lab.Options{Progress: func(format string, args ...any) {
			t.Logf("%s: %s", topology.Name, fmt.Sprintf(format, args...))
		}})
		must(t, err)
		labs[i] = l
	}
	return labs[0], labs[1]
}

// requireFlannel fails the test unless there is on every node what flannel leaves there elsewhere.
func requireFlannel(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, node := range l.NodeNames() {
		for _, look := range [][]string{
			{"ip", "link", "show", "cni0"},
			{"ip", "-d", "link", "show", "flannel.1"},
			{"cat", "/run/flannel/subnet.env", "/etc/cni/net.d/10-flannel.conflist"},
			{"iptables", "-t", "nat", "-S", "FLANNEL-POSTRTG"},
			{"iptables", "-t", "filter", "-S", "FLANNEL-FWD"},
		} {
			if _, err := l.Exec(t.Context(), node, look...); err != nil {
				t.Error(err)
			}
		}
	}
	pods, err := l.Client().CoreV1().Pods("kube-flannel").List(t.Context(), metav1.ListOptions{LabelSelector: "app=flannel"})
	must(t, err)
	if len(pods.Items) != len(l.NodeNames()) {
		t.Errorf("%d pods of flannel on %d nodes", len(pods.Items), len(l.NodeNames()))
	}
}

// requireServed fails the test unless pods of every node look a Service up and reach it; it has one pod, so that one of the nodes
// is another one.
func requireServed(t *testing.T, l *lab.Lab, namespace string) {
	t.Helper()
	cart := workload.Echo{Namespace: namespace, Name: "cart", PartOf: workload.PartOfVariety, Replicas: 1}
	callees, err := start(t.Context(), l, namespace, append([]runtime.Object{workload.Namespace(namespace)}, cart.Objects()...))
	must(t, err)
	rates := traffic.Rates{Request: 10, LookUp: 5}
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), traffic.Call(namespace, callees, rates))
	must(t, err)
	defer watch.Stop()
	if err := watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady); err != nil {
		t.Error(err)
	}
}

// requireReached fails the test unless machines and pods of a lab reach the other's ingress, at the address of its balancer.
func requireReached(t *testing.T, from, to *lab.Lab) {
	t.Helper()
	url := "http://" + to.Edge().Ingress + "/"
	for _, machine := range []string{from.NodeNames()[0], from.ControlPlanes()[0]} {
		out, err := from.Exec(t.Context(), machine, "curl", "--silent", "--show-error", "--max-time", "5", url)
		if err != nil || !strings.Contains(string(out), `"name":"ingress"`) {
			t.Errorf("%s of lab %s gets %q from %s: %v", machine, from.Topology.Name, out, url, err)
		}
	}
}

// requireGivenCalico applies the manifests beside flannel, and fails the test unless pods that are new have addresses of the pool,
// and look up and reach each other.
func requireGivenCalico(t *testing.T, l *lab.Lab, namespace string, pool netip.Prefix) {
	t.Helper()
	manifests, err := lab.CalicoManifests(l, pool)
	must(t, err)
	eventually(t, settled, func() error { // what is of Calico's kinds has to wait for its definitions
		cmd := exec.CommandContext(t.Context(), l.Kubectl(), "--kubeconfig", l.Kubeconfig(), "apply", "--server-side", "-f", "-")
		cmd.Stdin = bytes.NewReader(manifests)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	eventually(t, settled, func() error {
		d, err := l.Client().AppsV1().DaemonSets(metav1.NamespaceSystem).Get(t.Context(), "calico-node", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if want := len(l.NodeNames()); int(d.Status.NumberReady) != want {
			return fmt.Errorf("calico-node is ready on %d of %d nodes", d.Status.NumberReady, want)
		}
		return nil
	})
	requireTunnelsIn(t, l, pool)
	must(t, l.Workers().RestartProxies(t.Context(), pool))
	dns := metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"}
	must(t, l.Client().CoreV1().Pods(metav1.NamespaceSystem).DeleteCollection(t.Context(), metav1.DeleteOptions{}, dns))
	requireServed(t, l, namespace)
	requireAddressesIn(t, l, namespace, pool)
}

// requireAddressesIn fails the test unless all pods of a namespace have addresses of the pool.
func requireAddressesIn(t *testing.T, l *lab.Lab, namespace string, pool netip.Prefix) {
	t.Helper()
	pods, err := l.Client().CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, p := range pods.Items {
		if a, err := netip.ParseAddr(p.Status.PodIP); err != nil || !pool.Contains(a) {
			t.Errorf("pod %s/%s has address %q, not one of %s", p.Namespace, p.Name, p.Status.PodIP, pool)
		}
	}
}

// requireForgotten fails the test unless nothing of a lab that went is left in the fabric of the other.
func requireForgotten(t *testing.T, l, gone *lab.Lab) {
	t.Helper()
	if links, err := l.Exec(t.Context(), "fabric", "ip", "-br", "link"); err != nil || strings.Contains(string(links), "br-r ") {
		t.Errorf("in the fabric there is (%v):\n%s", err, links)
	}
	if got := onBastion(t, l, "dig", "+short", gone.Edge().API); got != "" {
		t.Errorf("%s is still %s", gone.Edge().API, got)
	}
}
