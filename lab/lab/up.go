package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/lab/cgroup"
	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/machine"
)

// Options are how, not what, a lab is brought up.
type Options struct {
	// Progress gets what is being done, a line at a time. It may be nil.
	Progress func(format string, args ...any)
	// Line draws one line in place of the last while components are built, on terminals. It may be nil.
	Line func(line string)
	// KeepOnFailure leaves a lab that did not come up as it is, to be looked at.
	KeepOnFailure bool
}

func (o Options) say(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(format, args...)
	}
}

// upDeadline bounds the start of a lab whose components are built; a healthy one takes a fraction of it. Agents of Cilium compile meanwhile, which
// takes them half a minute, and two where much else is under way.
const (
	upDeadline       = 3 * time.Minute
	compilingTakesUp = 3 * time.Minute
	// joiningTakesUp is for each machine of kubeadm, which join one after the other.
	joiningTakesUp = time.Minute
)

func (t Topology) upDeadline() time.Duration {
	limit := upDeadline
	if t.runsCilium() {
		limit += compilingTakesUp
	}
	if t.byKubeadm() {
		limit += time.Duration(t.ControlPlanes+len(t.Nodes)) * joiningTakesUp
	}
	return limit
}

// Up brings a lab up and returns when its nodes are Ready and its DNS answers. What it cannot make it takes down
// again. It fails with an *InvalidError when t cannot be, a *MissingError when this machine lacks something, an
// *InUseError when the name is taken, and a *BusyError while another process changes the lab that has the fabric.
func Up(ctx context.Context, t Topology, o Options) (*Lab, error) {
	t = t.withDefaults()
	if err := t.Validate(); err != nil {
		return nil, err
	}
	if err := Preflight(t); err != nil {
		return nil, err
	}
	l, leave, err := enter(t)
	if err != nil {
		return nil, err
	}
	defer leave()

	err = l.up(ctx, o)
	if err == nil && t.byClusterAPI() {
		leave() // so that machines can be made
		err = l.ClusterAPI().up(ctx, o)
	}
	if err == nil {
		return l, nil
	}
	if o.KeepOnFailure {
		return nil, fmt.Errorf("lab %s did not come up: %w\nhint: it is kept; logs are in %s/*/log", t.Name, err, l.dir())
	}
	// Not ctx: the usual reason to be here is that it has ended.
	downCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downDeadline)
	defer cancel()
	if downErr := errors.Join(endClusterAPI(downCtx, t.Name), destroy(downCtx, t.Name)); downErr != nil {
		err = fmt.Errorf("%w; and taking it down again: %w", err, downErr)
	}
	return nil, fmt.Errorf("lab %s did not come up: %w", t.Name, err)
}

// InUseError says that there is a lab of that name already.
type InUseError struct{ Name string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("a lab called %q exists already\nhint: replumb-lab down --name %s, or choose another --name",
		e.Name, e.Name)
}

// claim makes the lab's folder and holds it locked against a concurrent Down until unlock, or the end of the process.
func claim(name string) (unlock func(), err error) {
	if err := os.MkdirAll(stateRoot, 0o755); err != nil {
		return nil, err
	}
	tree, err := cgroup.Open()
	if err != nil {
		return nil, err
	}
	err = os.Mkdir(stateDir(name), 0o700)
	if errors.Is(err, fs.ErrExist) || (err == nil && tree.Exists(cgroupOf(name))) {
		return nil, &InUseError{Name: name}
	}
	if err != nil {
		return nil, err
	}
	return lockDir(stateDir(name), unix.LOCK_EX|unix.LOCK_NB)
}

// lockDir locks a folder. The kernel takes the lock back when the process ends, however it ends.
func lockDir(dir string, how int) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	return func() { _ = f.Close() }, nil
}

// up is the order in which a cluster comes to be. Programs are all started at once and find one another by trying, as
// on real machines; what is waited for is what the next step needs.
func (l *Lab) up(ctx context.Context, o Options) error {
	images, err := l.images().build(ctx, o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.Topology.upDeadline())
	defer cancel()

	creds, err := newCredentials()
	if err != nil {
		return err
	}
	if creds.site, err = l.Addons().siteAuthority(creds.site); err != nil {
		return err
	}
	l.Images, l.SiteCA = l.images().keep(images), creds.site.Cert
	o.say("starting %d machines", len(l.Machines()))
	if err := l.machines().startMachines(ctx, creds); err != nil {
		return err
	}
	o.say("starting the control plane and %d nodes", len(l.with(Worker)))
	if err := l.machines().startPrograms(ctx); err != nil {
		return err
	}
	if l.Topology.byClusterAPI() {
		return nil
	}
	var g errgroup.Group
	if l.Topology.byKubeadm() { // which finds no image that is not there yet
		if err := l.Workers().loadOnAll(ctx, l.kubeadm().machines(), l.images().archives()); err != nil {
			return l.explain(err)
		}
		g.Go(func() error { return l.kubeadm().install(ctx, o) })
	} else {
		g.Go(func() error { return l.Workers().Load(ctx, l.images().archives()...) })
		g.Go(func() error { return l.Addons().configureCluster(ctx, o) })
	}
	if err := g.Wait(); err != nil {
		return l.explain(err)
	}
	if err := l.Addons().waitReady(ctx, o); err != nil {
		return l.explain(err)
	}
	return l.explain(l.Addons().equip(ctx, o, creds))
}

// build makes what runs in the lab, or finds it made, and returns the archive of images for the nodes.
func (l images) build(ctx context.Context, o Options) (images string, err error) {
	b, err := component.NewBuilder(o.Progress)
	if err != nil {
		return "", err
	}
	b.Line = o.Line
	needed := slices.DeleteFunc(component.All(), func(c component.Component) bool { return !l.Topology.runs(c) })
	dirs, err := b.Build(ctx, needed...)
	if err != nil {
		return "", err
	}
	l.Binaries = binaries{
		kubernetes: l.Topology.kubernetesIn(
			dirs,
		),
		containerd: dirs["containerd"],
		cni:        dirs["cni"],
		calico:     dirs["calico"],
		flannel:    dirs["flannel"],
		kubeadm:    dirs[kubeadmComponent],
	}
	l.Binaries.cilium = dirs[ciliumComponent]
	l.Binaries.registry, l.Binaries.further = dirs["registry"], l.Topology.ofAddons(dirs)
	if err := l.writeFurther(); err != nil {
		return "", err
	}
	if l.Topology.CNI == HostLocal {
		// In the lab's own folder, which machines see at its path; the go command does the caching.
		l.Binaries.podnet = l.dir("bin")
		if err := component.BuildMain(ctx, component.Lab, "./podnet", filepath.Join(l.Binaries.podnet, podnetProgram)); err != nil {
			return "", err
		}
	}
	if l.Topology.Edge && !l.Fabrics().isGuest() {
		if err := component.BuildMain(ctx, component.Lab, "./images/client", l.dir("bin", probingClient)); err != nil {
			return "", err
		}
	}
	set, others, err := l.Topology.networkImages(l.Binaries)
	if err != nil {
		return "", err
	}
	coreDNS := filepath.Join(dirs["coredns"], "coredns")
	if l.Topology.byKubeadm() {
		its, err := kubeadmImages(l.Binaries, coreDNS, l.Topology.Kubernetes)
		if err != nil {
			return "", err
		}
		set, others = set+"kubeadm-", append(others, its...)
	}
	return buildImages(ctx, set, coreDNS, others...)
}

// keepImages keeps an archive for nodes that join later: the cache drops it when others are built.
func (l images) keep(archive string) string {
	kept := l.dir("images.tar")
	if os.Link(archive, kept) != nil { // on another file system
		return archive
	}
	return kept
}

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
	return tree.Create(l.Workers().podCGroup(m.Name))
}

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

// apiServers are where those of all control planes serve.
func (l ControlPlaneNodes) apiServers() []string {
	var all []string
	for _, m := range l.with(ControlPlane) {
		all = append(all, m.apiServer().String())
	}
	return all
}

// startControlPlane starts the machine of a control plane, whose API server is to be known by the addresses of services too.
func (l ControlPlaneNodes) start(
	ctx context.Context, fabric *namespace, creds *credentials, m *Member, services ...netip.Addr,
) error {
	listener, port, err := listen()
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	m.Port = port
	spec := l.nodeSpec(m)
	spec.Forward.To = []string{m.apiServer().String()}
	var content map[string][]byte
	if l.Topology.byKubeadm() {
		content, err = l.kubeadm().files(m, creds)
	} else {
		content, err = l.files(m, creds, services...)
	}
	if err != nil {
		return err
	}
	if err := l.machines().startOn(ctx, fabric, spec, listener, m, content); err != nil || !l.Topology.byKubeadm() || l.Topology.CNI != HostLocal {
		return err
	}
	return l.machines().masquerade(ctx, m)
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

func (l Workers) start(ctx context.Context, fabric *namespace, creds *credentials, m *Member) error {
	if l.Topology.byKubeadm() {
		content, err := l.kubeadm().files(m, creds)
		if err != nil {
			return err
		}
		return l.startMachine(ctx, fabric, m, content)
	}
	content, err := l.files(m, creds)
	if err != nil {
		return err
	}
	config, err := nodeConfig(l.Topology, l.Binaries, m.Name, l.podCGroup(m.Name), m.Proxy, l.edging().resolvConf())
	if err != nil {
		return err
	}
	maps.Copy(content, config)
	maps.Copy(content, l.Addons().registryHosts())
	return l.startMachine(ctx, fabric, m, content)
}

// startMachine starts a worker's machine with some files, and without programs.
func (l Workers) startMachine(ctx context.Context, fabric *namespace, m *Member, content map[string][]byte) error {
	if content == nil {
		content = map[string][]byte{}
	}
	if err := l.machines().startOn(ctx, fabric, l.nodeSpec(m), nil, m, content); err != nil || l.Topology.CNI != HostLocal {
		return err
	}
	return l.machines().masquerade(ctx, m)
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

// save writes what Open needs to find this lab again.
func (l *Lab) save() error {
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(l.dir("lab.json"), data, 0o600)
}

func network(ctx context.Context, m *machine.Handle) (*namespace, error) {
	info, err := m.Info(ctx)
	if err != nil {
		return nil, err
	}
	return openNamespace(info.PID)
}
