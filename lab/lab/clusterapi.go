package lab

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/replumb/replumb/lab/cgroup"
	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/machine"
)

// infrastructureProgram is Cluster API's provider of machines for labs (lab/infrastructure). It runs on the host, where machines are made.
const infrastructureProgram = "infrastructure"

//go:embed clusterapi/infrastructure.yaml
var infrastructureDefinitions []byte

//go:embed clusterapi/cluster.yaml
var clusterTemplate string

func (t Topology) byClusterAPI() bool { return t.Installer == ByClusterAPI }

// mayAdd fails with an *InvalidError where machines are ordered by objects.
func (t Topology) mayAdd() error {
	if !t.byClusterAPI() {
		return nil
	}
	return &InvalidError{
		"node", "Cluster API makes the machines of lab " + t.Name,
		"scale a MachineDeployment or a KubeadmControlPlane in lab " + ManagementOf(t.Name),
	}
}

// ManagementOf is the name of the lab in which Cluster API runs that makes the machines of another.
func ManagementOf(lab string) string { return lab + "-mgmt" }

// management is that lab: a control plane in a network of its own in the same fabric.
func (t Topology) management() Topology {
	m := Default()
	m.Name, m.Fabric, m.Nodes = ManagementOf(t.Name), t.Fabric, []ProxyMode{}
	m.Networks = []Network{{Name: "management", CIDR: netip.MustParsePrefix("172.28.0.0/24")}}
	return m
}

// up brings up the lab that Cluster API runs in, has it make the cluster, and returns when all nodes are Ready.
func (l ClusterAPI) up(ctx context.Context, o Options) error {
	management, err := Up(ctx, l.Topology.management(), o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.Topology.upDeadline())
	defer cancel()
	if err := l.startControllers(ctx, management); err != nil {
		return err
	}
	if err := l.startInfrastructure(ctx, management); err != nil {
		return err
	}
	o.say("Cluster API makes %d control planes and %d workers", l.Topology.ControlPlanes, len(l.Topology.Nodes))
	objects, err := l.objects()
	if err != nil {
		return err
	}
	err = until(ctx, "Cluster API to take the cluster", func(ctx context.Context) error {
		_, err := management.kubectl(ctx, bytes.NewReader(objects), "apply", "-f", "-")
		return err
	})
	if err != nil {
		return err
	}
	if err := l.awaitAccess(ctx, management); err != nil {
		return err
	}
	if err := l.kubeadm().installNetwork(ctx); err != nil {
		return err
	}
	if err := l.awaitMachines(ctx, management); err != nil {
		return err
	}
	return l.explain(l.Addons().waitReady(ctx, o))
}

// objects are the cluster's in the lab that manages it.
func (l ClusterAPI) objects() ([]byte, error) {
	components, err := l.kubeadm().components()
	if err != nil {
		return nil, err
	}
	quoted, err := json.Marshal(string(components))
	if err != nil {
		return nil, err
	}
	return rendered("cluster.yaml", clusterTemplate, map[string]any{
		"Name": l.Topology.Name, "Services": l.Topology.ServiceCIDR, "Pods": l.Topology.PodCIDR, "Network": l.Topology.Networks[0].Name,
		"ControlPlanes": l.Topology.ControlPlanes, "Workers": len(l.Topology.Nodes), "Version": l.Topology.Kubernetes,
		"Socket": containerdSocket, "ComponentsPath": "/etc/replumb-lab/components.yaml", "Components": string(quoted),
	})
}

// awaitAccess waits until the first control plane serves, and takes the administrator's access from where Cluster API keeps it.
func (l ClusterAPI) awaitAccess(ctx context.Context, management *Lab) error {
	return until(ctx, "the first control plane", func(ctx context.Context) error {
		secret, err := management.kubectl(ctx, nil, "get", "secret", l.Topology.Name+"-kubeconfig", "-o", "go-template={{.data.value | base64decode}}")
		if err != nil {
			return err
		}
		kubeconfig, err := callingAt(secret, fmt.Sprintf("https://127.0.0.1:%d", l.Port))
		if err != nil {
			return err
		}
		if err := os.WriteFile(l.Kubeconfig(), kubeconfig, 0o600); err != nil {
			return err
		}
		return l.Client().Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// callingAt is a kubeconfig with another address of its API server.
func callingAt(kubeconfig []byte, server string) ([]byte, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = server
	}
	return clientcmd.Write(*config)
}

// awaitMachines waits until Cluster API says that all machines are ready, and reads what has become of the lab meanwhile.
func (l ClusterAPI) awaitMachines(ctx context.Context, management *Lab) error {
	for kind, want := range map[string]int{"kubeadmcontrolplanes": l.Topology.ControlPlanes, "machinedeployments": len(l.Topology.Nodes)} {
		err := until(ctx, "machines of "+kind, func(ctx context.Context) error {
			out, err := management.kubectl(ctx, nil, "get", kind, "-o", "jsonpath={.items[0].status.readyReplicas}")
			if err == nil && string(out) != fmt.Sprint(want) {
				err = fmt.Errorf("of %d machines %q are ready", want, out)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	now, err := Open(l.Topology.Name)
	if err == nil {
		*l.Lab = *now
	}
	return err
}

// startInfrastructure starts the provider of machines, with its definitions.
func (l ClusterAPI) startInfrastructure(ctx context.Context, management *Lab) error {
	if _, err := management.kubectl(ctx, bytes.NewReader(infrastructureDefinitions), "apply", "--server-side", "-f", "-"); err != nil {
		return err
	}
	program := l.dir("bin", infrastructureProgram)
	if err := component.BuildMain(ctx, component.Lab, "./"+infrastructureProgram, program); err != nil {
		return err
	}
	log, err := os.Create(l.dir(infrastructureProgram + ".log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	// Not CommandContext: it outlives the process that starts it.
	cmd := exec.Command(program, l.Topology.Name, management.Kubeconfig()) //nolint:noctx // see above
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // reaps it if it ends before we do
	return nil
}

// infrastructureGroup is the control group of the provider of a lab's machines.
func infrastructureGroup(lab string) string { return cgroupOf(lab) + "/" + infrastructureProgram }

// Enter puts the calling process, the provider of machines, among those of the lab, with which it ends.
func (l ClusterAPI) Enter() error {
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	if err := tree.Create(infrastructureGroup(l.Topology.Name)); err != nil {
		return err
	}
	return tree.Join(infrastructureGroup(l.Topology.Name), os.Getpid())
}

// endClusterAPI ends what makes machines of a lab, if anything does, and then the lab that it runs in.
func endClusterAPI(ctx context.Context, name string) error {
	l, err := Open(name)
	if err != nil || !l.Topology.byClusterAPI() {
		return nil
	}
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, downDeadline)
	defer cancel()
	if err := tree.Destroy(within, infrastructureGroup(name)); err != nil {
		return err
	}
	_, err = Down(ctx, ManagementOf(name))
	return err
}

// Endpoint is where machines reach the API of the cluster: what leads there leads to all control planes that there are.
func (l ClusterAPI) Endpoint() netip.AddrPort { return l.Balancers().endpoint() }

// ProviderID is what Cluster API and Nodes call a machine.
func (l ClusterAPI) ProviderID(m *Member) string {
	return "replumb-lab:///" + l.Topology.Name + "/" + m.Name
}

// Order is a machine that is to be.
type Order struct {
	// By is who orders it. A machine that is there for the same is the one.
	By      string
	Role    Role
	Network string // the lab's first by default
	// Files are written before Script runs, once and in the background.
	Files  map[string][]byte
	Script []byte
}

// Order starts a machine, as a cloud does: it returns when that runs, before its script has ended. It fails with an *InvalidError if there is no such network, and a
// *BusyError while another process changes the lab.
func (l ClusterAPI) Order(ctx context.Context, o Order) (*Member, error) {
	var made *Member
	err := l.changed(func() error {
		if i := slices.IndexFunc(l.Members, func(m Member) bool { return m.OrderedBy == o.By }); i >= 0 {
			made = &l.Members[i]
			return nil
		}
		network, err := l.Fabrics().network(o.Network)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, joinDeadline)
		defer cancel()
		made = l.addMember(o.Role, network, "")
		made.OrderedBy = o.By
		if err := l.start(ctx, made, o); err != nil {
			return l.machines().undoJoin(ctx, made, err)
		}
		return l.Balancers().rebalance(ctx)
	})
	return made, err
}

// The machine's script, and what runs it: once, whatever becomes of that program.
const (
	bootScript  = "/var/lib/cloud/runcmd.sh"
	bootProgram = "cloud-init"
	bootOnce    = "[ -e " + bootScript + ".done ] || { sh " + bootScript + "; touch " + bootScript + ".done; }; exec sleep infinity"
)

func (l ClusterAPI) start(ctx context.Context, m *Member, o Order) error {
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	if err := l.machines().createCGroups(tree, m); err != nil {
		return err
	}
	fabric, err := l.Fabrics().fabric(ctx)
	if err != nil {
		return err
	}
	defer fabric.Close()
	if m.Role == ControlPlane {
		err = l.ControlPlaneNodes().start(ctx, fabric, nil, m)
	} else {
		err = l.Workers().start(ctx, fabric, nil, m)
	}
	if err != nil {
		return err
	}
	if err := l.Workers().runWithImages(ctx, m); err != nil {
		return err
	}
	if err := l.kubeadm().installPackages(ctx, m.Name); err != nil {
		return err
	}
	return l.boot(ctx, m, o)
}

// boot does with a machine what cloud-init does when it starts.
func (l ClusterAPI) boot(ctx context.Context, m *Member, o Order) error {
	on, err := l.Machine(m.Name)
	if err != nil {
		return err
	}
	for path, data := range o.Files {
		if err := on.WriteFile(ctx, path, data); err != nil {
			return fmt.Errorf("writing %s on %s: %w", path, m.Name, err)
		}
	}
	if err := on.WriteFile(ctx, bootScript, o.Script); err != nil {
		return err
	}
	return l.machines().run(ctx, m, []machine.Program{{Name: bootProgram, Argv: []string{"/bin/sh", "-c", bootOnce}}})
}

// Cancel ends the machine that was ordered by somebody, at once and for good. It is no error if there is none.
func (l ClusterAPI) Cancel(ctx context.Context, by string) error {
	return l.changed(func() error {
		i := slices.IndexFunc(l.Members, func(m Member) bool { return m.OrderedBy == by })
		if i < 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, downDeadline)
		defer cancel()
		if err := l.machines().unplug(ctx, l.Members[i].Name); err != nil {
			return err
		}
		return l.Balancers().rebalance(ctx)
	})
}
