package e2e

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
)

// TestKubeadmCalico moves the pods of a cluster that kubeadm has made and whose network is Calico's, there, back, there again and for good. Nodes
// keep the ranges that the controller manager has given them, which Calico does not go by: at the last gate a person tells kubeadm so, as the gate
// says. kubeadm upgrades, the controller manager it writes starts, and a worker joins, whose pods have new addresses. The control deletes all pods
// at once; another one has kubeadm upgrade with the new range alone, and the controller manager does not start.
func TestKubeadmCalico(t *testing.T) {
	topology := withCalico("e2e-kubeadm-calico")
	topology.Installer, topology.Nodes = lab.Kubeadm, []lab.ProxyMode{lab.IPTables, lab.IPTables}
	l := bringUp(t, topology)
	k := &byThePage{T: t, l: l}
	k.tellProxies(oldPods, "10.240.0.0/12") // clients that stay have addresses of it, too
	m := newPodMove(t, l)

	m.apply(t)
	back := m.s.during(t, "the way back", func() { shown(t, l, "rollback", "pods", "--yes") })
	back.requireUnharmed(t)
	back.requireHostsConnectOnceMore(t)
	requireSettledIn(t, l, m.from)
	m.apply(t)

	finish := m.s.during(t, "finish", func() {
		attendAs(t, operator{lab: l, instead: map[string]func(context.Context) error{"gate/installer-moved": k.podsHaveMoved}}, 0, "finish", "pods", "--yes")
	})
	finish.requireUnharmed(t)
	finish.requireHostsConnectOnceMore(t)
	requireSettledIn(t, l, m.to)
	requireAllAtOnceLoses(t, l)
	removeNamespaces(t, l, atOnce) // whose clients take the time of others

	k.upgradeToTheSame(oldPods)
	k.requireManagerRuns("--cluster-cidr="+newPods, "--allocate-node-cidrs=false")
	joined, err := l.Workers().Add(t.Context(), lab.Joining{})
	must(t, err)
	k.requirePodOn(joined.Name, netip.MustParsePrefix(newPods))
	k.requireManagerRefuses()
}

// podsHaveMoved does what the gate before the end of a move by pools says.
func (k *byThePage) podsHaveMoved(ctx context.Context) error {
	const edit = "kubectl -n kube-system edit configmap kubeadm-config"
	return k.run(ctx, k.l.ControlPlanes()[0], edit, `s,podSubnet: `+oldPods+`,podSubnet: `+newPods+
		`,; s,^\( *\)controllerManager: {}$,\1controllerManager:\n\1  extraArgs:\n\1  - name: allocate-node-cidrs\n\1    value: "false",`)
}

// requireManagerRuns fails the test unless controller managers have these flags.
func (k *byThePage) requireManagerRuns(flags ...string) {
	k.Helper()
	for _, on := range k.l.ControlPlanes() {
		for _, flag := range flags {
			if command := commandOf(k.T, k.l, on, controllerManager); !slices.Contains(command, flag) {
				k.Errorf("%s on %s runs without %s: %v", controllerManager, on, flag, command)
			}
		}
	}
}

// requirePodOn fails the test unless a pod that is started on a node becomes ready, with an address of a range. The pod ends again.
func (k *byThePage) requirePodOn(node string, within netip.Prefix) {
	k.Helper()
	pod := workload.Echo{Namespace: metav1.NamespaceDefault, Name: "newcomer-" + node, PartOf: "newcomers"}.Pod()
	pod.Spec.NodeName = node
	_, err := start(k.Context(), k.l, metav1.NamespaceDefault, []runtime.Object{pod})
	must(k.T, err)
	has, err := k.l.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(k.Context(), pod.Name, metav1.GetOptions{})
	must(k.T, err)
	if a, err := netip.ParseAddr(has.Status.PodIP); err != nil || !within.Contains(a) {
		k.Errorf("a pod on %s, which has joined, has %q, not an address of %s", node, has.Status.PodIP, within)
	}
	must(k.T, k.l.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(k.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
}

const controllerManager = "kube-controller-manager"

// requireManagerRefuses is the control: a controller manager that gives Nodes ranges, as kubeadm has it, ends as often as it is started.
func (k *byThePage) requireManagerRefuses() {
	k.Helper()
	on := k.l.ControlPlanes()[0]
	const file = "/etc/kubernetes/manifests/" + controllerManager + ".yaml"
	_, err := k.l.Shell(k.Context(), on, "sed s,allocate-node-cidrs=false,allocate-node-cidrs=true, "+file+" > /root/manager.yaml && cp /root/manager.yaml "+file)
	must(k.T, err)
	eventually(k.T, 2*settled, func() error {
		p, err := k.l.Client().CoreV1().Pods(metav1.NamespaceSystem).Get(k.Context(), controllerManager+"-"+on, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if code := endedAllocating(p); code != 0 {
			k.Logf("control: a controller manager that gives Nodes ranges ends with exit code %d", code)
			return nil
		}
		return errors.New("the controller manager runs with a range that no Node has")
	})
}

// endedAllocating is the exit code with which a controller manager that gives Nodes ranges has ended at last; zero, if it gives none, or runs.
func endedAllocating(p *corev1.Pod) int32 {
	if !slices.Contains(p.Spec.Containers[0].Command, "--allocate-node-cidrs=true") {
		return 0
	}
	for i := range p.Status.ContainerStatuses {
		if ended := p.Status.ContainerStatuses[i].LastTerminationState.Terminated; ended != nil {
			return ended.ExitCode
		}
	}
	return 0
}
