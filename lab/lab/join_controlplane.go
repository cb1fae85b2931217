package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/replumb/replumb/internal/testing/pki"
	"github.com/replumb/replumb/lab/cgroup"
	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/machine"
)

const etcdJoinProgram = "etcdjoin"

// leaveDeadline bounds the end of a control plane's programs, which go gracefully.
const leaveDeadline = time.Minute

// Add starts a further control plane in a network, the first if the name is empty, and returns when its machine
// runs. Its etcd is not made a member of the cluster's, but by kubeadm: until it is, by its PeerURL, its etcd and API
// server end and are started again. Balancers ask it whether it is ready from now on. It fails with an *InvalidError if there cannot be one.
func (l ControlPlaneNodes) Add(ctx context.Context, network string) (*Member, error) {
	return l.enter(ctx, network, func(*Member) error { return nil })
}

// enter starts a control plane in a network, once it is prepared.
func (l ControlPlaneNodes) enter(ctx context.Context, network string, prepare func(*Member) error) (*Member, error) {
	var joined *Member
	err := l.changed(func() error {
		in, err := l.place(network)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, joinDeadline)
		defer cancel()
		if err := component.BuildMain(ctx, component.Lab, "./etcdjoin", l.dir("bin", etcdJoinProgram)); err != nil {
			return err
		}
		joined = l.addMember(ControlPlane, in, "")
		if err := prepare(joined); err != nil {
			return err
		}
		if err := l.join(ctx, joined); err != nil {
			return l.machines().undoJoin(ctx, joined, err)
		}
		return l.Balancers().rebalance(ctx)
	})
	return joined, err
}

func (l ControlPlaneNodes) place(name string) (Network, error) {
	network, err := l.Fabrics().network(name)
	if err == nil {
		err = l.Topology.mayAdd()
	}
	if err != nil {
		return network, err
	}
	if l.Topology.ControlPlanes == 1 && !l.Topology.Edge {
		return network, &InvalidError{
			"role", "nodes of this lab call its only API server by its address", "use a lab of --control-planes 3, or with --edge",
		}
	}
	if there := len(l.with(ControlPlane)); there >= maxControlPlanes {
		return network, &InvalidError{
			"role", fmt.Sprintf("%d control planes are all that a lab can hold", there), "remove one first",
		}
	}
	return network, nil
}

// joinControlPlane starts everything on the machine of a control plane, with what others of its kind run with.
func (l ControlPlaneNodes) join(ctx context.Context, m *Member) error {
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	if err := l.machines().createCGroups(tree, m); err != nil {
		return err
	}
	model, err := l.Machine(l.ControlPlanes()[0])
	if err != nil {
		return err
	}
	creds, err := l.sharedCredentials(ctx, model)
	if err != nil {
		return err
	}
	services, err := l.servedBy(ctx, model)
	if err != nil {
		return err
	}
	fabric, err := l.Fabrics().fabric(ctx)
	if err != nil {
		return err
	}
	defer fabric.Close()
	if err := l.start(ctx, fabric, creds, m, services...); err != nil {
		return err
	}
	if l.Topology.byKubeadm() {
		if err := l.Workers().runWithImages(ctx, m); err != nil {
			return err
		}
		return l.kubeadm().joinNew(ctx, m)
	}
	programs := l.machines().programs(m)
	for i, p := range programs {
		if p.Name == etcdProgram {
			programs[i] = l.etcdJoining(m)
			continue
		}
		runs, err := model.Program(ctx, p.Name)
		if err != nil {
			return err
		}
		programs[i] = like(p, runs)
	}
	return l.machines().run(ctx, m, programs)
}

// etcdJoining begins with those who are members when it is one of them (lab/etcdjoin). To find out, it asks those control
// planes that there are now, one of which must still be there by then.
func (l ControlPlaneNodes) etcdJoining(m *Member) machine.Program {
	var peers []string
	for _, other := range l.with(ControlPlane) {
		if other.Name != m.Name {
			peers = append(peers, other.PeerURL())
		}
	}
	p := l.etcdMember(m)
	p.Argv = slices.DeleteFunc(p.Argv, func(arg string) bool { return strings.HasPrefix(arg, "--data-dir=") })
	p.Argv = append([]string{
		l.dir("bin", etcdJoinProgram),
		"--name=" + m.Name,
		"--url=" + m.PeerURL(),
		"--peers=" + strings.Join(peers, ","),
		"--data-dir=" + etcdDataDir,
		"--cacert=" + pkiDir + "etcd/ca.crt",
		"--cert=" + pkiDir + "etcd/peer.crt",
		"--key=" + pkiDir + "etcd/peer.key",
		"--",
	}, p.Argv...)
	return p
}

// like takes over from a program that runs elsewhere the flags that change while a lab lives.
func like(p, runs machine.Program) machine.Program {
	for i, arg := range p.Argv {
		for _, flag := range []string{serviceCIDRFlag, allocateFlag, clusterCIDRFlag} {
			has := slices.IndexFunc(runs.Argv, func(other string) bool { return strings.HasPrefix(other, flag) })
			if strings.HasPrefix(arg, flag) && has >= 0 {
				p.Argv[i] = runs.Argv[has]
			}
		}
	}
	return p
}

// sharedCredentials are what all control planes have in common, from one of them, as `kubeadm join` copies them. Where
// kubeadm itself copies them, the key of ServiceAccounts is not among them.
func (l ControlPlaneNodes) sharedCredentials(ctx context.Context, model *machine.Handle) (*credentials, error) {
	var c credentials
	for _, a := range []struct {
		base string
		ca   **pki.CA
	}{{"ca", &c.cluster}, {"etcd/ca", &c.etcd}, {"front-proxy-ca", &c.frontProxy}} {
		p, err := readPair(ctx, model, pkiDir+a.base)
		if err != nil {
			return nil, err
		}
		if *a.ca, err = pki.LoadCA(p); err != nil {
			return nil, err
		}
	}
	if l.Topology.byKubeadm() {
		return &c, nil
	}
	var err error
	c.serviceAccounts, err = readPair(ctx, model, pkiDir+"sa")
	return &c, err
}

func readPair(ctx context.Context, m *machine.Handle, base string) (p pki.Pair, err error) {
	if p.Cert, err = m.ReadFile(ctx, base+".crt"); err != nil {
		return p, err
	}
	p.Key, err = m.ReadFile(ctx, base+".key")
	return p, err
}

// servedBy are the addresses that an API server's certificate is good for and that are no machine's: those of Services.
func (l ControlPlaneNodes) servedBy(ctx context.Context, model *machine.Handle) ([]netip.Addr, error) {
	data, err := model.ReadFile(ctx, servingBase+".crt")
	if err != nil {
		return nil, err
	}
	certs, err := cert.ParseCertsPEM(data)
	if err != nil {
		return nil, err
	}
	var services []netip.Addr
	for _, has := range certs[0].IPAddresses {
		if a, ok := netip.AddrFromSlice(has); ok && !a.Unmap().IsLoopback() && !l.taken(a.Unmap()) {
			services = append(services, a.Unmap())
		}
	}
	return services, nil
}

// Stop ends a control plane's programs, the API server gracefully and then etcd, and its machine. The data of its etcd is kept, as on a
// volume of a cloud, for a machine of the same name: see ComeBack. Its etcd stays a member that does not answer. It fails with an
// *InvalidError if there is no such control plane, or no other.
func (l ControlPlaneNodes) Stop(ctx context.Context, name string) error {
	return l.changed(func() error {
		if err := l.mayLeave(name); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, leaveDeadline)
		defer cancel()
		if err := l.end(ctx, l.member(name)); err != nil {
			return err
		}
		if err := os.Rename(l.dir(name, etcdDataDir), l.volume(name)); err != nil {
			return fmt.Errorf("keeping the data of %s: %w", name, err)
		}
		if err := l.machines().unplug(ctx, name); err != nil {
			return err
		}
		return l.Balancers().rebalance(ctx)
	})
}

// volume is where the data of a control plane's etcd is kept that is stopped.
func (l ControlPlaneNodes) volume(name string) string { return l.dir("volume-" + name) }

// ComeBack starts a control plane that was stopped in a network, under its name and with the data of its etcd, and returns when its machine
// runs. Where it is by now the other members have to be told: by its PeerURL.
func (l ControlPlaneNodes) ComeBack(ctx context.Context, name, network string) (*Member, error) {
	return l.enter(ctx, network, func(back *Member) error {
		back.Name = name
		if err := os.MkdirAll(filepath.Dir(l.dir(name, etcdDataDir)), 0o755); err != nil {
			return err
		}
		if err := os.Rename(l.volume(name), l.dir(name, etcdDataDir)); err != nil {
			return fmt.Errorf("giving %s its data: %w", name, err)
		}
		return nil
	})
}

// mayLeave fails with an *InvalidError if there is no such control plane, or no other.
func (l ControlPlaneNodes) mayLeave(name string) error {
	switch m := l.member(name); {
	case m == nil || m.Role != ControlPlane:
		return &InvalidError{
			"control-plane", fmt.Sprintf("lab %s has no control plane %q", l.Topology.Name, name),
			"it has " + strings.Join(l.ControlPlanes(), ", "),
		}
	case len(l.ControlPlanes()) == 1:
		return &InvalidError{
			"control-plane",
			name + " is the last one",
			"add another first, or take the lab down: replumb-lab down --name " + l.Topology.Name,
		}
	}
	return nil
}

// Remove ends a control plane's programs, the API server gracefully and then etcd, and its machine for good.
// Whether that etcd is a member of the cluster's is not asked: if it is, it stays one that does not answer. It fails with an *InvalidError if there is no such control
// plane, or no other.
func (l ControlPlaneNodes) Remove(ctx context.Context, name string) error {
	return l.changed(func() error {
		if err := l.mayLeave(name); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, leaveDeadline)
		defer cancel()
		if err := l.end(ctx, l.member(name)); err != nil {
			return err
		}
		if err := l.machines().unplug(ctx, name); err != nil {
			return err
		}
		return l.Balancers().rebalance(ctx)
	})
}

// endControlPlane ends what runs on a control plane in the reverse order of their start, so etcd last. On a machine that does
// not answer there is nothing to end.
func (l ControlPlaneNodes) end(ctx context.Context, m *Member) error {
	on, err := l.Machine(m.Name)
	if err != nil {
		return err
	}
	if _, err := on.Info(ctx); err != nil {
		return nil
	}
	for _, p := range slices.Backward(l.machines().programs(m)) {
		if err := on.Stop(ctx, p.Name); err != nil {
			return err
		}
	}
	return nil
}
