package lab

import (
	"errors"
	"maps"
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
		{name: "an older Kubernetes", edit: func(t *Topology) { t.Kubernetes = "1.31.0" }},
		{"a Kubernetes that is not there", func(t *Topology) { t.Kubernetes = "1.32" }, "kubernetes", `do not run Kubernetes "1.32"`},
		{"gate without a value", func(t *Topology) { t.FeatureGates = "MultiCIDRServiceAllocator" }, "feature-gates", "does not switch"},
		{"API without a value", func(t *Topology) { t.RuntimeConfig = "networking.k8s.io/v1beta1=" }, "runtime-config", "does not switch"},
		{name: "three control planes", edit: func(t *Topology) { t.ControlPlanes = 3 }},
		{"two control planes", func(t *Topology) { t.ControlPlanes = 2 }, "control-planes", "2 control planes"},
		{"no control plane", func(t *Topology) { t.ControlPlanes = 0 }, "control-planes", "0 control planes"},
		{name: "API server only", edit: func(t *Topology) { t.Nodes = []ProxyMode{} }},
		{"name too long", func(t *Topology) { t.Name = strings.Repeat("a", 21) }, "name", "not a valid lab name"},
		{"name is a path", func(t *Topology) { t.Name = "../x" }, "name", "not a valid lab name"},
		{"unknown proxy", func(t *Topology) { t.Nodes = []ProxyMode{"ipvs"} }, "proxy", `"ipvs" is not a proxy mode`},
		{name: "Cilium beside kube-proxy", edit: func(t *Topology) { t.CNI = Cilium }},
		{name: "Calico later", edit: func(t *Topology) { t.Beside = Calico }},
		{name: "Cilium later", edit: func(t *Topology) { t.Beside = Cilium }},
		{"flannel later", func(t *Topology) { t.Beside = Flannel }, "beside", "with host-local cannot be given flannel"},
		{name: "Cilium in place of kube-proxy", edit: withCilium(NoProxy, NoProxy)},
		{
			"no kube-proxy without Cilium",
			func(t *Topology) { t.Nodes = []ProxyMode{NoProxy} },
			"proxy",
			"nothing leads to Services with host-local",
		},
		{
			"kube-proxy in pods, of two modes",
			func(t *Topology) { t.ProxyPods = true },
			"proxy-pods", "have one mode",
		},
		{"no kube-proxy on one node", withCilium(NoProxy, IPTables), "proxy", "on some nodes only"},
		{"no kube-proxy on the other node", withCilium(IPTables, NoProxy), "proxy", "on some nodes only"},
		{"Cilium with IPv6", func(t *Topology) { inFamilies(IPv6)(t); t.CNI = Cilium }, "cni", "do not do that with IPv6"},
		{
			"two networks that Cilium has not been seen to cross",
			func(t *Topology) { t.CNI, t.Networks = Cilium, networks("a=172.30.0.0/24", "b=172.31.0.0/24") },
			"networks", "cannot reach each other with cilium",
		},
		{name: "made by kubeadm", edit: madeByKubeadm(HostLocal)},
		{name: "made by kubeadm, in two networks", edit: madeByKubeadm(Calico, "a=172.30.0.0/24", "b=172.31.0.0/24")},
		{name: "made by kubeadm, with Cilium", edit: madeByKubeadm(Cilium)},
		{"made by kubeadm, with Calico's tunnels between networks alone", madeByKubeadm(CalicoCrossSubnet), "installer", "has host-local, flannel, Calico or Cilium"},
		{
			"made by kubeadm, of two modes",
			func(t *Topology) { t.Installer, t.Nodes = Kubeadm, []ProxyMode{IPTables, NFTables} },
			"installer", "have one mode",
		},
		{"made by nobody", func(t *Topology) { t.Installer = "kops" }, "installer", `"kops" makes no cluster`},
		{"too many nodes", func(t *Topology) { t.Nodes = slices.Repeat([]ProxyMode{IPTables}, 33) }, "nodes", "33 nodes"},
		{"host bits", func(t *Topology) { t.PodCIDR = netip.MustParsePrefix("10.244.0.1/16") }, "pod-cidr", "host bits"},
		{name: "IPv6", edit: inFamilies(IPv6)},
		{name: "both families", edit: inFamilies(IPv4, IPv6)},
		{name: "IPv6 first", edit: inFamilies(IPv6, IPv4)},
		{
			"IPv6 for Services alone",
			func(t *Topology) { t.ServiceCIDR = netip.MustParsePrefix("fd00::/112") },
			"pod-cidr",
			"not of the families",
		},
		{
			"IPv4 in IPv6",
			func(t *Topology) { t.ServiceCIDR = netip.MustParsePrefix("::ffff:10.0.0.0/112") },
			"service-cidr",
			"IPv4 range in IPv6",
		},
		{
			"nodes of one family", func(t *Topology) { inFamilies(IPv4, IPv6)(t); t.Networks = Default().Networks },
			"networks", "172.30.0.0/24 is not of the families",
		},
		{
			"twice the same family",
			func(t *Topology) {
				inFamilies(IPv4, IPv6)(t)
				t.SecondServiceCIDR = netip.MustParsePrefix("10.97.0.0/16")
			},
			"service-cidr", "are of one family",
		},
		{
			"too wide for IPv6", func(t *Topology) { inFamilies(IPv6)(t); t.ServiceCIDR = netip.MustParsePrefix("fd00:10:96::/64") },
			"service-cidr", "not between /108 and /124",
		},
		{"Calico with IPv6", func(t *Topology) { inFamilies(IPv6)(t); t.CNI = Calico }, "cni", "do not do that with IPv6"},
		{"edge with IPv6", func(t *Topology) { inFamilies(IPv4, IPv6)(t); t.Edge = true }, "edge", "do not do that with IPv6"},
		{"too wide", func(t *Topology) { t.ServiceCIDR = netip.MustParsePrefix("10.0.0.0/8") }, "service-cidr", "not between /12 and /28"},
		{
			"too small",
			func(t *Topology) { t.Networks[0].CIDR = netip.MustParsePrefix("172.30.0.0/27") },
			"networks",
			"not between /8 and /26",
		},
		{
			"too few pod ranges", func(t *Topology) { t.PodCIDR = netip.MustParsePrefix("10.244.0.0/24") },
			"pod-cidr", "not between /8 and /23",
		},
		{
			"pods in services", func(t *Topology) { t.PodCIDR = netip.MustParsePrefix("10.96.128.0/17") },
			"pod-cidr", "overlaps service-cidr 10.96.0.0/16",
		},
		{
			"nodes in pods", func(t *Topology) { t.Networks[0].CIDR = netip.MustParsePrefix("10.244.7.0/24") },
			"networks", "overlaps pod-cidr 10.244.0.0/16",
		},
		{"a registry without a name server", func(t *Topology) { t.Registry = "registry.lab.example" }, "registry", "no name server"},
		{name: "a registry", edit: withRegistry("registry.lab.example")},
		{"a registry elsewhere", withRegistry("registry.example.com"), "registry", "not a host name in lab.example"},
		{"a registry with a port", withRegistry("registry:5000.lab.example"), "registry", "not a host name in lab.example"},
		{"a registry without a name", withRegistry("lab.example"), "registry", "not a host name in lab.example"},
		{"a registry in place of the API", withRegistry("api." + Zone), "registry", "the name of something else"},
		{name: "two networks", edit: func(t *Topology) { t.CNI, t.Networks = Calico, networks("a=172.30.0.0/24", "b=172.31.0.0/24") }},
		{
			"two networks that pods do not cross", func(t *Topology) { t.Networks = networks("a=172.30.0.0/24", "b=172.31.0.0/24") },
			"networks", "cannot reach each other with host-local",
		},
		{
			"networks overlap", func(t *Topology) { t.CNI, t.Networks = Calico, networks("a=172.30.0.0/16", "b=172.30.7.0/24") },
			"networks", "overlaps networks 172.30.0.0/16",
		},
		{
			"two of one name", func(t *Topology) { t.CNI, t.Networks = Calico, networks("a=172.30.0.0/24", "a=172.31.0.0/24") },
			"networks", `two are called "a"`,
		},
		{"network without a name", func(t *Topology) { t.Networks = networks("=172.30.0.0/24") }, "networks", `"" is not a name`},
		{name: "edge", edit: func(t *Topology) {
			t.Edge, t.CNI, t.Networks = true, Calico, networks("a=172.30.0.0/24", "b=172.31.0.0/24")
		}},
		{name: "edge of one network", edit: func(t *Topology) { t.Edge = true }},
		{name: "flannel", edit: func(t *Topology) { t.CNI, t.Edge, t.Fabric = Flannel, true, "shared" }},
		{"unknown network of pods", func(t *Topology) { t.CNI = "weave" }, "cni", `"weave" is not a network`},
		{
			"two networks that flannel's pods do not cross",
			func(t *Topology) { t.CNI, t.Networks = Flannel, networks("a=172.30.0.0/24", "b=172.31.0.0/24") },
			"networks", "cannot reach each other with flannel",
		},
		{"fabric of a wrong name", func(t *Topology) { t.Fabric = "not/one" }, "fabric", `"not/one" is not a name`},
		{
			"outside is taken", func(t *Topology) {
				t.Edge, t.CNI, t.Networks = true, Calico, networks("a=172.30.0.0/24", "outside=172.31.0.0/24")
			},
			"networks", "nothing of the cluster",
		},
		{
			"outside overlaps", func(t *Topology) {
				t.Edge, t.CNI, t.Networks = true, Calico, networks("a=172.30.0.0/24", "b=172.29.0.0/16")
			},
			"networks", "overlaps outside 172.29.255.0/24",
		},
		{"no network", func(t *Topology) { t.Networks = []Network{} }, "networks", "0 networks"},
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

func networks(texts ...string) (all []Network) {
	for _, text := range texts {
		name, cidr, _ := strings.Cut(text, "=")
		all = append(all, Network{Name: name, CIDR: netip.MustParsePrefix(cidr)})
	}
	return all
}

// addresses are those of a lab's members, by name.
func addresses(l *Lab) map[string]string {
	all := map[string]string{}
	for _, m := range l.Members {
		all[m.Name] = m.Network + " " + m.Address.String()
	}
	return all
}

func madeByKubeadm(cni CNI, all ...string) func(*Topology) {
	return func(t *Topology) {
		t.Installer, t.CNI, t.Nodes = Kubeadm, cni, []ProxyMode{IPTables, IPTables}
		if len(all) > 0 {
			t.Networks = networks(all...)
		}
	}
}

func TestMembers(t *testing.T) {
	topology := Default()
	topology.Networks = networks("a=172.30.0.0/24", "b=172.31.0.0/24")
	l := newLab(topology)
	if got := l.Balancers().endpoint().String(); got != "172.30.0.10:6443" {
		t.Errorf("nodes call %s, not the only API server", got)
	}
	topology.ControlPlanes = 3
	l = newLab(topology)
	if got := l.Balancers().endpoint().String(); got != "172.30.0.1:6443" {
		t.Errorf("nodes call %s, not what stands before three API servers", got)
	}
	want := map[string]string{
		"cp1": "a 172.30.0.10", "cp2": "a 172.30.0.9", "cp3": "a 172.30.0.8", "node1": "a 172.30.0.11", "node2": "a 172.30.0.12",
	}
	if got := addresses(l); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	// Names are never used again; addresses are, as a cloud does.
	l.addMember(Worker, topology.Networks[1], IPTables)
	l.Members = slices.DeleteFunc(l.Members, func(m Member) bool { return m.Name == "node1" || m.Name == "cp2" })
	l.addMember(Worker, topology.Networks[0], IPTables)
	l.addMember(ControlPlane, topology.Networks[0], "")
	want = map[string]string{
		"cp1": "a 172.30.0.10", "cp3": "a 172.30.0.8", "node2": "a 172.30.0.12",
		"node3": "b 172.31.0.11", "node4": "a 172.30.0.11", "cp4": "a 172.30.0.9",
	}
	if got := addresses(l); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := l.NodeNames(); !slices.Equal(got, []string{"node2", "node3", "node4"}) {
		t.Errorf("the nodes are %v", got)
	}
	// The narrowest network there may be has room for the most nodes there may be.
	topology.Networks = networks("a=172.30.0.0/26")
	topology.Nodes = slices.Repeat([]ProxyMode{IPTables}, maxNodes)
	for _, m := range newLab(topology).Members {
		if !topology.Networks[0].CIDR.Contains(m.Address) {
			t.Errorf("%s would get %s, outside %s", m.Name, m.Address, topology.Networks[0].CIDR)
		}
	}
	for got, want := range map[netip.Addr]string{topology.apiService(): "10.96.0.1", topology.dns(): "10.96.0.10"} {
		if got.String() != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func withCilium(modes ...ProxyMode) func(*Topology) {
	return func(t *Topology) { t.CNI, t.Nodes = Cilium, modes }
}

func inFamilies(families ...Family) func(*Topology) {
	return func(t *Topology) { *t = t.InFamilies(families...) }
}

// TestFlagsOfFamilies looks at what programs are told in labs of both families and of IPv6 alone.
func TestFlagsOfFamilies(t *testing.T) {
	both := newLab(Default().InFamilies(IPv4, IPv6))
	node := both.with(Worker)[0]
	for got, want := range map[string]string{
		flag(both.ControlPlaneNodes().apiServer(both.with(ControlPlane)[0]).Argv, "--service-cluster-ip-range"): "10.96.0.0/16,fd00:10:96::/112",
		flag(controllerManager(both.Topology, "").Argv, "--cluster-cidr"):                                       "10.244.0.0/16,fd00:10:244::/56",
		flag(nodePrograms(Topology{}, binaries{}, node)[1].Argv, "--node-ip"):                                   "172.30.0.11,fd00:172:30::b",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	six := newLab(Default().InFamilies(IPv6))
	m := six.with(ControlPlane)[0]
	if got := flag(six.ControlPlaneNodes().etcd(m).Argv, "--advertise-client-urls"); got != "https://[fd00:172:30::a]:2379" {
		t.Errorf("etcd is told %s", got)
	}
	if got := six.Balancers().server(); got != "https://[fd00:172:30::a]:6443" {
		t.Errorf("nodes call %s", got)
	}
	if got := proxyConfig(six.Topology, "node1", NFTables); got.BindAddress != "::" || got.ClusterCIDR != "fd00:10:244::/56" {
		t.Errorf("kube-proxy listens at %s and takes %s for pods", got.BindAddress, got.ClusterCIDR)
	}
}

func TestParseFamilies(t *testing.T) {
	for text, want := range map[string][]Family{
		"IPv4": {IPv4}, "IPv6,IPv4": {IPv6, IPv4}, "IPv4, IPv6": {IPv4, IPv6}, "": nil, "ipv4": nil, "IPv4,IPv4": nil, "IPv4,IPv6,IPv4": nil,
	} {
		got, err := ParseFamilies(text)
		if (err != nil) != (want == nil) || !slices.Equal(got, want) {
			t.Errorf("ParseFamilies(%q) = %v, %v", text, got, err)
		}
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
