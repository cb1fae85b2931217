package proxyrules

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/network/ipvs"
	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// writtenByIPVS and writtenByIPTables are table nat as the last of two kube-proxies has left it:
// chains with names of one mode stand in either.
const (
	writtenByIPVS = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ERIFXISQEP7F7OF4 - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES ! -s 10.244.0.0/16 -m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
COMMIT
`
	writtenByIPTables = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODE-PORT - [0:0]
-A KUBE-NODE-PORT -p tcp -m comment --comment "Kubernetes nodeport TCP port for masquerade purpose" -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m comment --comment "a/b cluster IP" -m tcp --dport 80 -j KUBE-SVC-ERIFXISQEP7F7OF4
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
*filter
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d 10.96.0.21/32 -p udp -m comment --comment "a/none has no endpoints" -m udp --dport 53 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "a/none has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30081 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-PROXY-FIREWALL -d 192.0.2.29/32 -p tcp -m comment --comment "a/ranged traffic not accepted by KUBE-FW-A" -m tcp --dport 80 -j DROP
COMMIT
`
)

// TestWroteIPTables: rules of mode iptables are there though mode ipvs has taken their first chain.
func TestWroteIPTables(t *testing.T) {
	both := strings.Replace(writtenByIPVS, "COMMIT", `-A KUBE-SVC-ERIFXISQEP7F7OF4 -m comment --comment "a/b -> 10.244.0.5:8080" -j KUBE-SEP-2JXMGQ35YGIPDPC4
COMMIT`, 1)
	for save, want := range map[string]bool{both: true, writtenByIPVS: false, writtenByIPTables: false} {
		if got := wroteIPTables(save); got != want {
			t.Errorf("%v, want %v:\n%s", got, want, save)
		}
	}
}

func TestOfIPVS(t *testing.T) {
	for save, want := range map[string]bool{writtenByIPVS: true, writtenByIPTables: false, "": false} {
		if got := ofIPVS(save); got != want {
			t.Errorf("%v, want %v:\n%s", got, want, save)
		}
	}
}

// TestBesideIPVS: what virtual servers lead from is what rules have to lead from or refuse. Those
// that lead nowhere are no loss.
func TestBesideIPVS(t *testing.T) {
	server := func(at, protocol string, leads, nodePort bool) ipvs.VirtualServer {
		s := ipvs.VirtualServer{Frontend: ipvs.Frontend{Protocol: protocol, At: netip.MustParseAddrPort(at)}, NodePort: nodePort}
		if leads {
			s.Servers = []ipvs.Destination{{At: netip.MustParseAddrPort("10.244.0.5:8080"), Weight: 1}}
		}
		return s
	}
	servers := []ipvs.VirtualServer{
		server("10.96.0.20:80", "tcp", true, false), server("10.96.0.21:53", "udp", true, false), server("10.96.0.22:80", "tcp", false, false),
		server("172.30.0.1:30080", "tcp", true, true), server("10.0.2.15:30080", "tcp", true, true), server("172.30.0.1:30081", "tcp", true, true),
	}
	led, have := Frontends{}, Frontends{}
	led.ofServers(servers, false)
	have.ofIPTables(writtenByIPTables, false)
	have.ofRefused(writtenByIPTables)
	if got, want := led.Without(have), []string{"node tcp 30080"}; !slices.Equal(got, want) {
		t.Errorf("rules lack %q, want %q", got, want)
	}
	led, have = Frontends{}, Frontends{}
	led.ofIPTables(writtenByIPTables, false)
	have.ofServers(servers, true)
	if got := led.Without(have); len(got) > 0 || !have["10.96.0.22 tcp 80"] {
		t.Errorf("virtual servers lack %q of %v", got, have)
	}
	for _, s := range servers { // as replumb has left them, and nobody has given them weight again
		for i := range s.Servers {
			s.Servers[i].Weight = 0
		}
	}
	have = Frontends{}
	have.ofServers(servers, true)
	if len(have) > 0 {
		t.Errorf("servers without weight lead from %v", have)
	}
}

func TestServersLead(t *testing.T) {
	for want, found := range map[string][]string{"12": {"kube-proxy says ipvs", "virtual servers: 12"}, "0": nil} {
		if got := ServersLead(&nodecleanup.TracesReport{Found: found}); got != want {
			t.Errorf("%q: got %s, want %s", found, got, want)
		}
	}
}
