package e2e

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestClusterAPIPods moves the pods of a cluster whose machines Cluster API makes by Calico's pools: there, back, there again and for good. Another
// worker joins when addresses of tunnels are held and the old pool is about to be disabled, and a third after finish, with a further control plane; all
// have pods in the new range. At the last gate the KubeadmControlPlane gets the flag that the gate names. The control takes it out again: the
// controller manager of the next machine does not start.
func TestClusterAPIPods(t *testing.T) {
	topology := withCalico("e2e-capi-pods")
	topology.Installer, topology.Nodes = lab.ByClusterAPI, []lab.ProxyMode{lab.IPTables}
	l := bringUp(t, topology)
	c, k := &clusterAPI{T: t, l: l}, &byThePage{T: t, l: l}
	c.spreadNameServers()
	k.tellProxies(oldPods, "10.240.0.0/12") // clients that stay have addresses of it, too
	from, to := l.Topology.PodCIDR, netip.MustParsePrefix(movedTo)
	s, file := fewUnderTraffic(t, l), writePodMigration(t, "pods", from, to)
	requirePodsIn(t, l, from)

	there := s.during(t, "the move, while a worker joins", func() {
		c.killed(file, "disable/")
		c.pool("workers-b", "a", 1)
		c.await("workers-b", 1)
		shown(t, l, "apply", "-f", file)
	})
	there.requireUnharmed(t)
	must(t, c.refresh())
	requirePodsIn(t, l, to)
	requireTunnelsIn(t, l, to)
	k.requirePodOn(c.nodeOf("workers-b"), to)
	if !testing.Short() {
		back := s.during(t, "the way back", func() { shown(t, l, "rollback", "pods", "--yes") })
		back.requireUnharmed(t)
		requireSettledIn(t, l, from)
		again := s.during(t, "the move there again", func() { shown(t, l, "apply", "-f", file) })
		again.requireUnharmed(t)
	}
	finish := s.during(t, "finish", func() {
		o := operator{lab: l, instead: map[string]func(context.Context) error{"gate/installer-moved": c.podsHaveMoved}}
		attendAs(t, o, 0, "finish", "pods", "--yes")
	})
	finish.requireUnharmed(t)
	must(t, c.refresh())
	requirePodsIn(t, l, to)
	requireTunnelsIn(t, l, to)
	requireNoTrace(t, l)
	requireNothingHeld(t, l) // but not of Nodes that are gone: their blocks are calico-kube-controllers', which a lab has not
	s.watch.Stop()
	removeNamespaces(t, l, varietyNamespace) // whose clients take the time of others
	requireAllAtOnceLoses(t, l)
	removeNamespaces(t, l, atOnce)

	c.pool("workers-a-more", "a", 1)
	must(t, c.replacePlane(t.Context()))
	c.await("workers-a-more", 1)
	must(t, c.refresh())
	k.requireManagerRuns("--cluster-cidr="+newPods, "--allocate-node-cidrs=false")
	k.requirePodOn(c.nodeOf("workers-a-more"), to)
	k.requirePodOn(l.ControlPlanes()[0], to)
	c.requireManagerRefuses()
}

// fewUnderTraffic starts two Services, and clients of them on every node: some stay where they are, with addresses of a pool of their own, and one
// moves like everything else. A second cluster runs on the same machine, which carries no more.
func fewUnderTraffic(t *testing.T, l *lab.Lab) *shop {
	t.Helper()
	createApart(t, l)
	front := workload.Echo{Namespace: varietyNamespace, Name: workload.GuestsMay, PartOf: workload.PartOfVariety, Replicas: 2}
	cart := workload.Echo{Namespace: varietyNamespace, Name: "cart", PartOf: workload.PartOfVariety, Replicas: 1}
	objects := slices.Concat([]runtime.Object{workload.Namespace(varietyNamespace)}, front.Objects(), cart.Objects(), workload.Policies(varietyNamespace))
	callees, err := start(t.Context(), l, varietyNamespace, objects)
	must(t, err)
	var staying []traffic.Calls
	for _, c := range callsOf(varietyNamespace, callees, traffic.Rates{Request: 4, Stream: 2, LookUp: 2, Forbidden: 1}) {
		staying = append(staying, c.As(c.Labels, map[string]string{poolsAnnotation: `["` + apartPool + `"]`}))
	}
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), staying...)
	must(t, err)
	t.Cleanup(watch.Stop)
	for _, c := range callsOf(varietyNamespace, callees, podRates()) {
		c.Client = "moving-" + c.Client
		must(t, watch.AddRoving(t.Context(), l.Client(), l.NodeNames(), c))
	}
	s := &shop{watch: watch, prompt: traffic.OfPods()}
	s.awaitVerdicts(t)
	return s
}

// killed runs apply until a step whose name begins so has begun, and kills it.
func (c *clusterAPI) killed(file, step string) {
	c.Helper()
	o := operator{lab: c.l, killAt: eventOf(engine.StepStarted, step)}
	args := []string{"apply", "-f", file, "--yes", "-o", "json", "--kubeconfig", c.l.Kubeconfig()}
	if events, code, _ := o.attend(c.T, command(c.T, "replumb", args...)); code != -1 {
		logLast(c.T, events)
		c.Fatalf("apply ended with exit code %d before step %s", code, step)
	}
}

// nodeOf is the Node of the only worker of a MachineDeployment.
func (c *clusterAPI) nodeOf(pool string) string {
	c.Helper()
	selector := "cluster.x-k8s.io/deployment-name=" + pool
	return c.manage("", "get", "machines", "-l", selector, "-o", "jsonpath={.items[0].status.nodeRef.name}")
}

// withManager is a patch of the KubeadmControlPlane.
func withManager(controllerManager string) string {
	return `{"spec":{"kubeadmConfigSpec":{"clusterConfiguration":{"controllerManager":` + controllerManager + `}}}}`
}

// podsHaveMoved does what the gate before the end of a move by pools says.
func (c *clusterAPI) podsHaveMoved(ctx context.Context) error {
	if err := c.changePlane(ctx, withManager(`{"extraArgs":[{"name":"allocate-node-cidrs","value":"false"}]}`)); err != nil {
		return err
	}
	const edit = "kubectl -n kube-system edit configmap kubeadm-config"
	k := &byThePage{T: c.T, l: c.l}
	if err := k.run(ctx, c.l.ControlPlanes()[0], edit, "s,podSubnet: "+oldPods+",podSubnet: "+newPods+","); err != nil {
		return err
	}
	pods := `{"spec":{"clusterNetwork":{"pods":{"cidrBlocks":["` + newPods + `"]}}}}`
	_, err := c.tryManage(ctx, "patch", "cluster/"+c.l.Topology.Name, "--type=merge", "-p", pods)
	return err
}

// requireManagerRefuses is the control: without the flag, the controller manager of the next control plane ends as often as it is started.
func (c *clusterAPI) requireManagerRefuses() {
	c.Helper()
	c.manage("", "patch", c.plane(), "--type=merge", "-p", withManager("null"))
	eventually(c.T, machinesWithin, func() error {
		pods, err := c.l.Client().CoreV1().Pods(metav1.NamespaceSystem).List(c.Context(), metav1.ListOptions{LabelSelector: "component=" + controllerManager})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if code := endedAllocating(&pods.Items[i]); code != 0 {
				c.Logf("control: %s, which gives Nodes ranges, ends with exit code %d", pods.Items[i].Name, code)
				return nil
			}
		}
		return errors.New("no controller manager has ended")
	})
}
