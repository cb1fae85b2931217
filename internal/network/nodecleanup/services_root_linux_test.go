//go:build root

package nodecleanup

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/testing/ownnet"
)

// proxyRules are what kube-proxy has written in mode iptables.
const proxyRules = `*nat
:KUBE-SVC-ERIFXISQEP7F7OF4 - [0:0]
:KUBE-SEP-2JXMGQ35YGIPDPC4 - [0:0]
:KUBE-POSTROUTING - [0:0]
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m comment --comment "a/b cluster IP" -m tcp --dport 80 -j KUBE-SVC-ERIFXISQEP7F7OF4
-A KUBE-SVC-ERIFXISQEP7F7OF4 -j KUBE-SEP-2JXMGQ35YGIPDPC4
-A KUBE-SEP-2JXMGQ35YGIPDPC4 -p tcp -m tcp -j DNAT --to-destination 10.244.0.5:80
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
COMMIT
`

// hostRules are those of the kubelet, of Cilium and of the host.
const hostRules = `*nat
:KUBE-SERVICES - [0:0]
:CILIUM_POST_nat - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "cilium-feeder: CILIUM_POST_nat" -j CILIUM_POST_nat
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:FORWARD DROP [0:0]
-A OUTPUT -j KUBE-FIREWALL
COMMIT
`

// TestKubeProxyIsToldAndGoes: rules for a Service are found in each kind of tables, those for
// others are not taken for them; and when kube-proxy's rules go, those of the kubelet and of Cilium
// stay.
func TestKubeProxyIsToldAndGoes(t *testing.T) {
	host := Host{Root: "/"}
	has, hasNot := netip.MustParseAddr("10.96.0.20"), netip.MustParseAddr("10.96.0.21")
	for name, write := range map[string]func(t *testing.T){
		"nft": func(t *testing.T) {
			run(t, hostRules, "iptables-nft-restore")
			run(t, proxyRules, "iptables-nft-restore", "--noflush")
		},
		"legacy": func(t *testing.T) {
			run(t, hostRules, "iptables-legacy-restore")
			run(t, proxyRules, "iptables-legacy-restore", "--noflush")
		},
		"nftables": func(t *testing.T) {
			run(t, hostRules, "iptables-nft-restore")
			run(t, `
table ip kube-proxy {
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	chain service-a { }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
}
add element ip kube-proxy service-ips { 10.96.0.20 . tcp . 80 : goto service-a }
`, "nft", "-f", "-")
		},
	} {
		t.Run(name, func(t *testing.T) {
			ownnet.Enter(t)
			write(t)
			for address, want := range map[netip.Addr]bool{has: true, hasNot: false} {
				if got, err := (ServiceQuery{Host: host}).programmed(address); err != nil || got != want {
					t.Errorf("%s: %v, %v", address, got, err)
				}
			}
			r, err := ServiceQuery{
				Host:         host,
				Programmed:   hasNot,
				Unprogrammed: has,
				Timeout:      time.Second,
				Quiet:        time.Second,
			}.Check(
				t.Context(),
			)
			if err != nil || len(r.Problems) != 2 {
				t.Errorf("%+v, %v", r, err)
			}
			n, _ := Find(KubeProxy)
			if _, err := host.Clean(n); err != nil {
				t.Fatal(err)
			}
			if left, err := host.Residue(n); err != nil || !left.Empty() {
				t.Errorf("left: %s, %v", left, err)
			}
			kind := "nft"
			if name == "legacy" {
				kind = "legacy"
			}
			save := run(t, "", "iptables-"+kind+"-save")
			for _, stays := range []string{"-j KUBE-FIREWALL", "-j CILIUM_POST_nat", ":FORWARD DROP"} {
				if !strings.Contains(save, stays) {
					t.Errorf("%s is gone:\n%s", stays, save)
				}
			}
		})
	}
}
