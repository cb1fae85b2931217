package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
)

// TestClusterAPIServices moves the whole Service range of a cluster whose machines Cluster API makes, by examples/service-cidr/cluster-api.yaml: its
// actions change the KubeadmControlPlane, which replaces its only machine for certificates and again for flags. Clients on the worker lose nothing but
// calls of the API. Afterwards the control plane is replaced once more and a worker joins, and nothing brings the old range back.
func TestClusterAPIServices(t *testing.T) {
	topology := withCalico("e2e-capi")
	topology.Installer, topology.Nodes = lab.ByClusterAPI, []lab.ProxyMode{lab.IPTables}
	l := bringUp(t, topology)
	c := &clusterAPI{T: t, l: l}
	s := wholeUnderTraffic(t, l)
	kubectl(t, l, "-n kube-system create poddisruptionbudget coredns --selector=k8s-app=kube-dns --max-unavailable=1")
	kubectl(t, l, "-n kube-system rollout restart deployment coredns")
	kubectl(t, l, "-n kube-system rollout status deployment coredns --timeout=2m")
	file := c.services()
	nothing := func(context.Context) error { return nil } // actions do it
	o := operator{lab: l, instead: map[string]func(context.Context) error{
		"gate/certificates": nothing, "gate/kubelets": c.kubelets, "gate/api-servers": nothing,
	}}
	moved := s.during(t, "the whole move", func() {
		replumb, err := c.management().Machine("cp1")
		must(t, err)
		// It runs where API servers are reached by their addresses, whichever machines they are on.
		cmd, err := replumb.Command(t.Context(), "env", "MANAGEMENT_KUBECONFIG=/etc/cluster-api/kubeconfig", "CONTROL_PLANE="+topology.Name,
			"PATH="+filepath.Dir(l.Kubectl())+":"+os.Getenv("PATH"), filepath.Join(binaries(t), "replumb"),
			"apply", "-f", file, "-o", "json", "--kubeconfig", c.inside(filepath.Dir(file)))
		must(t, err)
		if events, code, _ := o.attend(t, cmd); code != 0 {
			logLast(t, events)
			t.Fatalf("apply ended with exit code %d", code)
		}
	})
	moved.requireNothingLost(t, butAPI)
	requireWhole(t, l, newRange)

	s.endClients(t, l)
	c.pool("workers-a", "a", 2)
	c.restartPlane()
	c.await("workers-a", 2)
	must(t, c.refresh())
	requireWhole(t, l, newRange)
	for _, on := range slices.Concat(l.ControlPlanes(), l.NodeNames()) {
		out, err := l.Shell(t.Context(), on, "grep -A1 clusterDNS /var/lib/kubelet/config.yaml")
		must(t, err)
		if !strings.Contains(string(out), newDNS) {
			t.Errorf("%s names to its pods: %s", on, out)
		}
	}
}

// services is the example's file, in a folder with its script, and with agents of this build.
func (c *clusterAPI) services() string {
	c.Helper()
	root, err := component.SourceRoot()
	must(c.T, err)
	dir := c.TempDir()
	for _, name := range []string{"cluster-api.yaml", "cluster-api.sh"} {
		data, err := os.ReadFile(filepath.Join(root, "examples", "service-cidr", name))
		must(c.T, err)
		must(c.T, os.WriteFile(filepath.Join(dir, name), data, 0o700))
	}
	return rewrite(c.T, filepath.Join(dir, "cluster-api.yaml"), func(text string) string {
		return text + fmt.Sprintf("  image: %q\n  proof: {agents: Enabled}\n", workload.ReplumbImage)
	})
}

// inside is a file with the administrator's access from machines.
func (c *clusterAPI) inside(dir string) string {
	c.Helper()
	config, err := clientcmd.LoadFromFile(c.l.Kubeconfig())
	must(c.T, err)
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + c.l.ClusterAPI().Endpoint().String()
	}
	path := filepath.Join(dir, "kubeconfig")
	must(c.T, clientcmd.WriteToFile(*config, path))
	return path
}

// restartPlane has the control plane replaced as it is, and waits for that.
func (c *clusterAPI) restartPlane() {
	c.Helper()
	plane := "kubeadmcontrolplane/" + c.l.Topology.Name
	c.manage("", "patch", plane, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"rollout":{"after":%q}}}`, time.Now().UTC().Format(time.RFC3339)))
	generation := c.manage("", "get", plane, "-o", "jsonpath={.metadata.generation}")
	c.manage("", "wait", plane, "--for=jsonpath={.status.observedGeneration}="+generation, "--timeout=5m")
	c.manage("", "wait", plane, "--for=condition=RollingOut=False", "--timeout=5m")
	c.manage("", "wait", plane, "--for=condition=Available", "--timeout=5m")
}

// kubelets does at the gate what the page says where machines stay: the ConfigMap is for those to come.
func (c *clusterAPI) kubelets(ctx context.Context) error {
	if err := c.refresh(); err != nil {
		return err
	}
	for i, on := range slices.Concat(c.l.ControlPlanes(), c.l.NodeNames()) {
		script := "kubeadm upgrade node phase kubelet-config && systemctl restart kubelet"
		if i == 0 {
			script = "kubectl -n kube-system edit configmap kubelet-config && " + script
		}
		_, err := c.l.Shell(ctx, on, script, "KUBECONFIG=/etc/kubernetes/admin.conf", "KUBE_EDITOR=sed -i 's/"+oldDNS+"$/"+newDNS+"/'")
		if err != nil {
			return err
		}
	}
	return nil
}
