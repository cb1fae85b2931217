package nodecleanup

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/network/ipvs"
)

// Preferred is the CNI configuration of a node's other network. Runtimes take the first by name
// (loadFromConfDir in github.com/containerd/go-cni), so neither a rewritten file nor a reboot
// undoes it.
const Preferred = "00-replumb.conflist"

// NetworkTraces is what a pod network leaves on nodes, by its names.
type NetworkTraces struct {
	Name string
	// Plugins are the types in a CNI configuration that make it this network's.
	Plugins []string
	// IPAM, if set, is that of such a plugin, with all addresses Within these ranges: others, such
	// as podman, use the same plugins.
	IPAM   string
	Within []netip.Prefix
	// Beside are files of /etc/cni/net.d that go with the configuration.
	Beside []string
	// Dirs are directories that only this network uses.
	Dirs []string
	// Nets are names that its configuration usually has: addresses and results are kept by them.
	Nets []string
	// Bridge that its plugin makes if the configuration names no other.
	Bridge string
	// Links are patterns of its interfaces.
	Links []string
	// Kept are those of them that the kernel does not let go: they lose addresses and go down.
	Kept []string
	// Shared are those of Kept whose names are not the network's alone: they are its own by an
	// address for pods.
	Shared []string
	// Chains and Sets are prefixes of iptables chains and ipsets, Whole whole chains, Tables those
	// of nftables.
	Chains []string
	Whole  []string
	Sets   []string
	Tables []string
	// InFilter are whole chains that are its own in table filter alone.
	InFilter []string
	// VirtualServers says that kube-proxy's in IPVS are its own.
	VirtualServers bool
	// Crossed are interfaces that its rules accept without a comment or a chain of its own. Others'
	// rules for them have comments.
	Crossed []string
	// Comments are prefixes of the comments of rules that it adds to chains of others.
	Comments []string
	// Protocols mark its routes to pods (rtnetlink(7), rtm_protocol); others may use them as well.
	Protocols []int
	// Gateways says that it makes routes into its range, via other nodes, that nothing marks.
	Gateways bool
	// Filters are prefixes of its BPF programs on interfaces (tc-bpf(8)).
	Filters []string
	// Pins are patterns of pinned BPF programs and maps, in order of removal.
	Pins []string
	// RouteTables are its own, and so are the rules that lead to them.
	RouteTables []int
	// LocalRule is where it moves the kernel's rule for local addresses; 0 if it does not.
	LocalRule int
}

// Find is the network of that name.
//
// Flannel: pkg/trafficmngr/{iptables,nftables} and pkg/backend of github.com/flannel-io/flannel;
// its CNI plugin delegates to bridge and host-local, which keep addresses under the name of the
// network. Calico: felix/rules/rule_defs.go, felix/dataplane/linux and felix/nftables of
// github.com/projectcalico/calico; 80 is the default of RouteTableRange's protocol
// (DeviceRouteProtocol), and 12 that of BIRD. Cilium: cilium-dbg/cmd/post_uninstall_cleanup.go,
// pkg/datapath/iptables and pkg/datapath/linux (NodeEnsureLocalRoutingRule) of
// github.com/cilium/cilium. Weave: net/bridge.go, net/veth.go, npc/constants.go and prog/weave-kube
// of github.com/weaveworks/weave; datapath is one of Open vSwitch, which the kernel does not let go
// as an interface. Pinned links go before maps: a program without the maps of
// its tail calls drops packets.
func Find(name string) (NetworkTraces, bool) {
	all := []NetworkTraces{
		{
			Name:    "flannel",
			Plugins: []string{"flannel"},
			Nets:    []string{"cbr0", "cni0", "flannel"},
			Bridge:  "cni0",
			Dirs:    []string{"/run/flannel", "/var/lib/cni/flannel"},
			Links: []string{
				"flannel.[0-9]*",
				"flannel-v6.[0-9]*",
				"flannel-wg",
				"flannel-wg-v6",
				"flannel.ipip",
			},
			Kept:     []string{"flannel.ipip"},
			Chains:   []string{"FLANNEL-"},
			Tables:   []string{"flannel-ipv4", "flannel-ipv6"},
			Comments: []string{"flanneld "},
			Gateways: true,
		},
		{
			Name: "calico", Plugins: []string{"calico"}, Beside: []string{"calico-kubeconfig"}, Nets: []string{"k8s-pod-network"},
			Dirs: []string{"/run/calico", "/var/lib/calico", "/var/run/calico"},
			Links: []string{
				"cali*", "vxlan.calico", "vxlan-v6.calico", "tunl0", "wireguard.cali", "wg-v6.cali", "bpfin.cali", "bpfout.cali",
			},
			Kept: []string{"tunl0"}, Shared: []string{"tunl0"}, Chains: []string{"cali-"}, Sets: []string{"cali4", "cali6"}, Tables: []string{"calico"},
			Comments: []string{"cali:"}, Protocols: []int{80, 12},
		},
		{
			Name: "cilium", Plugins: []string{"cilium-cni"}, Nets: []string{"cilium"}, Dirs: []string{"/run/cilium", "/var/run/cilium"},
			Links:   []string{"cilium_*", "lxc_health", "lxc" + strings.Repeat("[0-9a-f]", lxcDigits)},
			Chains:  []string{"CILIUM_", "OLD_CILIUM_"},
			Sets:    []string{"cilium_"},
			Filters: []string{"cil_"},
			Pins: []string{
				bpfDir + "/cilium/devices", bpfDir + "/cilium/endpoints", bpfDir + "/cilium", bpfDir + "/tc/globals/cilium_*",
			},
			RouteTables: []int{2004, 2005}, LocalRule: 100,
		},
		{
			Name: "weave", Plugins: []string{"weave-net"}, Nets: []string{"weave"}, Bridge: "weave",
			Dirs:  []string{"/var/lib/weave", "/run/weave", "/var/run/weave"},
			Links: []string{"vethwe*", "vxlan-6784", "datapath"}, Kept: []string{"datapath"},
			Chains: []string{"WEAVE-"}, Whole: []string{"WEAVE"}, Sets: []string{"weave-"}, Crossed: []string{"weave"},
		},
		{Name: HostLocal, Plugins: []string{"bridge", "ptp"}, IPAM: HostLocal},
		kubeProxy(), kubeProxyIn(ProxyIPTables), kubeProxyIn(ProxyNFTables), kubeProxyIPVS(), kubeProxyBesideIPVS(),
		{Name: CopiedRules, Tables: []string{CopiedTable}, Chains: []string{CopiedChains}},
	}
	i := slices.IndexFunc(all, func(n NetworkTraces) bool { return n.Name == name })
	if i < 0 {
		return NetworkTraces{}, false
	}
	return all[i], true
}

// HostLocal is a network without programs: bridge or ptp, with host-local for the Node's range. It
// consists of files and what they name; routes to other nodes are someone else's.
const HostLocal = "host-local"

// KubeProxy is the name of kube-proxy's residue, which Find knows too.
const KubeProxy = "kube-proxy"

// kubeProxy has the rules that `kube-proxy --cleanup` removes (pkg/proxy/iptables and
// pkg/proxy/nftables of k8s.io/kubernetes), and earlier versions' chains. Other KUBE- chains are
// the kubelet's. Connection tracking stays, so translated connections go on.
func kubeProxy() NetworkTraces {
	return NetworkTraces{
		Name: KubeProxy, Tables: []string{proxyTable},
		Chains: []string{
			"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-FORWARD",
			"KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY", "KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-", "KUBE-XLB-",
		},
	}
}

// The names of what kube-proxy leaves of one mode, and of copies of its rules (package proxyrules):
// chains that begin so, and a table.
const (
	ProxyIPTables = KubeProxy + "-iptables"
	ProxyNFTables = KubeProxy + "-nftables"
	ProxyIPVS     = KubeProxy + "-ipvs"
	// ProxyBesideIPVS is what is left of mode iptables where mode ipvs has chains of its names.
	ProxyBesideIPVS = KubeProxy + "-beside-ipvs"
	CopiedRules     = "copied-rules"
	CopiedChains    = "RPLB-"
	CopiedTable     = "replumb-kube-proxy"
)

func kubeProxyIn(name string) NetworkTraces {
	n := kubeProxy()
	n.Name = name
	if name == ProxyIPTables {
		n.Tables = nil
	} else {
		n.Chains = nil
	}
	return n
}

// kubeProxyIPVS is what mode iptables leaves of mode ipvs, in which three chains have one name in
// both (iptablesChains, iptablesJumpChain and ipsetInfo in pkg/proxy/ipvs of k8s.io/kubernetes).
// One of its rules leads to a chain of mode iptables, by a comment of its own.
func kubeProxyIPVS() NetworkTraces {
	return NetworkTraces{
		Name: ProxyIPVS, VirtualServers: true, Links: []string{ipvs.Device}, Sets: ipvs.Sets(),
		Whole:    []string{"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", "KUBE-SOURCE-RANGES-FIREWALL"},
		Comments: []string{"kube-proxy firewall rules"},
	}
}

// kubeProxyBesideIPVS is the opposite.
func kubeProxyBesideIPVS() NetworkTraces {
	return NetworkTraces{
		Name: ProxyBesideIPVS, InFilter: []string{proxyChain}, Comments: []string{"kubernetes load balancer firewall"},
		Chains: []string{
			"KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-", "KUBE-XLB-",
		},
	}
}

const (
	// proxyTable is kube-proxy's in nftables, proxyChain its chain of Services in iptables.
	proxyTable = "kube-proxy"
	proxyChain = "KUBE-SERVICES"
)

func (n NetworkTraces) rulesOnly() bool { return len(n.Plugins) == 0 }

// fileOnly reports whether only files tell the network from others.
func (n NetworkTraces) fileOnly() bool { return n.IPAM != "" }

// Names are those that Find knows, of networks.
func Names() []string { return []string{"flannel", "calico", "cilium", "weave", HostLocal} }

const (
	// bpfDir is where the file system of BPF is mounted.
	bpfDir = "/sys/fs/bpf"
	// lxcDigits are the hash in the interface of a Cilium pod (Endpoint2IfName in
	// pkg/endpoint/connector); LXC's lxcbr0 has none.
	lxcDigits = 12
)

func (n NetworkTraces) describeRules() []string {
	var out []string
	if n.VirtualServers {
		out = append(out, "virtual servers of IPVS that are kube-proxy's", "interface "+strings.Join(n.Links, ", "))
	}
	chains := slices.Concat(n.Whole, n.Chains)
	for _, name := range n.InFilter {
		chains = append(chains, name+" of table filter")
	}
	if len(chains) > 0 {
		out = append(out, "chains and rules of iptables: "+strings.Join(chains, ", "))
	}
	if len(n.Sets) > 0 {
		out = append(out, "ipsets "+strings.Join(n.Sets, "*, ")+"*")
	}
	if len(n.Tables) > 0 {
		out = append(out, "tables of nftables: "+strings.Join(n.Tables, ", "))
	}
	return out
}

func (n NetworkTraces) Describe() []string {
	if n.rulesOnly() {
		return n.describeRules()
	}
	if n.fileOnly() {
		return []string{
			"files in /etc/cni/net.d by which host-local gives out addresses of the node's own podCIDR",
			"the bridge that they name, and what hangs on it",
			"rules of iptables that the plugins have made for pods of these networks, and the chains that those lead to",
			"the addresses that were given out",
		}
	}
	out := []string{"files in /etc/cni/net.d whose plugins are " + strings.Join(n.Plugins, ", ")}
	if len(n.Beside) > 0 {
		out[0] += "; " + strings.Join(n.Beside, ", ")
	}
	links := n.Links
	if n.Bridge != "" {
		links = append(slices.Clone(links), n.Bridge+" and what hangs on it")
	}
	chains := append(slices.Clone(n.Whole), strings.Join(n.Chains, ", ")+"*")
	out = append(out, "interfaces "+strings.Join(links, ", "), "chains and rules of iptables: "+strings.Join(chains, ", "))
	if len(n.Crossed) > 0 {
		out = append(out, "rules of iptables without a comment for packets through "+strings.Join(n.Crossed, ", "))
	}
	if len(n.Tables) > 0 {
		out = append(out, "tables of nftables: "+strings.Join(n.Tables, ", "))
	}
	if len(n.Sets) > 0 {
		out = append(out, "ipsets "+strings.Join(n.Sets, "*, ")+"*")
	}
	if len(n.Pins) > 0 {
		out = append(out, "programs and maps of BPF: "+strings.Join(n.Pins, ", "))
	}
	if len(n.RouteTables) > 0 {
		out = append(out, fmt.Sprintf("rules for routing tables %v, and these", n.RouteTables))
	}
	return append(out, "directories "+strings.Join(n.Dirs, ", ")+", and the addresses that were given out")
}

func (n NetworkTraces) ownChain(table, name string) bool {
	return slices.Contains(n.Whole, name) || hasPrefix(n.Chains, name) || table == "filter" && slices.Contains(n.InFilter, name)
}

func hasPrefix(prefixes []string, text string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(text, p) })
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name) // the patterns are ours
		return ok
	})
}

// Writable are the directories that a cleanup writes to; it only reads the rest.
func (n NetworkTraces) Writable() []string {
	if n.rulesOnly() {
		return nil
	}
	all := []string{"/etc/cni/net.d", "/var/lib/cni"}
	for _, dir := range n.Dirs {
		dir = strings.Replace(dir, "/var/run/", "/run/", 1)
		if !slices.Contains(all, dir) && !strings.HasPrefix(dir, "/var/lib/cni/") {
			all = append(all, dir)
		}
	}
	if len(n.Pins) > 0 {
		all = append(all, bpfDir)
	}
	return all
}
