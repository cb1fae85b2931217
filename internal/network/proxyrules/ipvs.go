package proxyrules

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// IPVS is the mode whose Services are virtual servers of the kernel, and no rules.
const IPVS = "ipvs"

// virtual is a virtual server of the kernel's.
type virtual struct {
	at         netip.AddrPort
	protocol   string
	persistent bool
	servers    []server
}

// server is one that a virtual server leads to.
type server struct {
	at     netip.AddrPort
	weight int
	// open are its connections that are established.
	open int
}

// readVirtualServers reads /proc/net/ip_vs (ip_vs_info_seq_show in net/netfilter/ipvs/ip_vs_ctl.c
// of Linux). Virtual servers by mark have no address, and are left out.
func readVirtualServers(text string) ([]*virtual, error) {
	var all []*virtual
	var current *virtual
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] == "IP" || words[0] == "Prot" || words[0] == "->" && words[1] == "RemoteAddress:Port" {
			continue
		}
		switch {
		case words[0] == "FWM":
			current = nil
		case words[0] != "->":
			at, err := kernelAddress(words[1])
			if err != nil {
				return nil, err
			}
			current = &virtual{at: at, protocol: strings.ToLower(words[0]), persistent: slices.Contains(words[3:], "persistent")}
			if !slices.Contains([]string{"tcp", "udp", "sctp"}, current.protocol) {
				return nil, fmt.Errorf("reading virtual servers: protocol %s", words[0])
			}
			all = append(all, current)
		case current != nil:
			s, err := readServer(words[1:])
			if err != nil {
				return nil, err
			}
			current.servers = append(current.servers, s)
		}
	}
	return all, nil
}

// readServer reads address, way of forwarding, weight and open connections.
func readServer(words []string) (s server, err error) {
	if len(words) < 4 || words[1] != "Masq" {
		return s, fmt.Errorf("the kernel leads to a server in another way than kube-proxy's: %s", strings.Join(words, " "))
	}
	if s.at, err = kernelAddress(words[0]); err != nil {
		return s, err
	}
	if s.weight, err = strconv.Atoi(words[2]); err != nil {
		return s, fmt.Errorf("reading virtual servers: weight %s", words[2])
	}
	if s.open, err = strconv.Atoi(words[3]); err != nil {
		return s, fmt.Errorf("reading virtual servers: connections %s", words[3])
	}
	return s, nil
}

// kernelAddress reads 0A600014:0050, or the same with an address of IPv6 in brackets.
func kernelAddress(text string) (netip.AddrPort, error) {
	host, hexPort, _ := cutLast(text, ":")
	port, err := strconv.ParseUint(hexPort, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("reading virtual servers: port of %s", text)
	}
	if v6, ok := strings.CutPrefix(host, "["); ok {
		a, err := netip.ParseAddr(strings.TrimSuffix(v6, "]"))
		if err != nil || !a.Is6() || a.Zone() != "" {
			return netip.AddrPort{}, fmt.Errorf("reading virtual servers: address %s", text)
		}
		return netip.AddrPortFrom(a, uint16(port)), nil
	}
	bytes, err := hex.DecodeString(host)
	a, ok := netip.AddrFromSlice(bytes)
	if err != nil || !ok || !a.Is4() {
		return netip.AddrPort{}, fmt.Errorf("reading virtual servers: address %s", text)
	}
	return netip.AddrPortFrom(a, uint16(port)), nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// The names of kube-proxy's ipsets (pkg/proxy/ipvs/ipset.go of k8s.io/kubernetes).
const (
	setClusterIP     = "KUBE-CLUSTER-IP"
	setExternal      = "KUBE-EXTERNAL-IP"
	setBalancer      = "KUBE-LOAD-BALANCER"
	setLocal         = "-LOCAL"
	setLimited       = "KUBE-LOAD-BALANCER-FW"
	setSources       = "KUBE-LOAD-BALANCER-SOURCE-CIDR"
	setSource        = "KUBE-LOAD-BALANCER-SOURCE-IP"
	setNodePort      = "KUBE-NODE-PORT-"
	setNodePortLocal = "KUBE-NODE-PORT-LOCAL-"
)

// proxySets are the members of kube-proxy's ipsets, by the name that a set has for IPv4.
type proxySets map[string]map[string]bool

// setName is what a set of kube-proxy's is called for a family. Those of IPv6 have a further part,
// and end where the kernel's names do (NewIPSet in pkg/proxy/ipvs/ipset.go of k8s.io/kubernetes).
func setName(name, family string) string {
	const longest = 31
	if family == "ip6" {
		name = "KUBE-6-" + strings.TrimPrefix(name, proxyPrefix)
	}
	return name[:min(len(name), longest)]
}

// readSets reads `ipset save`, for one family.
func readSets(text, family string) proxySets {
	all := proxySets{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "add" {
			continue
		}
		if all[words[1]] == nil {
			all[words[1]] = map[string]bool{}
		}
		all[words[1]][words[2]] = true
	}
	of := proxySets{}
	for _, name := range []string{
		setClusterIP, setExternal, setExternal + setLocal, setBalancer, setBalancer + setLocal, setLimited, setSources, setSource,
		setNodePort + "TCP", setNodePort + "UDP", setNodePort + "SCTP-HASH", setNodePortLocal + "TCP", setNodePortLocal + "UDP",
		setNodePortLocal + "SCTP-HASH",
	} {
		of[name] = all[setName(name, family)]
	}
	return of
}

// sources are the ranges from which a balancer's address may be called, and whether only they may.
func (s proxySets) sources(of string) (ranges []string, limited bool) {
	if !s[setLimited][of] {
		return nil, false
	}
	for _, set := range []string{setSources, setSource} {
		for m := range s[set] {
			if r, ok := strings.CutPrefix(m, of+","); ok && isRange(r) {
				ranges = append(ranges, r)
			}
		}
	}
	slices.Sort(ranges)
	return ranges, true
}

// isRange reports whether a text is an address or a range of them.
func isRange(text string) bool {
	_, notAddress := netip.ParseAddr(text)
	_, notRange := netip.ParsePrefix(text)
	return notAddress == nil || notRange == nil
}

// how is what kube-proxy has a virtual server for.
type how struct {
	nodePort bool
	// masks is what a packet has to be for another source: nothing, anything, or what no pod sends.
	masks string
}

const (
	masksNone   = "none"
	masksAll    = "all"
	masksOthers = "others"
)

// use tells what a virtual server is for, by the sets that writeIptablesRules of
// pkg/proxy/ipvs/proxier.go makes rules of. Those of others are in none.
func (s proxySets) use(v *virtual) (h how, known bool) {
	key := fmt.Sprintf("%s,%s:%d", v.at.Addr(), v.protocol, v.at.Port())
	port := strconv.Itoa(int(v.at.Port()))
	suffix, nodePort := strings.ToUpper(v.protocol), port
	if v.protocol == "sctp" {
		suffix, nodePort = "SCTP-HASH", key
	}
	switch {
	case s[setClusterIP][key]:
		return how{masks: masksOthers}, true
	case s[setBalancer+setLocal][key], s[setExternal+setLocal][key]:
		return how{masks: masksNone}, true
	case s[setBalancer][key], s[setExternal][key]:
		return how{masks: masksAll}, true
	case s[setNodePortLocal+suffix][nodePort]:
		return how{nodePort: true, masks: masksNone}, true
	case s[setNodePort+suffix][nodePort]:
		return how{nodePort: true, masks: masksAll}, true
	}
	return how{}, false
}

// linkName is an interface's, or with a plus sign what names begin with.
var linkName = regexp.MustCompile(`^[A-Za-z0-9_.-]+\+?$`)

// others is the condition of nftables for what no pod sends, from kube-proxy's rule for ClusterIPs
// in iptables-save; empty, if it takes everything for that.
func others(save, family string) (string, error) {
	for _, t := range parseSave(save) {
		for _, r := range t.rules {
			if r.chain != "KUBE-SERVICES" || r.target() != "KUBE-MARK-MASQ" || !strings.HasSuffix(r.after("--match-set"), "CLUSTER-IP") {
				continue
			}
			switch source, link := r.after("-s"), r.after("-i"); {
			case isRange(source):
				return family + " saddr != " + source, nil
			case linkName.MatchString(link):
				return fmt.Sprintf("iifname != %q", strings.Replace(link, "+", "*", 1)), nil
			case slices.Contains(r.words, "src,dst"):
				return "fib saddr type local", nil
			case source == "" && link == "":
				return "", nil
			}
		}
	}
	return "", errors.New("kube-proxy has no rule for ClusterIPs that is known")
}

// masqueradeMark is the mark of what gets another source.
func masqueradeMark(save string) (string, error) {
	for _, t := range parseSave(save) {
		for _, r := range t.rules {
			if value, _, ok := strings.Cut(r.after("--set-xmark", "--or-mark"), "/"); r.chain == "KUBE-MARK-MASQ" && ok {
				if _, err := strconv.ParseUint(value, 0, 32); err == nil {
					return value, nil
				}
			}
		}
	}
	return "", errors.New("kube-proxy has no mark for what gets another source")
}

// FromIPVS reads /proc/net/ip_vs, `ipset save` and iptables-save of a node in mode ipvs, and
// returns the input of nft -f that makes the copy, in the place of an older one. It is empty where
// kube-proxy has no virtual servers. Others' are named: kube-proxy removes them, too, when it
// starts in mode nftables (CleanupLeftovers in pkg/proxy/ipvs of k8s.io/kubernetes).
func FromIPVS(family, servers, sets, save string) (text string, foreign []string, err error) {
	all, err := readVirtualServers(servers)
	if err != nil {
		return "", nil, err
	}
	of := readSets(sets, family)
	c := &ipvsCopy{family: family, sets: of}
	for _, v := range all {
		if v.at.Addr().Is6() != (family == "ip6") {
			continue
		}
		h, known := of.use(v)
		if !known {
			foreign = append(foreign, fmt.Sprintf("%s %s", v.at, v.protocol))
			continue
		}
		c.add(v, h)
	}
	if len(c.chains) == 0 {
		return "", foreign, nil
	}
	if c.others, err = others(save, family); err != nil {
		return "", foreign, err
	}
	if c.mark, err = masqueradeMark(save); err != nil {
		return "", foreign, err
	}
	return c.String(), foreign, nil
}

// ipvsCopy is the table that leads where virtual servers led.
type ipvsCopy struct {
	family, others, mark      string
	sets                      proxySets
	services, nodePorts, node []string
	chains                    []*ipvsChain
}

type ipvsChain struct {
	*virtual
	how
	name string
}

// add takes a virtual server in that leads anywhere.
func (c *ipvsCopy) add(v *virtual, h how) {
	v.servers = slices.DeleteFunc(v.servers, func(s server) bool { return s.weight == 0 }) // those are about to go
	if len(v.servers) == 0 {
		return
	}
	chain := &ipvsChain{virtual: v, how: h, name: fmt.Sprintf("service-%d", len(c.chains))}
	element := fmt.Sprintf("%s . %d : goto %s", v.protocol, v.at.Port(), chain.name)
	if !h.nodePort {
		c.services = append(c.services, fmt.Sprintf("%s . %s", v.at.Addr(), element))
		c.chains = append(c.chains, chain)
		return
	}
	if address := v.at.Addr().String(); !slices.Contains(c.node, address) {
		c.node = append(c.node, address)
	}
	if !slices.ContainsFunc(c.chains, func(o *ipvsChain) bool {
		return o.nodePort && o.protocol == v.protocol && o.at.Port() == v.at.Port()
	}) {
		c.nodePorts = append(c.nodePorts, element)
		c.chains = append(c.chains, chain)
	}
}

// String is the input of nft -f. Names of maps are kube-proxy's of mode nftables.
func (c *ipvsCopy) String() string {
	var out strings.Builder
	table, address := c.family+" "+nodecleanup.CopiedTable, map[string]string{"ip": "ipv4_addr", "ip6": "ipv6_addr"}[c.family]
	fmt.Fprintf(&out, "add table %s\ndelete table %[1]s\ntable %[1]s {\n", table)
	fmt.Fprintf(&out, "\tmap service-ips {\n\t\ttype %s . inet_proto . inet_service : verdict\n%s\t}\n", address, elements(c.services))
	fmt.Fprintf(&out, "\tmap service-nodeports {\n\t\ttype inet_proto . inet_service : verdict\n%s\t}\n", elements(c.nodePorts))
	fmt.Fprintf(&out, "\tset node {\n\t\ttype %s\n%s\t}\n", address, elements(c.node))
	fmt.Fprintf(&out, "\tchain mark-for-masquerade {\n\t\tmeta mark set meta mark | %s\n\t}\n", c.mark)
	for _, chain := range c.chains {
		c.write(&out, chain)
	}
	fmt.Fprintf(&out, `	chain services {
		%[1]s daddr . meta l4proto . th dport vmap @service-ips
		%[1]s daddr @node meta l4proto . th dport vmap @service-nodeports
	}
	chain nat-prerouting {
		type nat hook prerouting priority %[2]d; policy accept;
		jump services
	}
	chain nat-output {
		type nat hook output priority %[2]d; policy accept;
		jump services
	}
	chain nat-postrouting {
		type nat hook postrouting priority %[3]d; policy accept;
		meta mark & %[4]s == 0 return
		masquerade fully-random
	}
}
`, c.family, natDestination+behind, natSource+behind, c.mark)
	return out.String()
}

// write writes the chains of a Service: from where it may be called, who gets another source, and
// where it leads.
func (c *ipvsCopy) write(out *strings.Builder, chain *ipvsChain) {
	var rules, targets []string
	key := fmt.Sprintf("%s,%s:%d", chain.at.Addr(), chain.protocol, chain.at.Port())
	if ranges, limited := c.sets.sources(key); limited {
		rule := "drop"
		if len(ranges) > 0 {
			rule = fmt.Sprintf("%s saddr != { %s } drop", c.family, strings.Join(ranges, ", "))
		}
		rules = append(rules, rule)
	}
	switch chain.masks {
	case masksAll:
		rules = append(rules, "jump mark-for-masquerade")
	case masksOthers:
		// The node's own packets have a ClusterIP as their source, which it has on kube-ipvs0.
		rules = append(rules, "fib saddr type local jump mark-for-masquerade", strings.TrimSpace(c.others+" jump mark-for-masquerade"))
	}
	for i, s := range chain.servers {
		name := fmt.Sprintf("%s-to-%d", chain.name, i)
		targets = append(targets, fmt.Sprintf("%d : goto %s", i, name))
		lines := []string{fmt.Sprintf("%s saddr %s jump mark-for-masquerade", c.family, s.at.Addr())} // a pod that calls itself
		if chain.persistent {
			rules = append(rules, fmt.Sprintf("%s saddr @%s goto %[2]s", c.family, name))
			lines = append(lines, fmt.Sprintf("update @%s { %s saddr }", name, c.family))
			fmt.Fprintf(out, "\tset %s {\n\t\ttype %s\n\t\tflags dynamic,timeout\n\t\ttimeout %s\n\t}\n",
				name, map[string]string{"ip": "ipv4_addr", "ip6": "ipv6_addr"}[c.family], affinityOfCopy)
		}
		lines = append(lines, fmt.Sprintf("meta l4proto %s dnat to %s", chain.protocol, s.at))
		fmt.Fprintf(out, "\tchain %s {\n\t\t%s\n\t}\n", name, strings.Join(lines, "\n\t\t"))
	}
	rules = append(rules, fmt.Sprintf("numgen random mod %d vmap { %s }", len(targets), strings.Join(targets, ", ")))
	fmt.Fprintf(out, "\tchain %s {\n\t\t%s\n\t}\n", chain.name, strings.Join(rules, "\n\t\t"))
}

// affinityOfCopy is longer than any copy leads: how long a Service remembers its clients is not for
// it to end.
const affinityOfCopy = "3h"

func elements(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return "\t\telements = { " + strings.Join(all, ",\n\t\t\t") + " }\n"
}
