package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/replumb/replumb/lab/named"
)

// What people outside know a lab with an edge by.
const (
	// Zone is the one that the name server has.
	Zone = "lab.example"
	// apiLabel and ingressLabel have the address of the first network's load balancer at first. Those of a lab in the fabric of
	// another end in its name: api-right.
	apiLabel     = "api"
	ingressLabel = "ingress"
)

// The network outside, in which there is nothing of the cluster.
const (
	outsideName = "outside"
	outsideCIDR = "172.29.255.0/24"
)

func outside() Network { return Network{Name: outsideName, CIDR: netip.MustParsePrefix(outsideCIDR)} }

// recordTTL is how long who has looked up a name may keep the answer.
const recordTTL = 30 * time.Second

// Names of the machines outside.
const (
	nameServerName = "dns"
	bastionName    = "bastion"
)

// Where the bastion has what it takes to use the cluster.
const (
	bastionKubeconfig = "/etc/kubernetes/admin.conf"
	bastionCA         = pkiDir + "ca.crt"
	bastionToken      = "/etc/replumb-lab/token"
	probingClient     = "client"
	updateKey         = "update.key" // in the lab's folder
)

func edgeRoles() []Role { return []Role{LoadBalancer, NameServer, Bastion, ImageRegistry} }

// Edge is what people reach a cluster by who are not in it.
type Edge struct {
	Zone    string `json:"zone"`
	API     string `json:"api"`
	Ingress string `json:"ingress"`
	// NameServer answers to everybody in the fabric, and takes updates of Zone that are signed with the key in the file UpdateKey
	// on the host and on every machine.
	NameServer netip.AddrPort `json:"nameServer"`
	UpdateKey  string         `json:"updateKey"`
	// Balancers are the addresses of the load balancers, by network: each leads to all API servers, and to the ingress by way of
	// the nodes in its own network.
	Balancers map[string]netip.Addr `json:"balancers"`
	Bastion   Outpost               `json:"bastion"`
}

// Outpost is the machine outside that people use the cluster from, and where on it is what.
type Outpost struct {
	Machine string `json:"machine"`
	// Kubeconfig is the administrator's, for the API by its name. Token is that of a user who may look around, and CA the
	// authorities of the API and of Lab.SiteCA.
	Kubeconfig string `json:"kubeconfig"`
	Token      string `json:"token"`
	CA         string `json:"ca"`
	// Client is the probing client (lab/images/client).
	Client string `json:"client"`
}

// Edge is that of a lab; nil, if it has none.
func (l *Lab) Edge() *Edge {
	if !l.Topology.Edge {
		return nil
	}
	bastion := Outpost{
		Machine: bastionName, Kubeconfig: bastionKubeconfig, Token: bastionToken, CA: bastionCA,
		Client: filepath.Join(stateDir(l.Fabrics().owner()), "bin", probingClient),
	}
	if l.Fabrics().isGuest() {
		for _, path := range []*string{&bastion.Kubeconfig, &bastion.Token, &bastion.CA} {
			*path = besides(*path, l.Topology.Name)
		}
	}
	e := &Edge{
		Zone: Zone, API: l.edging().label(apiLabel) + "." + Zone, Ingress: l.edging().label(ingressLabel) + "." + Zone,
		NameServer: netip.AddrPortFrom(nth(outside().CIDR, nameServerOffset), 53),
		UpdateKey:  l.dir(updateKey), Balancers: map[string]netip.Addr{},
		Bastion: bastion,
	}
	for _, m := range l.with(LoadBalancer) {
		e.Balancers[m.Network] = m.Address
	}
	return e
}

func (t Topology) validateEdge() error {
	if !t.Edge {
		return nil
	}
	if _, taken := t.network(outsideName); taken {
		return &InvalidError{"networks", fmt.Sprintf("%q is where nothing of the cluster is", outsideName), "choose another name"}
	}
	return nil
}

// label is a name in the zone that labs of one fabric share.
func (l edging) label(name string) string {
	if !l.Fabrics().isGuest() {
		return name
	}
	return name + "-" + l.Topology.Name
}

// besides is where another lab has what the first has at path.
func besides(path, lab string) string {
	return filepath.Join(filepath.Dir(path), lab, filepath.Base(path))
}

// addMembers adds the machines of an edge. The outside is the same for all labs of a fabric.
func (l edging) addMembers() {
	for _, n := range l.Topology.Networks {
		l.addMember(LoadBalancer, n, "")
	}
	if l.Topology.Registry != "" {
		l.addMember(ImageRegistry, l.Topology.Networks[0], "")
	}
	if l.Fabrics().isGuest() {
		return
	}
	l.addMember(NameServer, outside(), "")
	l.addMember(Bastion, outside(), "")
}

// startEdges starts the machines of the edge, and makes them known where another lab has some already.
func (l edging) startAll(ctx context.Context, fabric *namespace, creds *credentials) error {
	for _, m := range l.with(edgeRoles()...) {
		if err := l.start(ctx, fabric, creds, m); err != nil {
			return err
		}
	}
	if !l.Topology.Edge || !l.Fabrics().isGuest() {
		return nil
	}
	return l.visit(ctx, creds)
}

// startEdge starts a machine of the edge, without its programs.
func (l edging) start(ctx context.Context, fabric *namespace, creds *credentials, m *Member) error {
	content := map[string][]byte{}
	var err error
	switch m.Role {
	case LoadBalancer:
		content, err = l.Balancers().balancerFiles(m)
	case NameServer:
		content, err = l.nameServerFiles(m)
	case Bastion:
		content, err = l.bastionFiles(creds)
	case ImageRegistry:
		content, err = l.Addons().registryFiles(creds, m)
	}
	if err != nil {
		return err
	}
	return l.machines().startOn(ctx, fabric, l.machineSpec(m.Name), nil, m, content)
}

// bastionFiles are the access of who administers the cluster from outside.
func (l edging) bastionFiles(c *credentials) (map[string][]byte, error) {
	var f files
	bastion := l.Edge().Bastion
	f.add(bastion.CA, slices.Concat(c.cluster.Cert, c.site.Cert))
	f.kubeconfig(bastion.Kubeconfig, l.Balancers().server(), c.cluster, admin())
	return f.content, f.err
}

// visitEdge makes a lab known at the edge of another: by its names, and to who is on the bastion.
func (l edging) visit(ctx context.Context, creds *credentials) error {
	key, err := os.ReadFile(filepath.Join(stateDir(l.FabricOf), updateKey))
	if err != nil {
		return fmt.Errorf("edge of lab %s: %w", l.FabricOf, err)
	}
	if err := os.WriteFile(l.Edge().UpdateKey, key, 0o600); err != nil {
		return err
	}
	first := l.Edge().Balancers[l.Topology.Networks[0].Name]
	if err := l.announce(ctx, first); err != nil {
		return err
	}
	bastion, err := l.Machine(bastionName)
	if err != nil {
		return err
	}
	content, err := l.bastionFiles(creds)
	if err != nil {
		return err
	}
	for path, data := range content {
		if err := bastion.WriteFile(ctx, path, data); err != nil {
			return err
		}
	}
	return nil
}

// announce has the lab's names lead to an address, or nowhere.
func (l edging) announce(ctx context.Context, to netip.Addr) error {
	edge := l.Edge()
	key, err := os.ReadFile(edge.UpdateKey)
	if err != nil {
		return err
	}
	server, err := l.Machine(nameServerName)
	if err != nil {
		return err
	}
	conn, err := server.Dial(ctx, "tcp", edge.NameServer.String())
	if err != nil {
		return fmt.Errorf("name server of lab %s: %w", l.FabricOf, err)
	}
	defer func() { _ = conn.Close() }()
	records := []named.Record{{Name: l.label(apiLabel), Address: to}, {Name: l.label(ingressLabel), Address: to}}
	for _, r := range l.Addons().registryRecords() {
		if !to.IsValid() {
			r.Address = to
		}
		records = append(records, r)
	}
	return named.Zone{Name: Zone, TTL: recordTTL}.Update(ctx, conn, key, records...)
}

// leaveEdge takes away what visitEdge has made, as far as it is there.
func (l edging) leave(ctx context.Context) error {
	err := l.announce(ctx, netip.Addr{})
	bastion, machineErr := l.Machine(bastionName)
	if machineErr != nil {
		return errors.Join(err, machineErr)
	}
	files := l.Edge().Bastion
	for _, path := range []string{files.Kubeconfig, files.Token, files.CA} {
		host, pathErr := bastion.Path(ctx, filepath.Dir(path))
		if pathErr != nil {
			return errors.Join(err, pathErr)
		}
		err = errors.Join(err, os.RemoveAll(host))
	}
	return err
}

// resolvConf is what machines and pods know of names outside the cluster. A datagram that is lost is sent again after one
// second instead of five.
func (l edging) resolvConf() []byte {
	edge := l.Edge()
	if edge == nil {
		return []byte("# names outside the cluster do not resolve in a lab\n")
	}
	return fmt.Appendf(nil, "nameserver %s\noptions timeout:1\n", edge.NameServer.Addr())
}
