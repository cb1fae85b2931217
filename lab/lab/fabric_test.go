package lab

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// left is a lab that has made a fabric.
func left() *Lab {
	topology := Default()
	topology.Name, topology.CNI, topology.Edge, topology.Fabric = "left", Flannel, true, "shared"
	return newLab(topology)
}

// right is a lab in the fabric of left.
func right() Topology {
	topology := Default()
	topology.Name, topology.CNI, topology.Edge, topology.Fabric = "right", Calico, true, "shared"
	topology.Networks = networks("r=172.31.0.0/24")
	return topology
}

func TestGuest(t *testing.T) {
	l := newGuest(right(), "left")
	want := map[string]string{
		"cp1": "r 172.31.0.10", "node1": "r 172.31.0.11", "node2": "r 172.31.0.12", "lb-r": "r 172.31.0.50", "forwarder": "r 172.31.0.49",
	}
	if got := addresses(l); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := l.Machines(); !slices.Equal(got, []string{"forwarder", "cp1", "node1", "node2", "lb-r", "dns", "bastion"}) {
		t.Errorf("its machines are %v", got)
	}
	if got := l.Balancers().server(); got != "https://api-right.lab.example:6443" {
		t.Errorf("nodes call %s", got)
	}
	if got := l.ControlPlaneNodes().serving(l.with(ControlPlane)[0]); !slices.Contains(got.Names, "api-right.lab.example") {
		t.Errorf("API servers are good for %v, not by the name that nodes call", got.Names)
	}
	for name, want := range map[string]string{
		"cp1": stateRoot + "/right/cp1", "bastion": stateRoot + "/left/bastion", "fabric": stateRoot + "/left/fabric",
	} {
		if got := l.machineSpec(name).Root; got != want {
			t.Errorf("%s has its files in %s, want %s", name, got, want)
		}
	}
	host := left().Edge()
	edge := l.Edge()
	if edge.NameServer != host.NameServer || edge.Ingress != "ingress-right."+Zone || edge.Balancers["r"].String() != "172.31.0.50" {
		t.Errorf("its edge is %+v", edge)
	}
	bastion := edge.Bastion
	if bastion.Machine != host.Bastion.Machine || bastion.Client != host.Bastion.Client {
		t.Errorf("its bastion is %+v, not that of the other", bastion)
	}
	for _, pair := range [][2]string{
		{bastion.Kubeconfig, host.Bastion.Kubeconfig},
		{bastion.Token, host.Bastion.Token},
		{bastion.CA, host.Bastion.CA},
		{edge.UpdateKey, host.UpdateKey},
	} {
		if pair[0] == pair[1] {
			t.Errorf("both have %s", pair[0])
		}
	}
	several := right()
	several.Edge, several.ControlPlanes = false, 3
	if got := newGuest(several, "left").Balancers().endpoint().String(); got != "172.31.0.49:6443" {
		t.Errorf("nodes call %s, which does not forward", got)
	}
}

// TestLinks sees that no two machines of a fabric have the same name there, and none has one that the kernel does not take.
func TestLinks(t *testing.T) {
	host, guest := left(), newGuest(right(), "left")
	seen := map[string]string{}
	for _, l := range []*Lab{host, guest} {
		for i := range l.Members {
			m := &l.Members[i]
			link := l.Fabrics().linkOf(m)
			if other := seen[link]; other != "" || len(link) > 15 {
				t.Errorf("%s of %s is called %q, as %q", m.Name, l.Topology.Name, link, other)
			}
			seen[link] = l.Topology.Name + " " + m.Name
		}
	}
}

func TestFits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		owner func(*Topology)
		edit  func(*Topology)
		field string // of the error; empty if it fits
		says  string
	}{
		{name: "fits"},
		{
			name: "no name server", owner: func(t *Topology) { t.Edge = false },
			field: "edge", says: "lab left, which made the fabric, has no name server",
		},
		{
			name: "no edge on either side", owner: func(t *Topology) { t.Edge = false }, edit: func(t *Topology) { t.Edge = false },
		},
		{
			name: "same name", edit: func(t *Topology) { t.Networks = networks("a=172.31.0.0/24") },
			field: "networks", says: "lab left has network a=172.30.0.0/24",
		},
		{
			name: "same addresses", edit: func(t *Topology) { t.Networks = networks("r=172.30.0.128/25") },
			field: "networks", says: "lab left has network a=172.30.0.0/24",
		},
		{
			name: "outside", edit: func(t *Topology) { t.Networks, t.Edge = networks("outside=172.31.0.0/24"), false },
			field: "networks", says: "network outside=172.29.255.0/24",
		},
		{
			name: "addresses of pods", edit: func(t *Topology) { t.Networks = networks("r=10.244.7.0/24") },
			field: "networks", says: "lab left has addresses of 10.244.0.0/16",
		},
		{
			name: "pods there", edit: func(t *Topology) { t.PodCIDR = netip.MustParsePrefix("172.30.0.0/16") },
			field: "networks", says: "172.30.0.0/16 overlaps network a of lab left",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			owner, topology := left(), right()
			if tt.owner != nil {
				tt.owner(&owner.Topology)
			}
			if tt.edit != nil {
				tt.edit(&topology)
			}
			err := topology.fits(owner, []*Lab{owner})
			if tt.field == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			invalid := (*InvalidError)(nil)
			if !errors.As(err, &invalid) || invalid.Field != tt.field || !strings.Contains(invalid.Problem, tt.says) || invalid.Hint == "" {
				t.Errorf("got %+v, want field %s saying %q, with a hint", err, tt.field, tt.says)
			}
		})
	}
}
