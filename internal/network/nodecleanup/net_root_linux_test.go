//go:build root

package nodecleanup

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/replumb/replumb/internal/testing/ownnet"
)

// run a program of the machine, in the namespace of this thread.
func run(t *testing.T, in string, words ...string) string {
	t.Helper()
	if _, err := exec.LookPath(words[0]); err != nil {
		t.Fatalf("%s is missing; make deps installs it", words[0])
	}
	cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", words, err, out)
	}
	return string(out)
}

// foreign is what a host with policies of its own has: it drops what no rule allowed, and others
// forward for Services.
const foreign = `*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 53 -m comment --comment "calicoctl: not what it seems" -j ACCEPT
COMMIT
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:MY-FLANNEL-RULES - [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -m comment --comment "ssh, for flanneld too" -j ACCEPT
-A FORWARD -s 10.244.0.0/16 -m comment --comment "by hand" -j ACCEPT
-A MY-FLANNEL-RULES -j ACCEPT
COMMIT
`

const flannelRules = `*nat
:FLANNEL-POSTRTG - [0:0]
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE
COMMIT
*filter
:FLANNEL-FWD - [0:0]
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FORWARD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
`

const calicoRules = `*filter
:cali-FORWARD - [0:0]
:cali-INPUT - [0:0]
:cali-wl-to-host - [0:0]
-A INPUT -m comment --comment "cali:Cz_u1IQiXIMmKD4c" -j cali-INPUT
-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m comment --comment "Policy explicitly accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-INPUT -g cali-wl-to-host
-A cali-FORWARD -m comment --comment "cali:vjrMJCRpqwy5oRoX" -j MARK --set-xmark 0x0/0xe0000
-A cali-wl-to-host -m set --match-set cali40all-ipam-pools src -j ACCEPT
COMMIT
`

// rules are those of a save, without counters and what changes from run to run.
func rules(save string) string {
	var out []string
	for line := range strings.SplitSeq(save, "\n") {
		if strings.HasPrefix(line, "#") || line == "" {
			continue
		}
		if strings.HasPrefix(line, ":") {
			line, _, _ = strings.Cut(line, " [")
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// TestRulesOfOthersStay has real rules, of a network and of others, in both kinds of tables.
func TestRulesOfOthersStay(t *testing.T) {
	for _, tables := range []string{"nft", "legacy"} {
		for name, ours := range map[string]string{"flannel": flannelRules, "calico": calicoRules} {
			t.Run(tables+" "+name, func(t *testing.T) {
				ownnet.Enter(t)
				n, _ := Find(name)
				must(t, netlink.IpsetCreate("cali40all-ipam-pools", "hash:net", netlink.IpsetCreateOptions{}))
				must(t, netlink.IpsetCreate("blocked", "hash:net", netlink.IpsetCreateOptions{}))
				run(t, foreign, "iptables-"+tables+"-restore")
				before := rules(run(t, "", "iptables-"+tables+"-save"))
				run(t, ours, "iptables-"+tables+"-restore", "--noflush")
				var p part = nftPart{n}
				if tables == "legacy" {
					p = legacyPart{Host{Root: "/"}, n}
				}
				found, err := p.find()
				must(t, err)
				if want := strings.Count(ours, "\n:"); len(found) <= want {
					t.Errorf("found only %v", found)
				}
				must(t, p.remove())
				if after := rules(run(t, "", "iptables-"+tables+"-save")); after != before {
					t.Errorf("rules of others changed:\n%s\nwant:\n%s", after, before)
				}
				if left, err := p.find(); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
				must(t, p.remove()) // a second time there is nothing
				must(t, setPart{n}.remove())
				all, err := netlink.IpsetListAll()
				must(t, err)
				if want := map[string]int{"calico": 1, "flannel": 2}[name]; len(all) != want {
					t.Errorf("%d ipsets, want %d", len(all), want)
				}
			})
		}
	}
}

// TestManyChains has as many chains of kube-proxy as a cluster of a thousand Services: the kernel
// answers for each.
func TestManyChains(t *testing.T) {
	ownnet.Enter(t)
	run(t, foreign, "iptables-nft-restore")
	before := rules(run(t, "", "iptables-nft-save"))
	var chains, jumps strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&chains, ":RPLB-SVC-%05d - [0:0]\n", i)
		fmt.Fprintf(&jumps, "-A RPLB-SERVICES -d 172.24.%d.%d/32 -j RPLB-SVC-%05d\n", i/250, i%250, i)
	}
	run(t, "*nat\n:RPLB-SERVICES - [0:0]\n"+chains.String()+"-A PREROUTING -j RPLB-SERVICES\n"+jumps.String()+"COMMIT\n", "iptables-nft-restore", "--noflush")
	p := nftPart{NetworkTraces{Name: "copy", Chains: []string{"RPLB-"}}}
	must(t, p.remove())
	if after := rules(run(t, "", "iptables-nft-save")); after != before {
		t.Errorf("rules of others changed:\n%s\nwant:\n%s", after, before)
	}
}

// TestTables has a network whose rules are in a table of nftables of its own.
func TestTables(t *testing.T) {
	ownnet.Enter(t)
	run(t, `
table ip flannel-ipv4 { chain postrtg { type nat hook postrouting priority srcnat; ip saddr 10.244.0.0/16 masquerade; }; }
table ip6 flannel-ipv6 { chain forward { type filter hook forward priority filter; accept; }; }
table inet firewall { chain in { type filter hook input priority 0; policy drop; iif lo accept; comment "mine"; }; }
`, "nft", "-f", "-")
	n, _ := Find("flannel")
	p := nftPart{n}
	found, err := p.find()
	must(t, err)
	if want := []string{"table ip flannel-ipv4", "table ip6 flannel-ipv6"}; !slices.Equal(found, want) {
		t.Errorf("found %v", found)
	}
	must(t, p.remove())
	if left := run(t, "", "nft", "list", "tables"); strings.TrimSpace(left) != "table inet firewall" {
		t.Errorf("tables: %s", left)
	}
	if out := run(t, "", "nft", "list", "table", "inet", "firewall"); !strings.Contains(out, "policy drop") {
		t.Errorf("the host's policy: %s", out)
	}
}

func addLink(t *testing.T, l netlink.Link) netlink.Link {
	t.Helper()
	must(t, netlink.LinkAdd(l))
	l, err := netlink.LinkByName(l.Attrs().Name)
	must(t, err)
	return l
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

func linkNames(t *testing.T) []string {
	t.Helper()
	all, err := netlink.LinkList()
	must(t, err)
	var out []string
	for _, l := range all {
		out = append(out, l.Attrs().Name)
	}
	slices.Sort(out)
	return out
}

// TestInterfacesAndRoutes has those of a network beside those of the host.
func TestInterfacesAndRoutes(t *testing.T) {
	ownnet.Enter(t)
	before := linkNames(t)
	addLink(t, &netlink.Vxlan{LinkAttrs: attrs("flannel.1"), VxlanId: 1, Port: 8472})
	bridge := addLink(t, &netlink.Bridge{LinkAttrs: attrs("cni0")})
	other := addLink(t, &netlink.Bridge{LinkAttrs: attrs("docker0")})
	for name, master := range map[string]netlink.Link{"vethpod": bridge, "vethbox": other} {
		a := attrs(name)
		a.MasterIndex = master.Attrs().Index
		addLink(t, &netlink.Veth{LinkAttrs: a, PeerName: name + "p"})
	}
	eth := addLink(t, &netlink.Veth{LinkAttrs: attrs("eth0"), PeerName: "eth0p"})
	must(t, netlink.LinkSetUp(eth))
	run(t, "", "ip", "address", "add", "192.0.2.1/24", "dev", "eth0")
	run(t, "", "ip", "route", "add", "10.244.1.0/24", "via", "192.0.2.2")
	run(t, "", "ip", "route", "add", "10.99.1.0/24", "via", "192.0.2.2")
	run(t, "", "ip", "route", "add", "default", "via", "192.0.2.9")
	run(t, "", "ip", "route", "add", "10.244.7.0/24", "via", "192.0.2.2", "proto", "static")

	n, _ := Find("flannel")
	host := Host{Root: "/", Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	routes, links := routePart{host, n}, linkPart{host, n, []string{"cni0"}}
	found, err := routes.find()
	must(t, err)
	if !slices.Equal(found, []string{"route to 10.244.1.0/24"}) {
		t.Errorf("found %v", found)
	}
	must(t, routes.remove())
	found, err = links.find()
	must(t, err)
	if want := []string{"interface cni0", "interface flannel.1", "interface vethpod"}; !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
	must(t, links.remove())
	want := append(slices.Clone(before), "docker0", "eth0", "eth0p", "vethbox", "vethboxp")
	slices.Sort(want)
	if got := linkNames(t); !slices.Equal(got, want) {
		t.Errorf("interfaces are %v, want %v", got, want)
	}
	left := run(t, "", "ip", "route")
	for _, stays := range []string{"default", "10.99.1.0/24", "10.244.7.0/24", "192.0.2.0/24"} {
		if !strings.Contains(left, stays) {
			t.Errorf("the route to %s is gone:\n%s", stays, left)
		}
	}
}

func TestCalicoRoutes(t *testing.T) {
	ownnet.Enter(t)
	eth := addLink(t, &netlink.Veth{LinkAttrs: attrs("eth0"), PeerName: "eth0p"})
	must(t, netlink.LinkSetUp(eth))
	run(t, "", "ip", "address", "add", "192.0.2.1/24", "dev", "eth0")
	for _, r := range []string{
		"blackhole 10.244.1.0/26 proto 80", "10.244.2.0/26 via 192.0.2.2 proto bird", "10.50.0.0/24 via 192.0.2.2 proto bird",
		"10.244.3.0/26 via 192.0.2.2", "10.51.0.0/24 via 192.0.2.2 proto 80",
	} {
		run(t, "", append([]string{"ip", "route", "add"}, strings.Fields(r)...)...)
	}
	n, _ := Find("calico")
	p := routePart{Host{Root: "/", Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, n}
	found, err := p.find()
	must(t, err)
	if want := []string{"route to 10.244.1.0/26", "route to 10.244.2.0/26"}; !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
	must(t, p.remove())
	if left, err := p.find(); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if left := run(t, "", "ip", "route"); !strings.Contains(left, "10.51.0.0/24") {
		t.Errorf("a route of others is gone:\n%s", left)
	}
}

// TestTunnelOfOthers: whatever the kernel does by IPIP has an interface of this name. An address
// for pods makes it Calico's.
func TestTunnelOfOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		addresses []string
		found     bool
		left      string
	}{
		"Calico's": {[]string{"10.244.9.1/32"}, true, "state DOWN"},
		"others'":  {[]string{"10.51.0.1/24"}, false, "10.51.0.1/24"},
		"both":     {[]string{"10.244.9.1/32", "10.51.0.1/24"}, true, "10.51.0.1/24"},
	} {
		t.Run(name, func(t *testing.T) {
			ownnet.Enter(t)
			tunnel := addLink(t, &netlink.Bridge{LinkAttrs: attrs("tunl0")})
			must(t, netlink.LinkSetUp(tunnel))
			for _, a := range tt.addresses {
				run(t, "", "ip", "address", "add", a, "dev", "tunl0")
			}
			n, _ := Find("calico")
			p := linkPart{Host{Root: "/", Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, n, nil}
			found, err := p.find()
			must(t, err)
			if tt.found != (len(found) == 1) {
				t.Errorf("found %v", found)
			}
			must(t, p.remove())
			if left, err := p.find(); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			left := run(t, "", "ip", "address", "show", "dev", "tunl0")
			if !strings.Contains(left, tt.left) || strings.Contains(left, "10.244.9.1") {
				t.Errorf("it is\n%s", left)
			}
		})
	}
}

// TestWeaveOnANode has what Weave leaves, by its published names, beside what others have. The
// datapath is played by a dummy interface: that of Open vSwitch the kernel does not let go.
func TestWeaveOnANode(t *testing.T) {
	for _, tables := range []string{"nft", "legacy"} {
		t.Run(tables, func(t *testing.T) {
			ownnet.Enter(t)
			n, _ := Find("weave")
			run(t, foreign, "iptables-"+tables+"-restore")
			run(
				t,
				"*filter\n-A INPUT -i weave -p tcp -m comment --comment \"by hand\" -j ACCEPT\nCOMMIT\n",
				"iptables-"+tables+"-restore",
				"--noflush",
			)
			run(t, "*mangle\n:FORWARD ACCEPT [0:0]\nCOMMIT\n", "iptables-"+tables+"-restore", "--noflush")
			must(t, netlink.IpsetCreate("weave-local-pods", "hash:ip", netlink.IpsetCreateOptions{}))
			must(t, netlink.IpsetCreate("blocked", "hash:net", netlink.IpsetCreateOptions{}))
			before := rules(run(t, "", "iptables-"+tables+"-save"))
			run(t, weaveRules, "iptables-"+tables+"-restore", "--noflush")

			links := linkNames(t)
			bridge := addLink(t, &netlink.Bridge{LinkAttrs: attrs("weave")})
			addLink(t, &netlink.Veth{LinkAttrs: attrs("vethwe-bridge"), PeerName: "vethwe-datapath"})
			pod := attrs("vethwepl551c56d")
			pod.MasterIndex = bridge.Attrs().Index
			addLink(t, &netlink.Veth{LinkAttrs: pod, PeerName: "eth0p"})
			addLink(t, &netlink.Vxlan{LinkAttrs: attrs("vxlan-6784"), VxlanId: 1, Port: 6784})
			datapath := addLink(t, &netlink.Bridge{LinkAttrs: attrs("datapath")}) // Open vSwitch makes it, which kernels have seldom
			must(t, netlink.LinkSetUp(datapath))
			addLink(t, &netlink.Bridge{LinkAttrs: attrs("docker0")})

			var filter part = nftPart{n}
			if tables == "legacy" {
				filter = legacyPart{Host{Root: "/"}, n}
			}
			for _, p := range []part{filter, linkPart{Host{Root: "/"}, n, []string{"weave"}}, setPart{n}} {
				found, err := p.find()
				must(t, err)
				if len(found) == 0 {
					t.Errorf("%T found nothing", p)
				}
				must(t, p.remove())
				if left, err := p.find(); err != nil || len(left) > 0 {
					t.Errorf("%T left %v, %v", p, left, err)
				}
				must(t, p.remove()) // a second time there is nothing
			}
			if after := rules(run(t, "", "iptables-"+tables+"-save")); after != before {
				t.Errorf("rules of others changed:\n%s\nwant:\n%s", after, before)
			}
			want := slices.Concat(links, []string{"datapath", "docker0"})
			slices.Sort(want)
			if got := linkNames(t); !slices.Equal(got, want) {
				t.Errorf("interfaces are %v, want %v", got, want)
			}
			all, err := netlink.IpsetListAll()
			must(t, err)
			if len(all) != 1 || all[0].SetName != "blocked" {
				t.Errorf("ipsets: %+v", all)
			}
		})
	}
}
