package nodecleanup

import (
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// savedByKubelet is what a node of kube-proxy has in mode iptables, with chains of the kubelet and
// of others.
const savedByKubelet = `*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ERIFXISQEP7F7OF4 - [0:0]
:KUBE-SEP-2JXMGQ35YGIPDPC4 - [0:0]
:KUBE-MARK-MASQ - [0:0]
:CILIUM_POST_nat - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "cilium-feeder: CILIUM_POST_nat" -j CILIUM_POST_nat
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "kube-system/kube-dns:dns-tcp cluster IP" -m tcp --dport 53 -j KUBE-SVC-ERIFXISQEP7F7OF4
COMMIT
*filter
:FORWARD DROP [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A KUBE-FIREWALL -d 10.96.0.11/32 -j DROP
-A KUBE-SERVICES -d 10.96.0.12/32 -p tcp -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
`

// TestKubeProxyLeft: what kube-proxy has written is told from what the kubelet and Cilium have, and
// goes without it.
func TestKubeProxyLeft(t *testing.T) {
	n, ok := Find(KubeProxy)
	if !ok || len(n.Writable()) > 0 || slices.Contains(Names(), KubeProxy) {
		t.Fatalf("%+v", n)
	}
	found, restore := legacyFinds(n, savedByKubelet)
	if want := []string{
		"chain mangle KUBE-PROXY-CANARY (legacy)", "chain nat KUBE-SERVICES (legacy)", "chain nat KUBE-SVC-ERIFXISQEP7F7OF4 (legacy)",
		"chain nat KUBE-SEP-2JXMGQ35YGIPDPC4 (legacy)", "chain nat KUBE-MARK-MASQ (legacy)", "rule in chain nat PREROUTING (legacy)",
		"chain filter KUBE-FORWARD (legacy)", "chain filter KUBE-SERVICES (legacy)", "rule in chain filter FORWARD (legacy)",
	}; !slices.Equal(found, want) {
		t.Errorf("found %q,\nwant %q", found, want)
	}
	for _, stays := range []string{"KUBE-FIREWALL", "KUBELET", "HINT", "CILIUM"} {
		if strings.Contains(restore, stays) {
			t.Errorf("%s goes as well:\n%s", stays, restore)
		}
	}
}

// savedBesideIPVS is what kube-proxy has in mode iptables on a node that left mode ipvs.
const savedBesideIPVS = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-SVC-ERIFXISQEP7F7OF4 - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
COMMIT
*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
COMMIT
`

// TestBesideIPVS: of two modes that share chains, what only one has goes.
func TestBesideIPVS(t *testing.T) {
	for name, want := range map[string][]string{
		ProxyIPVS: {
			"chain nat KUBE-NODE-PORT (legacy)", "chain nat KUBE-LOAD-BALANCER (legacy)", "chain filter KUBE-NODE-PORT (legacy)",
			"chain filter KUBE-IPVS-FILTER (legacy)", "chain filter KUBE-IPVS-OUT-FILTER (legacy)", "rule in chain filter INPUT (legacy)",
			"rule in chain filter INPUT (legacy)",
		},
		ProxyBesideIPVS: {
			"chain nat KUBE-NODEPORTS (legacy)", "chain nat KUBE-SVC-ERIFXISQEP7F7OF4 (legacy)", "rule in chain nat KUBE-SERVICES (legacy)",
			"chain filter KUBE-SERVICES (legacy)", "chain filter KUBE-EXTERNAL-SERVICES (legacy)", "rule in chain filter INPUT (legacy)",
			"rule in chain filter OUTPUT (legacy)", "rule in chain filter INPUT (legacy)",
		},
	} {
		n, _ := Find(name)
		found, restore := legacyFinds(n, savedBesideIPVS)
		if !slices.Equal(found, want) {
			t.Errorf("%s: found %q,\nwant %q", name, found, want)
		}
		for _, stays := range []string{"-X KUBE-MARK-MASQ", "-X KUBE-FORWARD", "-X KUBE-PROXY-FIREWALL", "KUBE-ROUTER", "-D PREROUTING"} {
			if strings.Contains(restore, stays) {
				t.Errorf("%s: %s goes as well:\n%s", name, stays, restore)
			}
		}
	}
}

func TestInSave(t *testing.T) {
	for address, want := range map[string]bool{
		"10.96.0.10": true, "10.96.0.12": true, "10.96.0.1": false, "10.96.0.11": false, "10.96.0.100": false, "fd00::1": false,
	} {
		if got := inSave(savedByKubelet, netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
}

// TestReach: what answers is no problem, and what does not is told.
func TestReach(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	open := l.Addr().String()
	s := ServiceQuery{Reach: []string{open}, Timeout: time.Second}
	if problems := s.reach(t.Context()); len(problems) > 0 {
		t.Errorf("%v", problems)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if problems := s.reach(t.Context()); len(problems) != 1 || !strings.HasPrefix(problems[0], open+" takes no connection") {
		t.Errorf("%v", problems)
	}
}

// TestAsk has an agent say what it does by its socket.
func TestAsk(t *testing.T) {
	for _, tt := range []struct{ name, answer, health, found, problem string }{
		{"it replaces kube-proxy", `{"cilium":{"state":"Ok"},"kube-proxy-replacement":{"mode":"True"}}`, "", "kube-proxy-replacement True", ""},
		{"it does not", `{"cilium":{"state":"Warning"},"kube-proxy-replacement":{"mode":"False"}}`, "", "kube-proxy-replacement False", ""},
		{
			"it is well", `{"cilium":{"state":"Ok"},"kube-proxy-replacement":{"mode":"True"}}`, "yes",
			"kube-proxy-replacement True, healthz answers", "",
		},
		{
			"it does not say that it is well", `{"cilium":{"state":"Ok"},"kube-proxy-replacement":{"mode":"True"}}`, "127.0.0.1:1",
			"kube-proxy-replacement True", "",
		},
		{"it is ill", `{"cilium":{"state":"Failure"},"kube-proxy-replacement":{"mode":"True"}}`, "", "", `its state is "Failure"`},
		{"it says nothing of it", `{"cilium":{"state":"Ok"}}`, "", "", `its kube-proxy-replacement is ""`},
		{"no answer at all", `{`, "", "", "reading its answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			mux := http.NewServeMux()
			mux.HandleFunc("GET /v1/healthz", func(w http.ResponseWriter, _ *http.Request) {
				if _, err := w.Write([]byte(tt.answer)); err != nil {
					t.Error(err)
				}
			})
			server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
			go func() { _ = server.Serve(l) }()
			defer func() { _ = server.Close() }()
			if tt.health == "yes" {
				h, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = h.Close() }()
				tt.health = h.Addr().String()
			}
			r, err := CiliumAgent{Socket: socket, Healthz: tt.health, Timeout: 2 * time.Second}.Ask(t.Context())
			if err != nil || strings.Join(r.Found, ", ") != tt.found || !strings.Contains(strings.Join(r.Problems, "; "), tt.problem) ||
				(tt.problem == "") != (len(r.Problems) == 0) {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	r, err := CiliumAgent{Socket: filepath.Join(t.TempDir(), "none"), Timeout: time.Second}.Ask(t.Context())
	if err != nil || len(r.Problems) != 1 {
		t.Errorf("where no agent is: %+v, %v", r, err)
	}
}
