package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestClusterAPI moves the workers of a cluster whose machines Cluster API makes to another network, by the files of examples/nodes/cluster-api:
// a second MachineDeployment makes others there, and each Machine is deleted as replumb has emptied its Node. replumb is killed before a drain, and
// twice before a machine ends. Clients on the control plane, and others that move, call Services and the API, and lose nothing. The control is Cluster API
// alone: it makes workers in the first network again, and replaces those of the second, whose pods it evicts itself.
func TestClusterAPI(t *testing.T) {
	topology := withCalico("e2e-capi")
	topology.Installer, topology.Nodes = lab.ByClusterAPI, []lab.ProxyMode{lab.IPTables, lab.IPTables}
	if testing.Short() {
		topology.Nodes = topology.Nodes[:1]
	}
	topology.Networks = append(topology.Networks, lab.Network{Name: "b", CIDR: netip.MustParsePrefix("172.31.0.0/24")})
	l := bringUp(t, topology)
	c := &clusterAPI{T: t, l: l}
	c.pool("workers-b", "b", len(topology.Nodes)) // which is made while clients come
	stays, rates := l.ControlPlanes()[0], traffic.Rates{Request: 10, LookUp: 2}
	objects := []runtime.Object{workload.Namespace(shopNamespace)}
	for _, echo := range workload.Shop(shopNamespace) {
		objects = append(objects, echo.Objects()...)
	}
	callees, err := start(t.Context(), l, shopNamespace, objects)
	must(t, err)
	watch, err := traffic.Start(t.Context(), l.Client(), []string{stays}, traffic.Call(shopNamespace, callees, rates))
	must(t, err)
	t.Cleanup(watch.Stop)
	s := &shop{watch: watch, prompt: traffic.OfPods()}
	fromInside(t, l, s, traffic.Rates{Request: 5, LookUp: 2})
	must(t, watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady))

	c.await("workers-b", len(topology.Nodes))
	file := c.file()
	c.manage(healthChecks(topology.Name), "apply", "-f", "-")
	moved := s.during(t, "the move of workers", func() {
		for _, at := range killedAt() {
			o := operator{lab: l, killAt: func(e engine.Event) bool { return e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, at) }}
			events, code, _ := o.attend(t, command(t, "replumb", "apply", "-f", file, "-o", "json", "--kubeconfig", l.Kubeconfig()))
			if code != -1 {
				logLast(t, events)
				t.Fatalf("apply ended with exit code %d before step %s", code, at)
			}
			c.requirePaused("pauses=replumb held=by-its-owner")
		}
		attendAs(t, operator{lab: l}, 0, "apply", "-f", file)
		attendAs(t, operator{lab: l}, 0, "finish", "workers", "--yes", "-f", file)
	})
	moved.requireNothingLost(t, traffic.All)
	c.requireWorkers("b", len(topology.Nodes))
	c.requirePaused("pauses= held=by-its-owner")

	alone := s.during(t, "the same by Cluster API alone", func() {
		c.pool("workers-a", "a", len(topology.Nodes))
		c.await("workers-a", len(topology.Nodes))
		c.pool("workers-b", "b", 0)
		c.await("workers-b", 0)
	})
	c.requireWorkers("a", len(topology.Nodes))
	lost := alone.stats(t, traffic.All)
	t.Logf("control: %d of %d requests were lost when Cluster API replaced workers alone, longest gap %s", lost.Failed, lost.Sent,
		lost.LongestGap.Round(time.Millisecond))
	if lost.Failed == 0 {
		t.Error("nothing was lost, so that nothing is shown by what replumb does not lose")
	}
}

// logLast shows what a command did at last.
func logLast(t *testing.T, events []engine.Event) {
	t.Helper()
	for _, e := range events[max(0, len(events)-40):] {
		t.Logf("%s %s %s %s %s", e.Time.UTC().Format("15:04:05.000"), e.Kind, e.Step, e.Message, e.Error)
	}
}

// killedAt are the steps before which the move of workers is killed: in short runs one, after which a machine may end twice.
func killedAt() []string {
	if testing.Short() {
		return []string{"terminate/"}
	}
	return []string{"drain/", "terminate/", "terminate/"}
}

// clusterAPI is who owns the machines, with access to the cluster that manages them.
type clusterAPI struct {
	*testing.T
	l *lab.Lab
}

// management is the lab that Cluster API runs in.
func (c *clusterAPI) management() *lab.Lab {
	c.Helper()
	management, err := lab.Open(lab.ManagementOf(c.l.Topology.Name))
	must(c.T, err)
	return management
}

// refresh has the lab know what machines there are by now.
func (c *clusterAPI) refresh() error {
	now, err := lab.Open(c.l.Topology.Name)
	if err == nil {
		*c.l = *now
	}
	return err
}

// manage runs kubectl on the cluster that manages machines.
func (c *clusterAPI) manage(stdin string, args ...string) string {
	c.Helper()
	cmd := exec.CommandContext(c.Context(), c.l.Kubectl(), append([]string{"--kubeconfig", c.management().Kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// poolManifests are a MachineDeployment in a network.
const poolManifests = `
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: LabMachineTemplate
metadata: {name: %[2]s}
spec: {template: {spec: {network: %[2]s}}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {name: %[1]s}
spec:
  clusterName: %[3]s
  replicas: %[4]d
  template:
    metadata: {labels: {node.cluster.x-k8s.io/pool: %[1]s}}
    spec:
      clusterName: %[3]s
      version: v%[5]s
      bootstrap: {configRef: {apiGroup: bootstrap.cluster.x-k8s.io, kind: KubeadmConfigTemplate, name: workers}}
      infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LabMachineTemplate, name: %[2]s}
`

// healthChecks are two MachineHealthChecks of a cluster, one of them paused by its owner.
func healthChecks(cluster string) string {
	return fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineHealthCheck
metadata: {name: pauses}
spec:
  clusterName: %[1]s
  selector: {matchLabels: {cluster.x-k8s.io/deployment-name: workers-a}}
  checks: {unhealthyNodeConditions: [{type: Ready, status: "False", timeoutSeconds: 300}]}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineHealthCheck
metadata: {name: held, annotations: {cluster.x-k8s.io/paused: by-its-owner}}
spec:
  clusterName: %[1]s
  selector: {matchLabels: {cluster.x-k8s.io/deployment-name: workers-b}}
`, cluster)
}

// requirePaused fails the test unless MachineHealthChecks are paused as it says, each by its annotation.
func (c *clusterAPI) requirePaused(want string) {
	c.Helper()
	var got []string
	for _, name := range []string{"pauses", "held"} {
		value := c.manage("", "get", "machinehealthcheck", name, "-o", `jsonpath={.metadata.annotations.cluster\.x-k8s\.io/paused}`)
		got = append(got, name+"="+value)
	}
	if got := strings.Join(got, " "); got != want {
		c.Errorf("MachineHealthChecks are paused as %q, want %q", got, want)
	}
}

// machinesWithin is how long Cluster API may take to make or end the machines of a pool.
const machinesWithin = 5 * time.Minute

// pool has a MachineDeployment be of so many workers in a network.
func (c *clusterAPI) pool(name, network string, count int) {
	c.Helper()
	c.manage(fmt.Sprintf(poolManifests, name, network, c.l.Topology.Name, count, c.l.Topology.Kubernetes), "apply", "-f", "-")
}

// await waits until as many workers of a MachineDeployment are ready, and no more are there.
func (c *clusterAPI) await(name string, count int) {
	c.Helper()
	eventually(c.T, machinesWithin, func() error {
		got := c.manage("", "get", "machinedeployment", name, "-o", "jsonpath={.status.replicas} {.status.readyReplicas}")
		if want := fmt.Sprintf("%[1]d %[1]d", count); got != want {
			return fmt.Errorf("machines, and ready ones, of %s are %q, want %q", name, got, want)
		}
		return nil
	})
}

// file is the example's, in a folder with its script, and with agents of this build.
func (c *clusterAPI) file() string {
	c.Helper()
	root, err := component.SourceRoot()
	must(c.T, err)
	dir := c.TempDir()
	must(c.T, os.CopyFS(dir, os.DirFS(filepath.Join(root, "examples", "nodes", "cluster-api"))))
	path := filepath.Join(dir, "nodes.yaml")
	text, err := os.ReadFile(path)
	must(c.T, err)
	with := fmt.Appendf(text, "  image: %q\n  proof: {agents: Enabled}\n", workload.ReplumbImage)
	must(c.T, os.WriteFile(path, with, 0o600))
	c.Setenv("MANAGEMENT_KUBECONFIG", c.management().Kubeconfig())
	c.Setenv("CLUSTER", c.l.Topology.Name)
	c.Setenv("PATH", filepath.Dir(c.l.Kubectl())+":"+os.Getenv("PATH"))
	return path
}

// requireWorkers fails the test unless all workers are in a network, so many, and each has a Machine, a machine and a Node.
func (c *clusterAPI) requireWorkers(network string, count int) {
	c.Helper()
	must(c.T, c.refresh())
	if got := len(inNetwork(c.l, lab.Worker, network)); got != count || len(c.l.NodeNames()) != count {
		c.Errorf("of %v workers %d are in network %s, want %d", c.l.NodeNames(), got, network, count)
	}
	all, err := c.l.Client().CoreV1().Nodes().List(c.Context(), metav1.ListOptions{})
	must(c.T, err)
	if want := count + len(c.l.ControlPlanes()); len(all.Items) != want {
		c.Errorf("there are %d Nodes, want %d", len(all.Items), want)
	}
	if got := strings.Fields(c.manage("", "get", "machines", "-o", "jsonpath={.items[*].status.nodeRef.name}")); len(got) != len(all.Items) {
		c.Errorf("Machines have the Nodes %v", got)
	}
}
