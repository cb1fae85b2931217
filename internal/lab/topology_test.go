package lab

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	tests := []struct {
		name  string
		edit  func(*Topology)
		field string // of the error; empty if t is valid
		says  string
	}{
		{name: "default", edit: func(*Topology) {}},
		{name: "three control planes", edit: func(t *Topology) { t.ControlPlanes = 3 }},
		{"two control planes", func(t *Topology) { t.ControlPlanes = 2 }, "control-planes", "2 control planes"},
		{"no control plane", func(t *Topology) { t.ControlPlanes = 0 }, "control-planes", "0 control planes"},
		{name: "API server only", edit: func(t *Topology) { t.Nodes = []ProxyMode{} }},
		{"name too long", func(t *Topology) { t.Name = strings.Repeat("a", 21) }, "name", "not a valid lab name"},
		{"name is a path", func(t *Topology) { t.Name = "../x" }, "name", "not a valid lab name"},
		{"unknown proxy", func(t *Topology) { t.Nodes = []ProxyMode{"ipvs"} }, "proxy", `"ipvs" is not a proxy mode`},
		{"too many nodes", func(t *Topology) { t.Nodes = slices.Repeat([]ProxyMode{IPTables}, 33) }, "nodes", "33 nodes"},
		{"host bits", func(t *Topology) { t.PodCIDR = netip.MustParsePrefix("10.244.0.1/16") }, "pod-cidr", "host bits"},
		{"IPv6", func(t *Topology) { t.ServiceCIDR = netip.MustParsePrefix("fd00::/112") }, "service-cidr", "not an IPv4"},
		{"IPv4 in IPv6", func(t *Topology) { t.ServiceCIDR = netip.MustParsePrefix("::ffff:10.0.0.0/112") }, "service-cidr", "not an IPv4"},
		{"too wide", func(t *Topology) { t.ServiceCIDR = netip.MustParsePrefix("10.0.0.0/8") }, "service-cidr", "not between /12 and /28"},
		{"too small", func(t *Topology) { t.NodeCIDR = netip.MustParsePrefix("172.30.0.0/27") }, "node-cidr", "not between /8 and /26"},
		{
			"too few pod ranges", func(t *Topology) { t.PodCIDR = netip.MustParsePrefix("10.244.0.0/24") },
			"pod-cidr", "not between /8 and /23",
		},
		{
			"pods in services", func(t *Topology) { t.PodCIDR = netip.MustParsePrefix("10.96.128.0/17") },
			"pod-cidr", "overlaps service-cidr 10.96.0.0/16",
		},
		{
			"nodes in pods", func(t *Topology) { t.NodeCIDR = netip.MustParsePrefix("10.244.7.0/24") },
			"node-cidr", "overlaps pod-cidr 10.244.0.0/16",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			topology := Default()
			tt.edit(&topology)
			err := topology.Validate()
			if tt.field == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			invalid := (*InvalidError)(nil)
			if !errors.As(err, &invalid) {
				t.Fatalf("got %v, want an InvalidError", err)
			}
			if invalid.Field != tt.field || !strings.Contains(invalid.Problem, tt.says) || invalid.Hint == "" {
				t.Errorf("got %+v, want field %s saying %q, with a hint", invalid, tt.field, tt.says)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	topology := Default()
	for got, want := range map[netip.Addr]string{
		topology.gateway(): "172.30.0.1", topology.controlPlane(0): "172.30.0.10",
		topology.node(0): "172.30.0.11", topology.node(1): "172.30.0.12",
		topology.apiService(): "10.96.0.1", topology.dns(): "10.96.0.10",
	} {
		if got.String() != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := topology.endpoint().String(); got != "172.30.0.10:6443" {
		t.Errorf("nodes call %s, not the only API server", got)
	}
	topology.ControlPlanes = 3
	if got := topology.endpoint().String(); got != "172.30.0.1:6443" {
		t.Errorf("nodes call %s, not what stands before three API servers", got)
	}
	if got := topology.controlPlane(2).String(); got != "172.30.0.8" {
		t.Errorf("cp3 has %s, want 172.30.0.8", got)
	}
	// The narrowest node network there may be has room for the most nodes there may be.
	topology.NodeCIDR = netip.MustParsePrefix("172.30.0.0/26")
	if last := topology.node(maxNodes - 1); !topology.NodeCIDR.Contains(last) {
		t.Errorf("node %d would get %s, outside %s", maxNodes, last, topology.NodeCIDR)
	}
}

func TestParseProxyModes(t *testing.T) {
	tests := []struct {
		in    string
		nodes int
		want  []ProxyMode
		fails bool
	}{
		{"iptables,nftables", 2, []ProxyMode{IPTables, NFTables}, false},
		{"iptables,nftables", 3, []ProxyMode{IPTables, NFTables, IPTables}, false},
		{"nftables", 2, []ProxyMode{NFTables, NFTables}, false},
		{"nftables", 0, []ProxyMode{}, false},
		{"iptables,nftables", 1, nil, true},
		{"ipvs", 2, nil, true},
		{"", 2, nil, true},
		{"iptables", -1, nil, true},
	}
	for _, tt := range tests {
		got, err := ParseProxyModes(tt.in, tt.nodes)
		if (err != nil) != tt.fails || !slices.Equal(got, tt.want) {
			t.Errorf("ParseProxyModes(%q, %d) = %v, %v", tt.in, tt.nodes, got, err)
		}
	}
}
