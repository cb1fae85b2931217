package lab

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/lab/haproxy"
	"github.com/replumb/replumb/lab/machine"
)

// withEdge is a lab of two networks, with a node and a control plane in the second.
func withEdge() *Lab {
	topology := Default()
	topology.CNI, topology.Edge, topology.ControlPlanes = Calico, true, 3
	topology.Networks = networks("a=172.30.0.0/24", "b=172.31.0.0/24")
	l := newLab(topology)
	l.addMember(Worker, topology.Networks[1], IPTables)
	l.addMember(ControlPlane, topology.Networks[1], "")
	return l
}

func TestEdgeMembers(t *testing.T) {
	l := withEdge()
	want := map[string]string{
		"cp1": "a 172.30.0.10", "cp2": "a 172.30.0.9", "cp3": "a 172.30.0.8", "cp4": "b 172.31.0.10",
		"node1": "a 172.30.0.11", "node2": "a 172.30.0.12", "node3": "b 172.31.0.11",
		"lb-a": "a 172.30.0.50", "lb-b": "b 172.31.0.50", "dns": "outside 172.29.255.53", "bastion": "outside 172.29.255.54",
	}
	if got := addresses(l); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := l.Fabrics().networkOf(l.member("dns")).Gateway().String(); got != "172.29.255.1" {
		t.Errorf("the name server's gateway is %s", got)
	}
	if got := l.Balancers().server(); got != "https://api.lab.example:6443" {
		t.Errorf("nodes call %s", got)
	}
	if got := l.ControlPlaneNodes().serving(l.with(ControlPlane)[0]); !slices.Contains(got.Names, "api.lab.example") {
		t.Errorf("API servers are good for %v, not by the name that nodes call", got.Names)
	}
	if got := newLab(Default()).Edge(); got != nil {
		t.Errorf("a lab without an edge has %+v", got)
	}
	if _, err := l.Fabrics().network(outsideName); err == nil {
		t.Error("nodes can join outside")
	}
}

// TestEveryNetworkHasRoom for the most control planes and nodes there may be, and what there is one of.
func TestEveryNetworkHasRoom(t *testing.T) {
	topology := Default()
	topology.CNI, topology.Edge, topology.Networks = Calico, true, networks("a=172.30.0.0/26", "b=172.31.0.0/26")
	topology.ControlPlanes, topology.Nodes = maxControlPlanes, slices.Repeat([]ProxyMode{IPTables}, maxNodes)
	l := newLab(topology)
	for i := range l.Members {
		if m := &l.Members[i]; !l.Fabrics().networkOf(m).CIDR.Contains(m.Address) || m.Address == l.Fabrics().networkOf(m).Gateway() {
			t.Errorf("%s would get %s of %s", m.Name, m.Address, l.Fabrics().networkOf(m).CIDR)
		}
	}
}

func TestBalancings(t *testing.T) {
	l := withEdge()
	servers := func(b balancing) (texts []string) {
		for _, s := range b.config.Servers {
			texts = append(texts, s.Name+" "+s.Address.String())
		}
		return texts
	}
	planes := []string{"cp1 172.30.0.10:6443", "cp2 172.30.0.9:6443", "cp3 172.30.0.8:6443", "cp4 172.31.0.10:6443"}
	for name, nodes := range map[string][]string{
		"lb-a": {"node1 172.30.0.11:30080", "node2 172.30.0.12:30080"}, "lb-b": {"node3 172.31.0.11:30080"},
	} {
		all := l.Balancers().balancings(l.member(name))
		if got := servers(all[0]); !slices.Equal(got, planes) {
			t.Errorf("%s leads to API servers %v, want %v", name, got, planes)
		}
		if got := servers(all[1]); !slices.Equal(got, nodes) {
			t.Errorf("%s leads to nodes %v, want %v", name, got, nodes)
		}
		if got, want := servers(all[2]), strings.ReplaceAll(strings.Join(nodes, ","), ":30080", ":30443"); strings.Join(got, ",") != want {
			t.Errorf("%s leads TLS to nodes %v, want %v", name, got, want)
		}
	}
	ingress := l.Balancers().balancings(l.member("lb-b"))[1]
	local := haproxy.Status{Backend: haproxy.Local, Server: "node3"}
	if err := ingress.leadsTo([]haproxy.Status{local}); err == nil {
		t.Error("half of it is all")
	}
	if err := ingress.leadsTo([]haproxy.Status{local, {Backend: haproxy.Any, Server: "node3"}}); err != nil {
		t.Error(err)
	}
}

func TestJoiningControlPlane(t *testing.T) {
	l := withEdge()
	argv := l.ControlPlaneNodes().etcdJoining(l.member("cp4")).Argv
	for _, want := range []string{
		"--name=cp4", "--url=https://172.31.0.10:2380",
		"--peers=https://172.30.0.10:2380,https://172.30.0.9:2380,https://172.30.0.8:2380", "--data-dir=/var/lib/etcd",
	} {
		if !slices.Contains(argv[:slices.Index(argv, "--")], want) {
			t.Errorf("etcdjoin does not get %s: %v", want, argv)
		}
	}
	for _, arg := range argv {
		if strings.HasPrefix(arg, "--initial-cluster=") {
			t.Errorf("it gets %s, which may not be so by then", arg)
		}
	}
	p := like(
		machine.Program{Argv: []string{"new", "--advertise-address=172.31.0.10", serviceCIDRFlag + "10.96.0.0/16"}},
		machine.Program{Argv: []string{"old", "--advertise-address=172.30.0.10", serviceCIDRFlag + "172.24.0.0/16"}},
	)
	if want := []string{"new", "--advertise-address=172.31.0.10", serviceCIDRFlag + "172.24.0.0/16"}; !slices.Equal(p.Argv, want) {
		t.Errorf("got %v, want %v", p.Argv, want)
	}
}

func TestVacant(t *testing.T) {
	l := withEdge()
	if _, _, err := l.Fabrics().vacant("b"); err == nil || !strings.Contains(err.Error(), "there is node3, cp4") {
		t.Errorf("a network with machines: %v", err)
	}
	if _, _, err := l.Fabrics().vacant("c"); err == nil || !strings.Contains(err.Error(), "it has a, b") {
		t.Errorf("a network that is not there: %v", err)
	}
	l.Members = slices.DeleteFunc(l.Members, func(m Member) bool { return m.Name == "node3" || m.Name == "cp4" })
	if _, balancers, err := l.Fabrics().vacant("b"); err != nil || !slices.Equal(balancers, []string{"lb-b"}) {
		t.Errorf("an empty network: %v, %v", balancers, err)
	}
	topology := Default()
	topology.CNI, topology.Networks, topology.Nodes = Calico, networks("a=172.30.0.0/24", "b=172.31.0.0/24"), []ProxyMode{}
	l = newLab(topology)
	l.Members = nil
	if _, _, err := l.Fabrics().vacant("a"); err == nil || !strings.Contains(err.Error(), "the first one") {
		t.Errorf("the network that nodes call the API in: %v", err)
	}
}

func TestPlaceControlPlane(t *testing.T) {
	if _, err := newLab(Default()).ControlPlaneNodes().place(""); err == nil || !strings.Contains(err.Error(), "only API server") {
		t.Errorf("beside an API server that is called by its address: %v", err)
	}
	l := withEdge()
	if n, err := l.ControlPlaneNodes().place(""); err != nil || n.Name != "a" {
		t.Errorf("in the first network: %v, %v", n, err)
	}
	for len(l.ControlPlanes()) < maxControlPlanes {
		l.addMember(ControlPlane, l.Topology.Networks[1], "")
	}
	if _, err := l.ControlPlaneNodes().place("b"); err == nil {
		t.Error("there is room for ever")
	}
}
