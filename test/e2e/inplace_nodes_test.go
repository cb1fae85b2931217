package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
)

// restless is the application of TestInPlaceNodes.
const restless = "restless"

// TestInPlaceNodes reboots nodes, and has others join, while the network is replaced in place: a node that reboots comes back with the network that
// it had, one that joins while apply runs is switched by that, and one that joins later is what finish refuses to go on without.
func TestInPlaceNodes(t *testing.T) {
	topology := named("e2e-inplace-nodes")
	topology.CNI = lab.Flannel
	l := bringUpForBoth(t, topology)
	app := workload.Echo{Namespace: restless, Name: "web", PartOf: restless, Replicas: 4}
	each := workload.Echo{Namespace: restless, Name: "each", PartOf: restless}
	objects := slices.Concat([]runtime.Object{workload.Namespace(restless)}, app.Objects(), each.EachNode())
	if _, err := start(t.Context(), l, restless, objects); err != nil {
		t.Fatal(err)
	}
	file := writeSwitch(t, l, v1alpha1.Calico)

	o := operator{lab: l, killAt: eventOf(engine.StepStarted, "cordon/node2")}
	if _, code, _ := o.attend(
		t, command(t, "replumb", "apply", "-f", file, "--yes", "-o", "json", "--kubeconfig", l.Kubeconfig()),
	); code != -1 {
		t.Fatalf("apply ended with exit code %d before the second node", code)
	}
	reboot(t, l, "node1", "node2")
	requirePodsOf(t, l, "node1", newPods)
	requirePodsOf(t, l, "node2", oldPods)

	shown(t, l, "apply", "-f", joinedBy(t, l, file), "--yes")
	for _, node := range []string{"node1", "node2", "node3"} {
		requirePodsOf(t, l, node, newPods)
	}
	reboot(t, l, "node3")
	requirePodsOf(t, l, "node3", newPods)

	addNode(t, l)
	requireTooEarly(t, l)
	shown(t, l, "apply", "-f", file, "--yes")
	shown(t, l, "finish", toCalico, "--yes")
	reboot(t, l, "node4")
	for _, node := range l.NodeNames() {
		requirePodsOf(t, l, node, newPods)
	}
	requireNoTrace(t, l)
}

func reboot(t *testing.T, l *lab.Lab, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		must(t, l.Workers().Reboot(t.Context(), node))
		t.Logf("%s has been rebooted", node)
	}
}

func addNode(t *testing.T, l *lab.Lab) {
	t.Helper()
	m, err := l.Workers().Add(t.Context(), lab.Joining{})
	must(t, err)
	must(t, l.Workers().RestartProxies(t.Context(), netip.MustParsePrefix(bothPods)))
	t.Logf("%s has joined", m.Name)
}

// joinedBy writes a Migration whose run has a machine join before it switches the next node.
func joinedBy(t *testing.T, l *lab.Lab, file string) string {
	t.Helper()
	dir := filepath.Dir(file)
	once := filepath.Join(dir, "joined")
	// As on every other node, kube-proxy has to know both ranges there.
	script := fmt.Sprintf("#!/bin/sh -e\n[ -e %[1]s ] && exit 0\ntouch %[1]s\n%[2]s node add --name %[3]s\n"+
		"%[2]s restart kube-proxy --name %[3]s --cluster-cidr %[4]s\n",
		once, filepath.Join(binaries(t), "replumb-lab"), l.Topology.Name, bothPods)
	must(t, os.WriteFile(filepath.Join(dir, "join.sh"), []byte(script), 0o700))
	text, err := os.ReadFile(file)
	must(t, err)
	hooks := "  hooks:\n  - {name: join, when: BeforeBatch, exec: {command: [./join.sh], env: [PATH, HOME]}, timeout: 3m, onFailure: Stop}\n"
	joining := filepath.Join(dir, "joining.yaml")
	must(t, os.WriteFile(joining, append(text, hooks...), 0o600))
	return joining
}

// requireTooEarly fails the test unless finish refuses, since a node is not switched.
func requireTooEarly(t *testing.T, l *lab.Lab) {
	t.Helper()
	out, err := command(t, "replumb", "finish", toCalico, "--yes", "--kubeconfig", l.Kubeconfig()).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "node is not switched") {
		t.Errorf("with a node that has joined finish says (%v):\n%s", err, out)
	}
}

// requirePodsOf waits until every pod of the application on a node is ready, with an address of a range, and fails the test if that does not come.
func requirePodsOf(t *testing.T, l *lab.Lab, node, pods string) {
	t.Helper()
	in := netip.MustParsePrefix(pods)
	eventually(t, settled, func() error {
		all, err := l.Client().CoreV1().Pods(restless).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return err
		}
		ready := 0
		for i := range all.Items {
			p := &all.Items[i]
			if !p.DeletionTimestamp.IsZero() {
				return fmt.Errorf("pod %s is ending", p.Name)
			}
			if a, err := netip.ParseAddr(p.Status.PodIP); err != nil || !in.Contains(a) {
				return fmt.Errorf("pod %s on %s has the address %q, which is not of %s", p.Name, node, p.Status.PodIP, in)
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		if ready == 0 || ready < len(all.Items) {
			return fmt.Errorf("%d of %d pods on %s are ready", ready, len(all.Items), node)
		}
		return nil
	})
}
