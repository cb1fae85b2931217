package lab

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/testing/pki"
	"github.com/replumb/replumb/lab/image"
	"github.com/replumb/replumb/lab/machine"
)

// Installer is what makes a cluster of a lab's machines.
type Installer string

const (
	// ByLab starts the cluster's programs with plain flags.
	ByLab Installer = ""
	// Kubeadm is the installer of that name: machines run a container runtime and a kubelet, and everything else is in pods.
	Kubeadm Installer = "kubeadm"
	// ByClusterAPI has Cluster API make the machines and, by kubeadm, the cluster: see ClusterAPI.
	ByClusterAPI Installer = "cluster-api"
)

// kubeadmComponent has the installer's program.
const kubeadmComponent = "kubeadm"

// What kubeadm's packages put onto machines. The script stands for systemd, as far as kubeadm and its documentation use it.
const (
	kubeadmBin     = "/usr/local/bin/"
	systemctlPath  = kubeadmBin + "systemctl"
	kubeletUnit    = "/etc/systemd/system/kubelet.service"
	kubeletDefault = "/etc/default/kubelet"
	kubeadmConfig  = "/etc/replumb-lab/kubeadm.yaml"
)

//go:embed kubeadm/systemctl.sh
var systemctlScript []byte

//go:embed kubeadm/kubelet.sh
var kubeletScript []byte

//go:embed kubeadm/init.yaml
var kubeadmTemplate string

//go:embed kubeadm/components.yaml
var componentsTemplate string

// layers are folders of a machine's own, beside those of every machine: where packages install programs, and root's.
func (t Topology) layers() []string {
	if !t.byKubeadm() {
		return nil
	}
	return []string{"/usr/local", "/root"}
}

// kubeadm makes the cluster with the installer of that name.
type kubeadm struct{ *Lab }

func (l *Lab) kubeadm() kubeadm { return kubeadm{l} }

func (t Topology) byKubeadm() bool { return t.Installer == Kubeadm || t.byClusterAPI() }

func (t Topology) validateInstaller() error {
	invalid := func(problem, hint string) error { return &InvalidError{"installer", problem, hint} }
	switch {
	case t.Installer == ByLab:
		return nil
	case !t.byKubeadm():
		return invalid(fmt.Sprintf("%q makes no cluster of a lab", t.Installer), "use kubeadm or cluster-api, or none")
	case t.byClusterAPI() && !slices.Contains([]CNI{Flannel, Calico}, t.CNI):
		return invalid("a cluster made by Cluster API has flannel or Calico", "use --cni calico, or flannel")
	case !slices.Contains([]CNI{HostLocal, Flannel, Calico, Cilium}, t.CNI):
		return invalid("a cluster made by kubeadm has host-local, flannel, Calico or Cilium", "use --cni flannel, calico or cilium, or leave it out")
	case t.byClusterAPI() && !validName.MatchString(ManagementOf(t.Name)):
		return &InvalidError{
			"name", fmt.Sprintf("%q leaves no room for the lab that makes its machines, %s", t.Name, ManagementOf(t.Name)),
			"use up to 15 lower-case letters, digits and dashes",
		}
	case t.Beside != "" || t.ProxyPods:
		return invalid("a cluster made by kubeadm has the proxies of kubeadm, and one network of pods", "leave --beside and --proxy-pods out")
	case t.byClusterAPI() && (t.Edge || len(t.With) > 0):
		return invalid("a cluster made by Cluster API has nothing beside it", "leave the other flags out")
	case len(t.Families()) > 1:
		return invalid("a cluster made by kubeadm has one family of addresses", "leave the second ranges out")
	case t.Kubernetes != releases()[0].version:
		return invalid("kubeadm is of Kubernetes "+releases()[0].version, "leave --kubernetes out")
	case slices.ContainsFunc(t.Nodes, func(m ProxyMode) bool { return m != t.Nodes[0] }):
		return invalid("the pods of one DaemonSet of kube-proxy have one mode", "use --proxy iptables, or nftables")
	}
	return nil
}

// files are those of a machine before kubeadm runs there: the packages', what is the machine's own, and on control planes the authorities,
// which kubeadm takes as it finds them.
func (l kubeadm) files(m *Member, c *credentials) (map[string][]byte, error) {
	var f files
	if l.Topology.CNI == HostLocal {
		f.kubeconfig(podnetKubeconfig, l.Balancers().server(), c.cluster, pki.Request{CommonName: podnetUser})
	}
	f.add(systemctlPath, systemctlScript)
	f.add(kubeletUnit, kubeletScript)
	f.add("/run/kubelet.stopped", nil) // as the package leaves it: kubeadm starts it
	extra := fmt.Sprintf("--cgroup-root=%s --node-ip=%s --hostname-override=%s", l.Workers().podCGroup(m.Name), commas(m.addresses()), m.Name)
	if l.Topology.byClusterAPI() {
		extra += " --provider-id=" + l.ClusterAPI().ProviderID(m)
	}
	f.add(kubeletDefault, fmt.Appendf(nil, "KUBELET_EXTRA_ARGS=%q\n", extra))
	f.add(containerdConfigPath, []byte(containerdConfig(l.Topology.CNI, l.Binaries)+registryConfig(l.Topology)))
	for path, data := range l.Addons().registryHosts() {
		f.add(path, data)
	}
	f.add(resolvConfPath, l.resolvConf(m))
	if m.Role == ControlPlane && !l.Topology.byClusterAPI() { // which has authorities of its own
		f.pair(pkiDir+"ca", c.cluster.Pair)
		f.pair(pkiDir+"front-proxy-ca", c.frontProxy.Pair)
		f.pair(pkiDir+"etcd/ca", c.etcd.Pair)
	}
	return f.content, f.err
}

// resolvConf is what pods know of names outside. kubeadm's CoreDNS does not start without a name server to ask: without an edge nobody answers
// there.
func (l kubeadm) resolvConf(m *Member) []byte {
	if l.Topology.Edge {
		return l.edging().resolvConf()
	}
	return fmt.Appendf(nil, "nameserver %s\n", l.Fabrics().networkOf(m).Gateway())
}

// programs are those of a machine: all others are in pods.
func (l kubeadm) programs(m *Member) []machine.Program {
	programs := []machine.Program{
		{
			Name: "containerd", Argv: []string{filepath.Join(l.Binaries.containerd, "containerd"), "--config", containerdConfigPath},
			Env: []string{"PATH=" + l.Binaries.containerd + ":" + systemPath},
		},
		{Name: "kubelet", Argv: []string{"/bin/sh", kubeletUnit}},
	}
	if l.Topology.CNI == HostLocal {
		programs = append(programs, podnet(l.Binaries, m.Name)...)
	}
	return programs
}

// machines are those that pods run on.
func (l kubeadm) machines() []string { return slices.Concat(l.ControlPlanes(), l.NodeNames()) }

// install makes the cluster: init on the first control plane, then join on all others.
func (l kubeadm) install(ctx context.Context, o Options) error {
	for _, name := range l.machines() {
		if err := l.installPackages(ctx, name); err != nil {
			return err
		}
	}
	first := l.with(ControlPlane)[0]
	config, err := l.config(first)
	if err != nil {
		return err
	}
	on, err := l.Machine(first.Name)
	if err != nil {
		return err
	}
	if err := on.WriteFile(ctx, kubeadmConfig, config); err != nil {
		return err
	}
	o.say("kubeadm init on %s", first.Name)
	if _, err := l.Kubeadm(ctx, first.Name, "init", "--config", kubeadmConfig, "--ignore-preflight-errors=all"); err != nil {
		return err
	}
	if err := l.installNetwork(ctx); err != nil {
		return err
	}
	for _, m := range l.with(ControlPlane, Worker) {
		if m.Name == first.Name {
			continue
		}
		o.say("kubeadm join on %s", m.Name)
		if err := l.join(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// installNetwork gives the cluster what its pods have their network from, as its maker does after kubeadm init.
func (l kubeadm) installNetwork(ctx context.Context) error {
	switch l.Topology.CNI {
	case Flannel:
		return l.Addons().installFlannel(ctx)
	case Calico:
		return l.Addons().installCalicoPods(ctx)
	case Cilium:
		return l.Addons().installCilium(ctx)
	}
	for _, create := range [][]string{
		{"create", "clusterrole", podnetUser, "--verb=list,watch", "--resource=nodes,pods"},
		{"create", "clusterrolebinding", podnetUser, "--clusterrole=" + podnetUser, "--user=" + podnetUser},
	} {
		if _, err := l.kubectl(ctx, nil, create...); err != nil {
			return err
		}
	}
	return nil
}

// installPackages puts programs where packages have them.
func (l kubeadm) installPackages(ctx context.Context, name string) error {
	_, err := l.Exec(ctx, name, "ln", "-sf", filepath.Join(l.Binaries.kubeadm, "kubeadm"), filepath.Join(l.Binaries.kubernetes, "kubelet"),
		filepath.Join(l.Binaries.kubernetes, "kubectl"), kubeadmBin)
	if err != nil {
		return err
	}
	_, err = l.Exec(ctx, name, "chmod", "755", systemctlPath)
	return err
}

// joinNew is join for a machine that was just started.
func (l kubeadm) joinNew(ctx context.Context, m *Member) error {
	if err := l.installPackages(ctx, m.Name); err != nil {
		return err
	}
	return l.join(ctx, m)
}

// join has a machine join by the command that kubeadm prints on the first control plane.
func (l kubeadm) join(ctx context.Context, m *Member) error {
	first := l.ControlPlanes()[0]
	printed, err := l.Kubeadm(ctx, first, "token", "create", "--print-join-command")
	if err != nil {
		return err
	}
	args := strings.Fields(string(printed))[1:] // without the program's name
	args = append(args, "--node-name="+m.Name, "--ignore-preflight-errors=all", "--cri-socket=unix://"+containerdSocket)
	if m.Role == ControlPlane {
		out, err := l.Kubeadm(ctx, first, "init", "phase", "upload-certs", "--upload-certs")
		if err != nil {
			return err
		}
		lines := strings.Fields(string(out))
		args = append(args, "--control-plane", "--certificate-key="+lines[len(lines)-1], "--apiserver-advertise-address="+m.Address.String())
	}
	_, err = l.Kubeadm(ctx, m.Name, args...)
	return err
}

// Kubeadm runs kubeadm on a machine of a lab that it has made, and returns what it prints.
func (l *Lab) Kubeadm(ctx context.Context, on string, args ...string) ([]byte, error) {
	return l.Exec(ctx, on, append([]string{"env", "-i", "HOME=/root", "PATH=" + systemPath, "kubeadm"}, args...)...)
}

// Shell runs a script on a machine as who is logged in there as root, and returns what it prints.
func (l *Lab) Shell(ctx context.Context, on, script string, env ...string) ([]byte, error) {
	argv := append([]string{"env", "-i", "HOME=/root", "PATH=" + systemPath}, env...)
	return l.Exec(ctx, on, append(argv, "bash", "-euo", "pipefail", "-c", script)...)
}

func (l kubeadm) config(first *Member) ([]byte, error) {
	own, err := rendered("init.yaml", kubeadmTemplate, map[string]any{
		"Address": first.Address, "Port": apiServerPort, "Name": first.Name, "Socket": containerdSocket, "Version": l.Topology.Kubernetes,
		"Cluster": l.Topology.Name, "Endpoint": strings.TrimPrefix(l.Balancers().server(), "https://"), "Services": l.Topology.ServiceCIDR, "Pods": l.Topology.PodCIDR,
		"NoProxy": l.Topology.withoutProxies(),
	})
	if err != nil {
		return nil, err
	}
	components, err := l.components()
	return append(own, components...), err
}

// components are the configurations of kubelets and kube-proxies, which kubeadm init keeps in the cluster.
func (l kubeadm) components() ([]byte, error) {
	var mode ProxyMode // without one kube-proxy runs iptables
	if len(l.Topology.Nodes) > 0 && l.Topology.Nodes[0] == NFTables {
		mode = l.Topology.Nodes[0]
	}
	return rendered("components.yaml", componentsTemplate, map[string]any{"ResolvConf": resolvConfPath, "Proxy": mode})
}

// kubeadmImages have the names that kubeadm asks for (kubeadm config images list). Their programs are one, so that they share a layer.
func kubeadmImages(b binaries, coreDNS, version string) ([]image.Image, error) {
	const registry, in = "registry.k8s.io/", "usr/local/bin/"
	program := image.Image{Binary: filepath.Join(b.kubernetes, "kubelet"), Name: in + "kubernetes", Path: systemPath}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"} {
		program.Links = append(program.Links, in+name)
	}
	all := []image.Image{{Ref: registry + "coredns/coredns:v1.14.2", Binary: coreDNS, Name: "coredns"}}
	for _, name := range []string{"kube-apiserver:v" + version, "kube-controller-manager:v" + version, "kube-scheduler:v" + version, "etcd:3.6.8-0"} {
		one := program
		one.Ref = registry + name
		all = append(all, one)
	}
	proxy := program
	proxy.Ref = registry + "kube-proxy:v" + version
	err := addFirewall(&proxy)
	return append(all, proxy), err
}

// addFirewall gives an image the programs by which kube-proxy writes rules, and what they are linked with.
func addFirewall(proxy *image.Image) error {
	const tool = "usr/sbin/xtables-nft-multi"
	// Without names of protocols nft lists numbers, and kube-proxy deletes rules of its own when it starts again.
	proxy.More = map[string]string{"etc/protocols": "/etc/protocols"}
	proxy.MoreLinks = map[string]string{
		"lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin", "bin": "usr/bin",
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, kind := range []string{"", "-save", "-restore"} {
			proxy.MoreLinks["usr/sbin/"+name+kind] = tool
		}
	}
	plugins, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil {
		return err
	}
	for _, path := range append([]string{"/" + tool, "/usr/sbin/nft"}, plugins...) {
		proxy.More[strings.TrimPrefix(path, "/")] = path
		libraries, err := librariesOf(path)
		if err != nil {
			return err
		}
		for _, library := range libraries {
			to := library
			if !strings.HasPrefix(to, "/usr/") { // where /lib leads to /usr/lib
				to = "/usr" + to
			}
			proxy.More[strings.TrimPrefix(to, "/")] = library
		}
	}
	return nil
}

// librariesOf are the files that a program or library is linked with.
func librariesOf(path string) ([]string, error) {
	out, err := exec.Command("ldd", path).Output() //nolint:noctx // it reads a file
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", path, err)
	}
	var all []string
	for word := range bytes.FieldsSeq(out) {
		if bytes.HasPrefix(word, []byte("/")) {
			all = append(all, string(bytes.TrimSuffix(word, []byte(":"))))
		}
	}
	return all, nil
}
