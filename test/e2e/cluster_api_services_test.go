package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
)

// TestClusterAPIServices moves the whole Service range of a cluster whose machines Cluster API makes, and back, by
// examples/service-cidr/cluster-api.yaml: its actions change the KubeadmControlPlane, which replaces its only machine for certificates and again for
// flags. Clients on the worker lose nothing but calls of the API.
func TestClusterAPIServices(t *testing.T) {
	m := newClusterAPIMove(t, withCalico("e2e-capi"))
	s := wholeUnderTraffic(t, m.l)
	there := s.during(t, "the whole move", func() { m.replumb(newDNS, "apply", "-f", m.file) })
	there.requireNothingLost(t, butAPI)
	must(t, m.refresh())
	requireWhole(t, m.l, newRange)
	if !testing.Short() {
		back := s.during(t, "the whole rollback", func() { m.replumb(oldDNS, "rollback", "services", "--yes", "-f", m.file) })
		back.requireNothingLost(t, butAPI)
		must(t, m.refresh())
		requireWhole(t, m.l, oldRange)
	}
	s.endClients(t, m.l) // beside whom the control is no later than before
	requireNaiveLoses(t, m.l)
}

// TestClusterAPIFinish goes there while agents alone watch. Then the control plane is replaced once more, a worker joins, and it finishes: nothing
// brings the old range back.
func TestClusterAPIFinish(t *testing.T) {
	m := newClusterAPIMove(t, withCalico("e2e-capi-finish"))
	_, err := openShop(t.Context(), m.l)
	must(t, err)
	m.replumb(newDNS, "apply", "-f", m.file)
	m.pool("workers-a", "a", 2)
	m.restartPlane()
	m.await("workers-a", 2)
	m.replumb(newDNS, "finish", "services", "--yes", "-f", m.file)
	must(t, m.refresh())
	requireWhole(t, m.l, newRange)
	requireNoTrace(t, m.l)
	for _, on := range slices.Concat(m.l.ControlPlanes(), m.l.NodeNames()) {
		out, err := m.l.Shell(t.Context(), on, "grep -A1 clusterDNS /var/lib/kubelet/config.yaml")
		must(t, err)
		if !strings.Contains(string(out), newDNS) {
			t.Errorf("%s names to its pods: %s", on, out)
		}
	}
}

// TestClusterAPIPlanes goes there and back with three control planes, others of which answer while one is replaced: calls of API servers may fail, but
// not for longer than othersAnswerWithin.
func TestClusterAPIPlanes(t *testing.T) {
	topology := withCalico("e2e-capi-planes")
	topology.ControlPlanes = 3
	m := newClusterAPIMove(t, topology)
	s := wholeUnderTraffic(t, m.l)
	there := s.during(t, "the whole move", func() { m.replumb(newDNS, "apply", "-f", m.file) })
	there.requireNothingLost(t, butAPI)
	there.requireAPIAwayFor(t, topology.ControlPlanes, 0)
	must(t, m.refresh())
	requireWhole(t, m.l, newRange)
	if !testing.Short() {
		back := s.during(t, "the whole rollback", func() { m.replumb(oldDNS, "rollback", "services", "--yes", "-f", m.file) })
		back.requireNothingLost(t, butAPI)
		back.requireAPIAwayFor(t, topology.ControlPlanes, 0)
		must(t, m.refresh())
		requireWhole(t, m.l, oldRange)
	}
	s.endClients(t, m.l) // beside whom the control is no later than before
	requireNaiveLoses(t, m.l)
}

// clusterAPIMove is a move of the whole Service range.
type clusterAPIMove struct {
	*clusterAPI
	file string
}

func newClusterAPIMove(t *testing.T, topology lab.Topology) *clusterAPIMove {
	t.Helper()
	topology.Installer, topology.Nodes = lab.ByClusterAPI, []lab.ProxyMode{lab.IPTables}
	l := bringUp(t, topology)
	m := &clusterAPIMove{clusterAPI: &clusterAPI{T: t, l: l}}
	m.spreadNameServers()
	m.file = m.services()
	return m
}

// replumb runs a command where API servers are reached by their addresses, whichever machines they are on, and has kubelets name a cluster DNS at
// the gate that asks for it.
func (m *clusterAPIMove) replumb(dns string, args ...string) {
	m.Helper()
	on, err := m.management().Machine("cp1")
	must(m.T, err)
	argv := slices.Concat([]string{
		"env", "MANAGEMENT_KUBECONFIG=/etc/cluster-api/kubeconfig", "CONTROL_PLANE=" + m.l.Topology.Name,
		"PATH=" + filepath.Dir(m.l.Kubectl()) + ":" + os.Getenv("PATH"), filepath.Join(binaries(m.T), "replumb"),
	}, args, []string{"-o", "json", "--kubeconfig", m.inside(filepath.Dir(m.file))})
	cmd, err := on.Command(m.Context(), argv...)
	must(m.T, err)
	nothing := func(context.Context) error { return nil } // actions do it
	o := operator{lab: m.l, instead: map[string]func(context.Context) error{
		"gate/certificates": nothing, "gate/api-servers": nothing,
		"gate/kubelets": func(ctx context.Context) error { return m.kubelets(ctx, dns) },
	}}
	if events, code, _ := o.attend(m.T, cmd); code != 0 {
		logLast(m.T, events)
		m.logAround()
		m.Fatalf("%v ended with exit code %d", args, code)
	}
}

// logAround says what machines there were when a command had ended, and what agents called.
func (m *clusterAPIMove) logAround() {
	m.Helper()
	for kubeconfig, line := range map[string]string{
		m.l.Kubeconfig():            "get nodes,pods,endpointslices -n replumb-system -o wide",
		m.management().Kubeconfig(): "get machines,kubeadmcontrolplanes -o wide",
	} {
		out, err := exec.CommandContext(m.Context(), m.l.Kubectl(), append(strings.Fields(line), "--kubeconfig", kubeconfig)...).CombinedOutput()
		m.Logf("kubectl %s (%v):\n%s", line, err, out)
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

// restartPlane has the control plane replaced as it is, once agents have left as the page says, and waits for that. Pods of DaemonSets on a
// Node that Cluster API deletes may be endpoints until they are collected.
func (c *clusterAPI) restartPlane() {
	c.Helper()
	must(c.T, c.refresh())
	leaves := c.l.ControlPlanes()[0]
	kubectl(c.T, c.l, "label node -l node-role.kubernetes.io/control-plane "+v1alpha1.LabelAgents+"="+v1alpha1.NoAgents)
	probes := " -l " + v1alpha1.LabelRole + "=" + v1alpha1.RoleProbe
	kubectl(c.T, c.l, "-n replumb-system wait pod --for=delete --timeout=2m --field-selector=spec.nodeName="+leaves+probes)
	must(c.T, c.replacePlane(c.Context()))
}

// kubelets does at the gate what the page says where machines stay: the ConfigMap is for those to come.
func (c *clusterAPI) kubelets(ctx context.Context, dns string) error {
	if err := c.refresh(); err != nil {
		return err
	}
	other := map[string]string{newDNS: oldDNS, oldDNS: newDNS}[dns]
	for i, on := range slices.Concat(c.l.ControlPlanes(), c.l.NodeNames()) {
		script := "kubeadm upgrade node phase kubelet-config && systemctl restart kubelet"
		if i == 0 {
			script = "kubectl -n kube-system edit configmap kubelet-config && " + script
		}
		_, err := c.l.Shell(ctx, on, script, "KUBECONFIG=/etc/kubernetes/admin.conf", "KUBE_EDITOR=sed -i 's/"+other+"$/"+dns+"/'")
		if err != nil {
			return err
		}
	}
	return nil
}

// spreadNameServers does what the page says where Cluster API drains control planes.
func (c *clusterAPI) spreadNameServers() {
	c.Helper()
	kubectl(c.T, c.l, "-n kube-system create poddisruptionbudget coredns --selector=k8s-app=kube-dns --max-unavailable=1")
	kubectl(c.T, c.l, "-n kube-system rollout restart deployment coredns")
	kubectl(c.T, c.l, "-n kube-system rollout status deployment coredns --timeout=2m")
}

// plane is the KubeadmControlPlane.
func (c *clusterAPI) plane() string { return "kubeadmcontrolplane/" + c.l.Topology.Name }

// tryManage is manage, for who must not end the test.
func (c *clusterAPI) tryManage(ctx context.Context, args ...string) (string, error) {
	management, err := lab.Open(lab.ManagementOf(c.l.Topology.Name))
	if err != nil {
		return "", err
	}
	args = append([]string{"--kubeconfig", management.Kubeconfig()}, args...)
	out, err := exec.CommandContext(ctx, c.l.Kubectl(), args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// changePlane patches the KubeadmControlPlane, and waits until it has replaced its machines.
func (c *clusterAPI) changePlane(ctx context.Context, patch string) error {
	if _, err := c.tryManage(ctx, "patch", c.plane(), "--type=merge", "-p", patch); err != nil {
		return err
	}
	generation, err := c.tryManage(ctx, "get", c.plane(), "-o", "jsonpath={.metadata.generation}")
	if err != nil {
		return err
	}
	for _, it := range []string{"jsonpath={.status.observedGeneration}=" + generation, "condition=RollingOut=False", "condition=Available"} {
		if _, err := c.tryManage(ctx, "wait", c.plane(), "--for="+it, "--timeout=5m"); err != nil {
			return err
		}
	}
	return c.refresh()
}

// replacePlane has the control plane replaced as it is.
func (c *clusterAPI) replacePlane(ctx context.Context) error {
	return c.changePlane(ctx, fmt.Sprintf(`{"spec":{"rollout":{"after":%q}}}`, time.Now().UTC().Format(time.RFC3339)))
}
