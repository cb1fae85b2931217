package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/internal/testing/pki"
	"github.com/replumb/replumb/lab/cgroup"
	"github.com/replumb/replumb/lab/machine"
)

// joinDeadline bounds the time from a machine's start until its node is Ready.
const joinDeadline = 4 * time.Minute

// Joining is what a machine is that joins a lab.
type Joining struct {
	// Network it is in. Default: the lab's first.
	Network string
	// Proxy is the mode of its kube-proxy. Default: iptables, or none if other nodes have none.
	Proxy ProxyMode
}

// Add starts a further machine, as who orders one from a cloud does, and returns when its node is Ready. It fails with an
// *InvalidError if there cannot be one, and a *BusyError while another process changes the lab.
func (l Workers) Add(ctx context.Context, j Joining) (*Member, error) {
	var joined *Member
	err := l.changed(func() error {
		network, mode, err := l.place(j)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, joinDeadline)
		defer cancel()
		joined = l.addMember(Worker, network, mode)
		if err := l.join(ctx, joined); err != nil {
			return l.machines().undoJoin(ctx, joined, err)
		}
		return l.Balancers().rebalance(ctx)
	})
	return joined, err
}

// undoJoin takes away a machine that could not be what it was to be.
func (l machines) undoJoin(ctx context.Context, m *Member, err error) error {
	name := m.Name
	err = fmt.Errorf("node %s did not join: %w", name, l.explain(err))
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), downDeadline)
	defer cancel()
	return errors.Join(err, l.unplug(undo, name))
}

// network is the one of that name, by default the first.
func (l Fabrics) network(name string) (Network, error) {
	if name == "" {
		return l.Topology.Networks[0], nil
	}
	network, ok := l.Topology.network(name)
	if !ok {
		return network, &InvalidError{
			"network", fmt.Sprintf("lab %s has no network %q", l.Topology.Name, name), "it has " + networkNames(l.Topology.Networks),
		}
	}
	return network, nil
}

// place defaults and validates.
func (l Workers) place(j Joining) (Network, ProxyMode, error) {
	network, err := l.Fabrics().network(j.Network)
	if err == nil {
		err = l.Topology.mayAdd()
	}
	if err != nil {
		return network, "", err
	}
	mode := cmp.Or(j.Proxy, IPTables)
	if j.Proxy == "" && l.Topology.withoutProxies() {
		mode = NoProxy
	}
	beside := l.Topology
	beside.Nodes = append(slices.Clone(beside.Nodes), mode)
	if err := beside.validateProxies(); err != nil {
		return network, "", err
	}
	if len(l.with(Worker)) >= maxNodes {
		return network, "", &InvalidError{"node", fmt.Sprintf("%d nodes are all that a lab can hold", maxNodes), "remove one first"}
	}
	return network, mode, nil
}

// join starts everything on a worker's machine and waits for its node.
func (l Workers) join(ctx context.Context, m *Member) error {
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	if err := l.machines().createCGroups(tree, m); err != nil {
		return err
	}
	first, err := l.Machine(l.ControlPlanes()[0])
	if err != nil {
		return err
	}
	creds, err := workerCredentials(ctx, first)
	if err != nil {
		return err
	}
	fabric, err := l.Fabrics().fabric(ctx)
	if err != nil {
		return err
	}
	defer fabric.Close()
	if err := l.start(ctx, fabric, creds, m); err != nil {
		return err
	}
	if err := l.runWithImages(ctx, m); err != nil {
		return err
	}
	if err := l.admit(ctx, m); err != nil {
		return err
	}
	return l.waitNode(ctx, l.Client(), m.Name)
}

// runWithImages starts containerd before all other programs. Pods come as soon as there is a kubelet, and one that finds no image waits minutes for
// a registry that no machine answers for.
func (l Workers) runWithImages(ctx context.Context, m *Member) error {
	programs := l.machines().programs(m)
	if err := l.machines().run(ctx, m, programs[:1]); err != nil {
		return err
	}
	for _, archive := range l.images().archives() {
		if err := l.loadOn(ctx, m.Name, archive); err != nil {
			return err
		}
	}
	return l.machines().run(ctx, m, programs[1:])
}

// admit does what makes a node of a machine beside its own programs.
func (l Workers) admit(ctx context.Context, m *Member) error {
	if l.Topology.byKubeadm() {
		return l.kubeadm().joinNew(ctx, m)
	}
	if l.Topology.CNI.isCalico() {
		return l.Addons().calicoNode(ctx, l.Client(), m.Name, l.Fabrics().networkOf(m).in(m.Address))
	}
	return nil
}

// fabric is the network of the machine that joins the others, be it another lab's.
func (l Fabrics) fabric(ctx context.Context) (*namespace, error) {
	return network(ctx, machine.Open(l.machineSpec(fabricName)))
}

// workerCredentials are as much of the cluster's as it takes to make a worker's.
func workerCredentials(ctx context.Context, controlPlane *machine.Handle) (*credentials, error) {
	ca, err := clusterCA(ctx, controlPlane)
	if err != nil {
		return nil, err
	}
	return &credentials{cluster: ca, etcd: &pki.CA{}, frontProxy: &pki.CA{}}, nil
}

// Remove ends a machine at once and for good, as who deletes one in a cloud does. Its Node object stays: to delete that
// is the cluster's business. It fails with an *InvalidError if there is no such worker.
func (l Workers) Remove(ctx context.Context, name string) error {
	return l.changed(func() error {
		if m := l.member(name); m == nil || m.Role != Worker {
			return &InvalidError{
				"node", fmt.Sprintf("lab %s has no node %q", l.Topology.Name, name), "it has " + strings.Join(l.NodeNames(), ", "),
			}
		}
		ctx, cancel := context.WithTimeout(ctx, downDeadline)
		defer cancel()
		if err := l.machines().unplug(ctx, name); err != nil {
			return err
		}
		return l.Balancers().rebalance(ctx)
	})
}

// unplug ends the processes of a member's machine, with which its links and mounts go, and removes its files.
func (l machines) unplug(ctx context.Context, name string) error {
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	if err := tree.Destroy(ctx, cgroupOf(l.Topology.Name)+"/"+name); err != nil {
		return err
	}
	if err := os.RemoveAll(l.dir(name)); err != nil {
		return fmt.Errorf("removing the files of %s: %w", name, err)
	}
	l.Members = slices.DeleteFunc(l.Members, func(m Member) bool { return m.Name == name })
	return nil
}

// changed does something to the lab as it is now, while no other process does, and writes down what has become of it.
func (l *Lab) changed(do func() error) error {
	unlock, err := lockDir(l.dir(), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return &BusyError{Name: l.Topology.Name}
	}
	if err != nil {
		return err
	}
	defer unlock()
	now, err := Open(l.Topology.Name)
	if err != nil {
		return err
	}
	*l = *now
	return errors.Join(do(), l.save())
}
