//go:build root

package proxyrules

import (
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/testing/ownnet"
)

// inIPTables and inNFTables are rules for one Service at 10.96.0.20:80, whose pod is at
// 10.244.0.5:8080, as kube-proxy writes them.
const (
	inIPTables = `*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-ERIFXISQEP7F7OF4 - [0:0]
:KUBE-SEP-2JXMGQ35YGIPDPC4 - [0:0]
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -d 10.96.0.0/12 -m comment --comment "a host's own, before '-j KUBE-SERVICES'" -j ACCEPT
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m comment --comment "a/b cluster IP" -m tcp --dport 80 -j KUBE-SVC-ERIFXISQEP7F7OF4
-A KUBE-SVC-ERIFXISQEP7F7OF4 -m comment --comment "a/b -> 10.244.0.5:8080" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-2JXMGQ35YGIPDPC4 --rsource -j KUBE-SEP-2JXMGQ35YGIPDPC4
-A KUBE-SVC-ERIFXISQEP7F7OF4 -j KUBE-SEP-2JXMGQ35YGIPDPC4
-A KUBE-SEP-2JXMGQ35YGIPDPC4 -p tcp -m recent --set --name KUBE-SEP-2JXMGQ35YGIPDPC4 --rsource -m tcp -j DNAT --to-destination 10.244.0.5:8080
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
COMMIT
*filter
:FORWARD ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
`
	inNFTables = `table ip kube-proxy {
	comment "rules for kube-proxy"
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		comment "ClusterIP, ExternalIP and LoadBalancer IP traffic"
		elements = { 10.96.0.20 . tcp . 80 comment "a/b" : goto service-ULMVA6XW-a/b/tcp/ }
	}
	map service-nodeports { type inet_proto . inet_service : verdict; }
	set affinity-a {
		type ipv4_addr
		flags dynamic,timeout
		timeout 3h
		elements = { 10.0.0.9 expires 2h59m58s }
	}
	chain endpoint-5OJB2KTY-a/b/tcp/__10.244.0.5/8080 { meta l4proto tcp dnat to 10.244.0.5:8080; }
	chain service-ULMVA6XW-a/b/tcp/ {
		ip saddr @affinity-a goto endpoint-5OJB2KTY-a/b/tcp/__10.244.0.5/8080
		numgen random mod 1 vmap { 0 : goto endpoint-5OJB2KTY-a/b/tcp/__10.244.0.5/8080 }
	}
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
	chain filter-output-pre-dnat {
		type filter hook output priority -110; policy accept;
		ip daddr 10.96.0.99 reject
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
	chain nat-output { type nat hook output priority -100; policy accept; jump services; }
	chain nat-postrouting { type nat hook postrouting priority srcnat; policy accept; meta mark & 0x4000 == 0 return; masquerade fully-random; }
}
`
)

// TestACopyLeads: a node whose kube-proxy has taken its rules away leads to Services by the copy,
// and without a copy it does not; then the copy goes without a trace. Programs are those of an
// image, or of a node's root.
func TestACopyLeads(t *testing.T) {
	for root, name := range map[string]string{"": "image", "/": "node"} {
		t.Run(name, func(t *testing.T) { copyLeads(t, Programs{Root: root}) })
	}
}

func copyLeads(t *testing.T, by Programs) {
	for mode, write := range map[string]func(t *testing.T){
		IPTables: func(t *testing.T) { program(t, inIPTables, "iptables-restore", "--noflush") },
		NFTables: func(t *testing.T) { program(t, inNFTables, "nft", "-f", "-") },
	} {
		t.Run(mode, func(t *testing.T) {
			ownnet.Enter(t)
			serve(t)
			write(t)
			other := map[string]string{IPTables: NFTables, NFTables: IPTables}[mode]
			requireLed(t, true)
			clean(t, nodecleanup.KubeProxy)
			requireLed(t, false)

			write(t)
			for range 2 { // the second takes the place of the first
				r, err := by.Copy(t.Context(), other)
				if err != nil || len(r.Found) == 0 || len(r.Problems) > 0 {
					t.Fatalf("%+v, %v", r, err)
				}
			}
			must(t, by.Refresh(t.Context(), other))
			clean(t, nodecleanup.KubeProxy)
			requireLed(t, true)
			if r, err := by.Copy(t.Context(), other); err != nil || !slices.Equal(r.Found, []string{EarlierCopy}) { // a run that goes on
				t.Fatalf("%+v, %v", r, err)
			}
			must(t, by.Refresh(t.Context(), other))
			requireLed(t, true)

			if r, err := by.Compare(t.Context(), other, TheCopy); err != nil || !slices.Equal(r.Problems, []string{NoRules, "10.96.0.20 tcp 80"}) {
				t.Errorf("without new rules: %+v, %v", r, err)
			}
			if other == NFTables {
				program(t, inNFTables, "nft", "-f", "-")
			} else {
				program(t, inIPTables, "iptables-restore", "--noflush")
			}
			if r, err := by.Compare(t.Context(), other, TheCopy); err != nil || len(r.Problems) > 0 {
				t.Errorf("with new rules: %+v, %v", r, err)
			}
			clean(t, nodecleanup.KubeProxy)
			requireLed(t, true)
			clean(t, nodecleanup.CopiedRules)
			requireLed(t, false)
		})
	}
}

func clean(t *testing.T, what string) {
	t.Helper()
	n, _ := nodecleanup.Find(what)
	if _, err := (nodecleanup.Host{Root: "/"}).Clean(n); err != nil {
		t.Fatal(err)
	}
	if left, err := (nodecleanup.Host{Root: "/"}).Residue(n); err != nil || !left.Empty() {
		t.Fatalf("left of %s: %s, %v", what, left, err)
	}
}

// serve has the pod's address on this machine, and a way to those of Services.
func serve(t *testing.T) {
	t.Helper()
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pods"}, PeerName: "others"}
	must(t, netlink.LinkAdd(l))
	for _, name := range []string{"lo", "pods", "others"} {
		link, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(link))
	}
	address, err := netlink.ParseAddr("10.244.0.5/24")
	must(t, err)
	must(t, netlink.AddrAdd(l, address))
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: netip.MustParseAddr("10.244.0.1").AsSlice()}))
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "10.244.0.5:8080")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
}

func requireLed(t *testing.T, want bool) {
	t.Helper()
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(t.Context(), "tcp", "10.96.0.20:80")
	if err == nil {
		_ = c.Close()
	}
	if (err == nil) != want {
		t.Fatalf("the Service is led to: %v, want %v (%v)\n%s\n%s", err == nil, want, err,
			program(t, "", "iptables-save"), program(t, "", "nft", "list", "ruleset"))
	}
}

func program(t *testing.T, in, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
