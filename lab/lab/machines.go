package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/replumb/replumb/lab/cgroup"
	"github.com/replumb/replumb/lab/machine"
)

// startMachines makes the machines, joins them by the fabric, and writes what they are configured with.
func (l machines) startMachines(ctx context.Context, creds *credentials) error {
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	if err := tree.Create(l.machineSpec(l.Fabrics().forwarder()).CGroup); err != nil {
		return err
	}
	for i := range l.Members {
		if err := l.createCGroups(tree, &l.Members[i]); err != nil {
			return err
		}
	}
	start := l.startFabric
	if l.Fabrics().isGuest() {
		start = l.Fabrics().join
	}
	fabric, err := start(ctx)
	if err != nil {
		return err
	}
	defer fabric.Close()
	if err := l.writeKubeconfig(creds); err != nil {
		return err
	}
	for _, m := range l.with(ControlPlane) {
		if err := l.ControlPlaneNodes().start(ctx, fabric, creds, m, l.Topology.apiService()); err != nil {
			return err
		}
	}
	for _, m := range l.with(Worker) {
		if err := l.Workers().start(ctx, fabric, creds, m); err != nil {
			return err
		}
	}
	if err := l.edging().startAll(ctx, fabric, creds); err != nil {
		return err
	}
	return l.save()
}

// createCGroups makes those of a machine and, on a worker, of its pods.
func (l machines) createCGroups(tree *cgroup.Tree, m *Member) error {
	err := tree.Create(l.machineSpec(m.Name).CGroup)
	if err != nil || !l.runsPods(m) {
		return err
	}
	pods := l.Workers().podCGroup(m.Name)
	if err := tree.Create(pods); err != nil {
		return err
	}
	return tree.Prefer(pods, podsFirst)
}

// podsFirst is how many times the processor time of its kubelet and its containerd a node's pods may have. While pods start by the dozen, as where a
// node is drained, those two would have the clients wait that measure; elsewhere every node has processors of its own.
const podsFirst = 8

func (l *Lab) runsPods(m *Member) bool {
	return m.Role == Worker || m.Role == ControlPlane && l.Topology.byKubeadm()
}

func (l machines) startFabric(ctx context.Context) (*namespace, error) {
	spec := l.machineSpec(fabricName)
	spec.Sysctls = fabricSysctls(len(l.Fabrics().joined()) > 1 || l.Topology.Fabric != "")
	listener, err := l.balance(&spec)
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }()
	m, err := machine.Start(ctx, spec, listener)
	if err != nil {
		return nil, err
	}
	ns, err := network(ctx, m)
	if err != nil {
		return nil, err
	}
	return ns, ns.makeFabric(l.Fabrics().joined())
}

// balance has the fabric, or the forwarder, lead the host, and with several control planes the nodes too, to an API server that is ready.
func (l machines) balance(spec *machine.Spec) (*os.File, error) {
	spec.Forward.To = l.ControlPlaneNodes().apiServers()
	if (len(spec.Forward.To) > 1 || l.Topology.byClusterAPI()) && !l.Topology.Edge { // which has balancers of its own
		spec.Forward.Listen = fmt.Sprintf(":%d", apiServerPort)
	}
	listener, port, err := listen()
	l.Port = port
	return listener, err
}

func (l machines) writeKubeconfig(creds *credentials) error {
	kubeconfig, err := adminKubeconfig(creds, l.Port)
	if err != nil {
		return err
	}
	return os.WriteFile(l.Kubeconfig(), kubeconfig, 0o600)
}

// nodeSpec is that of a worker's machine, or a control plane's.
func (l *Lab) nodeSpec(m *Member) machine.Spec {
	spec := l.machineSpec(m.Name)
	spec.Sysctls, spec.Layers, spec.OwnProcesses = nodeSysctls(), l.Topology.layers(), l.Topology.byKubeadm()
	if l.Topology.runsCilium() && l.runsPods(m) {
		spec.BPF = ciliumGroups
	}
	return spec
}

// startOn starts a member's machine, plugs it into its network and writes its files.
func (l machines) startOn(
	ctx context.Context, fabric *namespace, spec machine.Spec, listener *os.File, member *Member, content map[string][]byte,
) error {
	m, err := machine.Start(ctx, spec, listener)
	if err != nil {
		return err
	}
	ns, err := network(ctx, m)
	if err != nil {
		return err
	}
	defer ns.Close()
	link := l.Fabrics().linkOf(member)
	if err := fabric.awaitUnplugged(ctx, link); err != nil { // a machine of this name may have been there until just now
		return err
	}
	if err := fabric.plug(ns, member, l.Fabrics().networkOf(member), link); err != nil {
		return err
	}
	if l.Topology.Edge {
		content["/etc/resolv.conf"] = l.edging().resolvConf()
	}
	for path, data := range content {
		if err := m.WriteFile(ctx, path, data); err != nil {
			return fmt.Errorf("writing %s on %s: %w", path, spec.Name, err)
		}
	}
	return nil
}

// listen opens a way of the host into the lab on a free port of the loopback address.
func listen() (*os.File, int, error) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = listener.Close() }()
	file, err := listener.File()
	return file, listener.Addr().(*net.TCPAddr).Port, err
}

func (l machines) startPrograms(ctx context.Context) error {
	for _, m := range l.with(NameServer, ImageRegistry, LoadBalancer, ControlPlane, Worker) {
		if err := l.run(ctx, m, l.programs(m)); err != nil {
			return err
		}
	}
	return nil
}

// programs are what runs on a machine from the first.
func (l machines) programs(m *Member) []machine.Program {
	switch m.Role {
	case ControlPlane:
		if l.Topology.byKubeadm() {
			return l.kubeadm().programs(m)
		}
		return slices.Concat(l.ControlPlaneNodes().programs(m), podnet(l.Binaries, ""), l.ControlPlaneNodes().proxies())
	case LoadBalancer:
		return balancerPrograms()
	case NameServer:
		return nameServerPrograms()
	case ImageRegistry:
		return registryPrograms(l.Binaries)
	case Bastion, Forwarder:
		return nil
	default:
		if l.Topology.byKubeadm() {
			return l.kubeadm().programs(m)
		}
		return slices.Concat(nodePrograms(l.Topology, l.Binaries, m), podnet(l.Binaries, m.Name))
	}
}

func (l machines) run(ctx context.Context, m *Member, programs []machine.Program) error {
	on, err := l.Machine(m.Name)
	if err != nil {
		return err
	}
	for _, p := range programs {
		if err := on.Run(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func network(ctx context.Context, m *machine.Handle) (*namespace, error) {
	info, err := m.Info(ctx)
	if err != nil {
		return nil, err
	}
	return openNamespace(info.PID)
}
