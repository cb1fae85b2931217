package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"go4.org/netipx"
)

// ProxyMode is how a node's kube-proxy programs Services.
type ProxyMode string

// The proxy modes a lab can run. IPVS is left out: it needs kernel modules and is deprecated since Kubernetes 1.35.
const (
	IPTables ProxyMode = "iptables"
	NFTables ProxyMode = "nftables"
	// NoProxy is of all nodes or of none: no kube-proxy runs, and the network of pods leads to Services.
	NoProxy ProxyMode = "none"
)

// Topology is what a lab consists of. The zero value of each field means its default; see Default.
type Topology struct {
	Name  string      `json:"name"`
	Nodes []ProxyMode `json:"nodes"` // one worker node each
	// Installer makes the cluster. Default: the lab itself.
	Installer Installer `json:"installer,omitempty"`
	// ProxyPods has kube-proxy in the pods of a DaemonSet, as kubeadm does, and not as a program of each node. All have one mode then.
	ProxyPods bool `json:"proxyPods,omitempty"`
	// ControlPlanes is how many machines run etcd, API server, controller manager and scheduler: 1 or 3.
	ControlPlanes int          `json:"controlPlanes"`
	ServiceCIDR   netip.Prefix `json:"serviceCIDR"` // what the lab is born with; see Lab.RestartAPIServers
	PodCIDR       netip.Prefix `json:"podCIDR"`     // each node gets a /24 of it, or a /64
	// SecondServiceCIDR and SecondPodCIDR are those of the other family, if the lab has both. See InFamilies.
	SecondServiceCIDR netip.Prefix `json:"secondServiceCIDR,omitzero"`
	SecondPodCIDR     netip.Prefix `json:"secondPodCIDR,omitzero"`
	// Networks are those that machines can be in. The lab is born in the first; the fabric is the router between them.
	Networks []Network `json:"networks"`
	CNI      CNI       `json:"cni"`
	// Beside is a network that the cluster can be given in place of CNI: nodes have its images and what it needs, and it is not installed.
	Beside CNI `json:"beside,omitempty"`
	// Kubernetes is the version of the cluster's programs: one of Releases.
	Kubernetes string `json:"kubernetes"`
	// FeatureGates are of the API servers and controller managers, RuntimeConfig is which APIs are served beside those by default: both as
	// their flags take them.
	FeatureGates  string `json:"featureGates,omitempty"`
	RuntimeConfig string `json:"runtimeConfig,omitempty"`
	// Fabric is one that labs of the same can share, by name: the first one brought up makes it, and others plug into it, with
	// networks of their own. Machines of all of them reach each other. See Lab.Fabric.
	Fabric string `json:"fabric,omitempty"`
	// Edge puts in front of the cluster what people reach it by: names in a name server that takes updates, and a load balancer
	// in each network. See Edge.
	Edge bool `json:"edge,omitempty"`
	// Registry is the host name, in Zone, of an image registry that takes credentials, if there is to be one. See Lab.Registry.
	Registry string `json:"registry,omitempty"`
	// With is what else runs in the cluster.
	With []Addon `json:"with,omitempty"`
}

// Network joins machines, as a VPC's subnet does.
type Network struct {
	Name string       `json:"name"`
	CIDR netip.Prefix `json:"cidr"`
	// Second is its range of the other family, if the lab has both.
	Second netip.Prefix `json:"second,omitzero"`
}

// Gateway is the address of the router in the network, in the first family.
func (n Network) Gateway() netip.Addr { return nth(n.CIDR, gatewayOffset) }

// gateways are the router's addresses in the network, one for each family.
func (n Network) gateways() []netip.Addr {
	var all []netip.Addr
	for _, p := range n.cidrs() {
		all = append(all, nth(p, gatewayOffset))
	}
	return all
}

// in is an address with the length of the network's prefix.
func (n Network) in(a netip.Addr) netip.Prefix {
	if n.Second.Contains(a) {
		return netip.PrefixFrom(a, n.Second.Bits())
	}
	return netip.PrefixFrom(a, n.CIDR.Bits())
}

// network of that name, for nodes and control planes to be in; false, if there is none.
func (t Topology) network(name string) (Network, bool) { return networkNamed(t.Networks, name) }

func networkNamed(networks []Network, name string) (Network, bool) {
	i := slices.IndexFunc(networks, func(n Network) bool { return n.Name == name })
	if i < 0 {
		return Network{}, false
	}
	return networks[i], true
}

func networkNames(networks []Network) string {
	var names []string
	for _, n := range networks {
		names = append(names, n.Name)
	}
	return strings.Join(names, ", ")
}

// Default is a lab of two nodes, one of each proxy mode.
func Default() Topology {
	return Topology{
		Name:          "lab",
		Nodes:         []ProxyMode{IPTables, NFTables},
		ControlPlanes: 1,
		ServiceCIDR:   netip.MustParsePrefix("10.96.0.0/16"),
		PodCIDR:       netip.MustParsePrefix("10.244.0.0/16"),
		Networks:      []Network{{Name: "a", CIDR: netip.MustParsePrefix("172.30.0.0/24")}},
		CNI:           HostLocal,
		Kubernetes:    releases()[0].version,
	}
}

func (t Topology) withDefaults() Topology {
	d := Default()
	if t.Name == "" {
		t.Name = d.Name
	}
	if t.Nodes == nil {
		t.Nodes = d.Nodes
	}
	if t.ControlPlanes == 0 {
		t.ControlPlanes = d.ControlPlanes
	}
	if t.CNI == "" {
		t.CNI = d.CNI
	}
	if t.Kubernetes == "" {
		t.Kubernetes = d.Kubernetes
	}
	if t.Networks == nil {
		t.Networks = d.Networks
	}
	if t.byClusterAPI() && t.Fabric == "" { // which the lab is in that manages the cluster
		t.Fabric = t.Name
	}
	for _, p := range []struct{ set, fallback *netip.Prefix }{
		{&t.ServiceCIDR, &d.ServiceCIDR}, {&t.PodCIDR, &d.PodCIDR},
	} {
		if !p.set.IsValid() {
			*p.set = *p.fallback
		}
	}
	return t
}

// Names become part of socket paths, which the kernel limits to 107 bytes, and of host names.
var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$`)

// maxNodes keeps node addresses inside the part of the node network they are numbered from, and labs bearable.
const maxNodes = 32

// InvalidError says that a lab cannot be made as described, in terms of what was asked.
type InvalidError struct{ Field, Problem, Hint string }

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s: %s\nhint: %s", e.Field, e.Problem, e.Hint)
}

// Validate reports the first thing that is wrong with t as an *InvalidError.
func (t Topology) Validate() error {
	if !validName.MatchString(t.Name) {
		return &InvalidError{
			"name", fmt.Sprintf("%q is not a valid lab name", t.Name),
			"use up to 20 lower-case letters, digits and dashes",
		}
	}
	if len(t.Nodes) > maxNodes {
		return &InvalidError{
			"nodes", fmt.Sprintf("%d nodes are more than a lab can hold", len(t.Nodes)),
			fmt.Sprintf("use at most %d", maxNodes),
		}
	}
	if t.ControlPlanes != 1 && t.ControlPlanes != 3 {
		return &InvalidError{
			"control-planes", fmt.Sprintf("a lab cannot have %d control planes", t.ControlPlanes),
			"use 1, or 3 for one that survives the restart of any",
		}
	}
	if !slices.Contains(allCNIs(), t.CNI) {
		return &InvalidError{
			"cni", fmt.Sprintf("%q is not a network of a lab", t.CNI), "use host-local, calico, calico-cross-subnet, flannel or cilium",
		}
	}
	if t.Beside != "" && !slices.Contains(t.CNI.besides(), t.Beside) {
		return &InvalidError{
			"beside", fmt.Sprintf("a lab with %s cannot be given %s", t.CNI, t.Beside),
			"use --cni flannel --beside cilium, or --cni host-local --beside calico or cilium; Calico needs no flag with --cni flannel",
		}
	}
	if err := t.validateProxies(); err != nil {
		return err
	}
	if t.Fabric != "" && !validName.MatchString(t.Fabric) {
		return &InvalidError{
			"fabric", fmt.Sprintf("%q is not a name", t.Fabric), "use up to 20 lower-case letters, digits and dashes",
		}
	}
	if err := t.validateNetworks(); err != nil {
		return err
	}
	if err := cmp.Or(t.validateInstaller(), t.validateRelease(), t.validateEdge(), t.validateRegistry(), t.validateWith()); err != nil {
		return err
	}
	return cmp.Or(t.validateRanges(), t.validateFamilies())
}

// runsCilium tells whether nodes are made to run Cilium, at once or later.
func (t Topology) runsCilium() bool { return t.CNI == Cilium || t.Beside == Cilium }

// withoutProxies tells whether no node runs a kube-proxy.
func (t Topology) withoutProxies() bool { return slices.Contains(t.Nodes, NoProxy) }

func (t Topology) validateProxies() error {
	for _, mode := range t.Nodes {
		switch {
		case !slices.Contains(proxyModes(), mode):
			return notAMode(string(mode))
		case mode == NoProxy && t.CNI != Cilium:
			return &InvalidError{
				"proxy",
				fmt.Sprintf("without kube-proxy nothing leads to Services with %s", t.CNI),
				"use --cni cilium, or iptables or nftables",
			}
		case mode != t.Nodes[0] && (mode == NoProxy || t.Nodes[0] == NoProxy):
			return &InvalidError{"proxy", "kube-proxy would run on some nodes only", "use none alone, or iptables and nftables"}
		case t.ProxyPods && (mode == NoProxy || mode != t.Nodes[0]):
			return &InvalidError{"proxy-pods", "the pods of one DaemonSet have one mode", "use --proxy iptables, or nftables"}
		}
	}
	return nil
}

func proxyModes() []ProxyMode { return []ProxyMode{IPTables, NFTables, NoProxy} }

func notAMode(name string) error {
	return &InvalidError{"proxy", fmt.Sprintf("%q is not a proxy mode", name), "use iptables or nftables, or none with --cni cilium"}
}

const maxNetworks = 8

// validNetwork keeps to what fits into the name of a link behind "br-", of which the kernel takes 15 bytes.
var validNetwork = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?$`)

func (t Topology) validateNetworks() error {
	if len(t.Networks) == 0 || len(t.Networks) > maxNetworks {
		return &InvalidError{
			"networks", fmt.Sprintf("a lab cannot have %d networks", len(t.Networks)), fmt.Sprintf("name 1 to %d", maxNetworks),
		}
	}
	for i, n := range t.Networks {
		if !validNetwork.MatchString(n.Name) {
			return &InvalidError{"networks", fmt.Sprintf("%q is not a name", n.Name), "use up to 12 lower-case letters, digits and dashes"}
		}
		if _, again := networkNamed(t.Networks[:i], n.Name); again {
			return &InvalidError{"networks", fmt.Sprintf("two are called %q", n.Name), "give each a name of its own"}
		}
	}
	if len(t.Networks) > 1 && !t.CNI.isCalico() {
		return &InvalidError{
			"networks", "pods of machines in different networks cannot reach each other with " + string(t.CNI),
			"use --cni calico: it needs no routes to pods between networks",
		}
	}
	return nil
}

// limited is a range that must be of a certain size.
type limited struct {
	field   string
	prefix  netip.Prefix
	minBits int // widest
	maxBits int // narrowest
}

// limit of the size of a range, by its family.
func limit(field string, p netip.Prefix, four, six [2]int) limited {
	bits := four
	if p.Addr().Is6() {
		bits = six
	}
	return limited{field, p, bits[0], bits[1]}
}

// ranges of the lab, with the sizes that they may have.
func (t Topology) ranges() []limited {
	var all []limited
	for _, p := range t.ServiceCIDRs() { // the API server accepts at most 20 host bits
		all = append(all, limit("service-cidr", p, [2]int{12, 28}, [2]int{108, 124}))
	}
	for _, p := range t.PodCIDRs() { // the controller manager numbers nodes by at most 16 bits
		nodes := bitsFor(len(t.Nodes))
		all = append(all, limit("pod-cidr", p, [2]int{8, 24 - nodes}, [2]int{48, 64 - nodes}))
	}
	if t.Edge {
		all = append(all, limited{"outside", outside().CIDR, 8, 26})
	}
	for _, n := range t.Networks {
		for _, p := range n.cidrs() {
			all = append(all, limit("networks", p, [2]int{8, 26}, [2]int{48, 120}))
		}
	}
	return all
}

// validateRanges checks each range by itself, then that none overlaps another.
func (t Topology) validateRanges() error {
	ranges := t.ranges()
	for i, r := range ranges {
		switch {
		case r.prefix.Addr().Is4In6():
			return &InvalidError{r.field, r.prefix.String() + " is an IPv4 range in IPv6", "write it as a range of IPv4"}
		case r.prefix != r.prefix.Masked():
			return &InvalidError{r.field, r.prefix.String() + " has host bits set", "write " + r.prefix.Masked().String()}
		case r.prefix.Bits() < r.minBits || r.prefix.Bits() > r.maxBits:
			return &InvalidError{
				r.field, fmt.Sprintf("%s is not between /%d and /%d", r.prefix, r.minBits, r.maxBits),
				"choose a range of a size in between",
			}
		}
		for _, other := range ranges[:i] {
			if r.prefix.Overlaps(other.prefix) {
				return &InvalidError{
					r.field, fmt.Sprintf("%s overlaps %s %s", r.prefix, other.field, other.prefix),
					"choose ranges that have no address in common",
				}
			}
		}
	}
	return nil
}

// bitsFor is how many bits it takes to number n things.
func bitsFor(n int) int {
	bits := 0
	for 1<<bits < n {
		bits++
	}
	return bits
}

// apiService is the address the API server gives the "kubernetes" Service, which is of the first family, and dns the customary one of
// cluster DNS.
func (t Topology) apiService() netip.Addr { return apiServiceIn(t.ServiceCIDR) }
func (t Topology) dns() netip.Addr        { return nth(t.ServiceCIDR, 10) }

// apiServiceIn is the address an API server of that Service range gives the "kubernetes" Service: the first.
func apiServiceIn(serviceCIDR netip.Prefix) netip.Addr { return nth(serviceCIDR, 1) }

// nth is the n-th address of a range.
func nth(p netip.Prefix, n int) netip.Addr {
	a := netipx.RangeOfPrefix(p).From()
	for range n {
		a = a.Next()
	}
	return a
}

// fabricName is the host name of the machine that joins the others.
const fabricName = "fabric"

// ParseProxyModes reads "iptables,nftables" for n nodes; a shorter list is repeated.
func ParseProxyModes(s string, n int) ([]ProxyMode, error) {
	names := strings.Split(s, ",")
	if n < 0 || (n > 0 && len(names) > n) {
		return nil, &InvalidError{
			"proxy", fmt.Sprintf("%d modes for %d nodes", len(names), n),
			"name at most as many modes as there are nodes; a shorter list is repeated",
		}
	}
	modes := make([]ProxyMode, n)
	for i := range modes {
		modes[i] = ProxyMode(strings.TrimSpace(names[i%len(names)]))
	}
	for _, name := range names {
		if !slices.Contains(proxyModes(), ProxyMode(strings.TrimSpace(name))) {
			return nil, notAMode(name)
		}
	}
	return modes, nil
}
