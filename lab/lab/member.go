package lab

import (
	"fmt"
	"net/netip"
	"slices"
)

// Role is what a machine does in the cluster.
type Role string

// The roles.
const (
	ControlPlane Role = "control-plane"
	Worker       Role = "worker"
	// LoadBalancer, NameServer, Bastion and ImageRegistry are of a lab's Edge.
	LoadBalancer  Role = "load-balancer"
	NameServer    Role = "name-server"
	Bastion       Role = "bastion"
	ImageRegistry Role = "registry"
	// Forwarder leads the host to the API servers of a lab that is in the fabric of another.
	Forwarder Role = "forwarder"
)

// Member is a machine of the cluster.
type Member struct {
	// Name is its host name and, if it is a worker, the name of its Node.
	Name string `json:"name"`
	Role Role   `json:"role"`
	// Network is the one it is in, with that address.
	Network string     `json:"network"`
	Address netip.Addr `json:"address"`
	// Second is its address of the other family, if the lab has both.
	Second netip.Addr `json:"second,omitzero"`
	// Proxy is how the kube-proxy of a worker programs Services.
	Proxy ProxyMode `json:"proxy,omitempty"`
	// Port is where the host reaches the API server of a control plane, on the loopback address.
	Port int `json:"port,omitempty"`
	// OrderedBy is what a machine was ordered for: see ClusterAPI.Order.
	OrderedBy string `json:"orderedBy,omitempty"`
}

// apiServer is where a control plane serves the Kubernetes API.
func (m *Member) apiServer() netip.AddrPort { return netip.AddrPortFrom(m.Address, apiServerPort) }

// PeerURL is where other members of etcd reach that of a control plane.
func (m *Member) PeerURL() string {
	return "https://" + netip.AddrPortFrom(m.Address, etcdPeerPort).String()
}

// fromHost is where the host reaches the API server of a control plane, as host:port.
func (m *Member) fromHost() string { return fmt.Sprintf("127.0.0.1:%d", m.Port) }

// Addresses inside each network: the fabric's own; from the tenth downwards the control planes', from the eleventh upwards
// the workers', and behind those what there is one of.
const (
	gatewayOffset           = 1
	firstControlPlaneOffset = 10
	firstWorkerOffset       = 11
	forwarderOffset         = 49
	loadBalancerOffset      = 50
	nameServerOffset        = 53
	bastionOffset           = 54
	registryOffset          = 55
)

// maxControlPlanes have addresses in the narrowest network.
const maxControlPlanes = firstControlPlaneOffset - gatewayOffset

// newLab is a lab with the machines it is born with, before any runs.
func newLab(t Topology) *Lab { return newGuest(t, "") }

// newGuest is a lab in the fabric of another one.
func newGuest(t Topology, fabricOf string) *Lab {
	l := &Lab{Topology: t, FabricOf: fabricOf, Made: map[Role]int{}}
	if l.Fabrics().isGuest() {
		l.addMember(Forwarder, t.Networks[0], "")
	}
	if t.byClusterAPI() { // which makes the machines
		return l
	}
	for range t.ControlPlanes {
		l.addMember(ControlPlane, t.Networks[0], "")
	}
	for _, mode := range t.Nodes {
		l.addMember(Worker, t.Networks[0], mode)
	}
	if t.Edge {
		l.edging().addMembers()
	}
	return l
}

// addMember gives a new machine a name that none has had before, and an address that none has. Topology.Validate and AddNode
// see to it that there is one.
func (l *Lab) addMember(role Role, network Network, mode ProxyMode) *Member {
	l.Made[role]++
	name, offset, step := numbered(role, l.Made[role], network.Name)
	m := Member{Name: name, Role: role, Network: network.Name, Proxy: mode}
	for m.Address = nth(network.CIDR, offset); l.taken(m.Address); m.Address = nth(network.CIDR, offset) {
		offset += step
	}
	if network.Second.IsValid() {
		m.Second = nth(network.Second, offset)
	}
	l.Members = append(l.Members, m)
	return &l.Members[len(l.Members)-1]
}

// numbered is what the n-th machine of a role is called, and where and in which direction it looks for an address.
func numbered(role Role, n int, network string) (name string, offset, step int) {
	switch role {
	case ControlPlane:
		return fmt.Sprintf("cp%d", n), firstControlPlaneOffset, -1
	case LoadBalancer:
		return "lb-" + network, loadBalancerOffset, 1
	case NameServer:
		return nameServerName, nameServerOffset, 1
	case Bastion:
		return bastionName, bastionOffset, 1
	case ImageRegistry:
		return registryName, registryOffset, 1
	case Forwarder:
		return forwarderName, forwarderOffset, 1
	default:
		return fmt.Sprintf("node%d", n), firstWorkerOffset, 1
	}
}

func (l *Lab) taken(a netip.Addr) bool {
	return slices.ContainsFunc(l.Members, func(m Member) bool { return m.Address == a })
}

// with are the members of any of the roles, the oldest first.
func (l *Lab) with(roles ...Role) []*Member {
	var all []*Member
	for i := range l.Members {
		if slices.Contains(roles, l.Members[i].Role) {
			all = append(all, &l.Members[i])
		}
	}
	return all
}

// member of that name; nil, if there is none.
func (l *Lab) member(name string) *Member {
	for i := range l.Members {
		if l.Members[i].Name == name {
			return &l.Members[i]
		}
	}
	return nil
}

func namesOf(members []*Member) []string {
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.Name
	}
	return names
}

// networkOf is the network that a member is in.
func (l Fabrics) networkOf(m *Member) Network {
	n, _ := networkNamed(l.Fabrics().joined(), m.Network) // it was added in one
	return n
}

// server is the URL at which nodes call the Kubernetes API.
func (l Balancers) server() string {
	if l.Topology.Edge {
		return fmt.Sprintf("https://%s:%d", l.Edge().API, apiServerPort)
	}
	return "https://" + l.endpoint().String()
}

// endpoint is where nodes reach the Kubernetes API: the only API server or, if there are several, the balancer that the
// forwarder runs in front of them, as kubeadm's controlPlaneEndpoint is. Nodes pinned to one server each would go blind
// while it restarts, and miss that the next one is going away.
func (l Balancers) endpoint() netip.AddrPort {
	if l.Topology.ControlPlanes == 1 && !l.Topology.byClusterAPI() {
		return l.with(ControlPlane)[0].apiServer()
	}
	address := l.Topology.Networks[0].Gateway()
	if l.Fabrics().isGuest() {
		address = l.with(Forwarder)[0].Address
	}
	return netip.AddrPortFrom(address, apiServerPort)
}
