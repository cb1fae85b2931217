package lab

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// What people outside know a lab with an edge by.
const (
	// Zone is the one that the name server has.
	Zone = "lab.example"
	// APIName and IngressName have the address of the first network's load balancer at first.
	APIName     = "api." + Zone
	IngressName = "ingress." + Zone
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
	bastionToken      = "/etc/replumb-lab/token" //nolint:gosec // a path
	probingClient     = "client"
)

func edgeRoles() []Role { return []Role{LoadBalancer, NameServer, Bastion} }

// Edge is what people reach a cluster by who are not in it.
type Edge struct {
	Zone    string `json:"zone"`
	API     string `json:"api"`
	Ingress string `json:"ingress"`
	// NameServer answers to everybody in the lab, and takes updates of Zone that are signed with the key in the file UpdateKey
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
	// Kubeconfig is the administrator's, for the API by its name; Token and CA are those of somebody who may look around.
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
	e := &Edge{
		Zone: Zone, API: APIName, Ingress: IngressName,
		NameServer: netip.AddrPortFrom(nth(outside().CIDR, nameServerOffset), 53),
		UpdateKey:  l.dir("update.key"), Balancers: map[string]netip.Addr{},
		Bastion: Outpost{
			Machine: bastionName, Kubeconfig: bastionKubeconfig, Token: bastionToken, CA: bastionCA, Client: l.dir("bin", probingClient),
		},
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
	if len(t.Networks) < 2 || !t.CNI.isCalico() {
		return &InvalidError{
			"edge", "it is for labs whose nodes can be in several networks", "add --cni calico --networks a=172.30.0.0/24,b=172.31.0.0/24",
		}
	}
	if _, taken := t.network(outsideName); taken {
		return &InvalidError{"networks", fmt.Sprintf("%q is where nothing of the cluster is", outsideName), "choose another name"}
	}
	return nil
}

// enlistEdge adds the machines of an edge.
func (l *Lab) enlistEdge() {
	for _, n := range l.Topology.Networks {
		l.enlist(LoadBalancer, n, "")
	}
	l.enlist(NameServer, outside(), "")
	l.enlist(Bastion, outside(), "")
}

// startEdge starts a machine of the edge, without its programs.
func (l *Lab) startEdge(ctx context.Context, fabric *namespace, creds *credentials, m *Member) error {
	content := map[string][]byte{}
	var err error
	switch m.Role {
	case LoadBalancer:
		content, err = l.balancerFiles(m)
	case NameServer:
		content, err = l.nameServerFiles(m)
	case Bastion:
		content, err = bastionFiles(creds)
	}
	if err != nil {
		return err
	}
	return l.startOn(ctx, fabric, l.machineSpec(m.Name), nil, m, content)
}

// bastionFiles are the access of who administers the cluster from outside.
func bastionFiles(c *credentials) (map[string][]byte, error) {
	var f files
	f.add(bastionCA, c.cluster.Cert)
	f.kubeconfig(bastionKubeconfig, fmt.Sprintf("https://%s:%d", APIName, apiServerPort), c.cluster, admin())
	return f.content, f.err
}

// resolvConf is what machines and pods know of names outside the cluster. A datagram that is lost is sent again after one
// second instead of five.
func (l *Lab) resolvConf() []byte {
	edge := l.Edge()
	if edge == nil {
		return []byte("# names outside the cluster do not resolve in a lab\n")
	}
	return fmt.Appendf(nil, "nameserver %s\noptions timeout:1\n", edge.NameServer.Addr())
}
