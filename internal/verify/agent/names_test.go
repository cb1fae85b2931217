package agent

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestNamesAreAskedWhereClusterDNSIs follows agents of before, during and after the move through a
// migration.
func TestNamesAreAskedWhereClusterDNSIs(t *testing.T) {
	kubeDNS := func(at string, change ...func(*corev1.Service)) *corev1.Service {
		return service("kube-system", "kube-dns", at, change...)
	}
	const own = "" // the server of resolv.conf
	type step struct {
		dns       *corev1.Service
		migration *v1alpha1.Migration
		want      string
	}
	for name, tt := range map[string]struct {
		first string
		steps []step
	}{
		"there and finish": {oldAt, []step{
			{kubeDNS(oldAt), migration(), own},
			{kubeDNS("", touched), migration(), own},
			{kubeDNS(newAt, movedAt("2026-01-01T00:00:00Z")), migration(), own},
			{kubeDNS(newAt, movedAt("2026-01-01T00:00:00Z")), migration(final), newAt + ":53"},
			{kubeDNS(newAt), migration(final), newAt + ":53"}, // the notes are taken away before the agent is
		}},
		"there and back": {oldAt, []step{
			{kubeDNS(newAt, movedAt("2026-01-01T00:00:00Z")), migration(), own},
			{kubeDNS(newAt, movedAt("2026-01-01T00:00:00Z")), migration(back), own},
			{kubeDNS("", touched), migration(back), own},
			{kubeDNS(oldAt), migration(back), own},
		}},
		"started at the new address, and back": {newAt, []step{
			{kubeDNS(newAt, movedAt("2026-01-01T00:00:00Z")), migration(), own},
			{kubeDNS("", touched), migration(back), own},
			{kubeDNS(oldAt), migration(back), oldAt + ":53"},
			{kubeDNS("", touched), migration(), oldAt + ":53"}, // there again: the bridge answers at both
			{kubeDNS(newAt, movedAt("2026-01-01T00:00:00Z")), migration(), own},
		}},
		"started in the middle of the hop": {newAt, []step{
			{kubeDNS("", touched), migration(), own},
			{kubeDNS(oldAt), migration(back), oldAt + ":53"},
		}},
		"started again past the point of no return": {oldAt, []step{
			{kubeDNS(newAt, movedAt("2026-01-01T00:00:00Z")), migration(final), newAt + ":53"},
		}},
		"a tenant claims the address": {oldAt, []step{
			{service("shop", "cart", newAt, movedAt("2026-01-01T00:00:00Z")), migration(final), own},
		}},
		"a cache on the node": {"169.254.20.10", []step{
			{kubeDNS(newAt, movedAt("2026-01-01T00:00:00Z")), migration(final), own},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := &nameServers{first: netip.MustParseAddr(tt.first)}
			for i, s := range tt.steps {
				got := ""
				if at := n.server(view{migration: s.migration, services: []*corev1.Service{s.dns}, ranges: moveRanges()}); at.IsValid() {
					got = at.String()
				}
				if got != s.want {
					t.Errorf("step %d: asks %q, want %q", i, got, s.want)
				}
			}
		})
	}
}

func TestProbesByNameAskTheirServer(t *testing.T) {
	at := netip.MustParseAddrPort(newAt + ":53")
	o := orders{
		origin:   v1alpha1.FromPod,
		domain:   "cluster.local",
		answered: true,
		named:    true,
		server:   at,
		view: view{
			migration: migration(),
			services:  []*corev1.Service{service(v1alpha1.SystemNamespace, "probe", oldAt, role(v1alpha1.RoleProbe))},
		},
	}
	asked := map[string]string{}
	all, _ := targets(o)
	for _, probe := range all {
		asked[probe.Name] = probe.Resolver
	}
	for name, want := range map[string]string{"pod/dns": at.String(), "pod/name": at.String(), "pod/old-address": ""} {
		if got, there := asked[name]; !there || got != want {
			t.Errorf("%s asks %q (%v), want %q", name, got, there, want)
		}
	}
}

func TestNameServerOf(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"search x.svc.cluster.local\nnameserver 10.96.0.10\nnameserver 10.96.0.11\n", "10.96.0.10"},
		{"nameserver fd00::a\n", "fd00::a"},
		{"search x\n", "invalid IP"},
	} {
		file := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := NameServerOf(file).String(); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.text, got, tt.want)
		}
	}
	if got := NameServerOf(filepath.Join(t.TempDir(), "none")); got.IsValid() {
		t.Errorf("without a file: %s", got)
	}
}

// TestLookUp asks one server for a name that only that one has.
func TestLookUp(t *testing.T) {
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, question *dns.Msg) {
		answer := new(dns.Msg)
		answer.SetReply(question)
		if q := question.Question[0]; q.Name != "there.example." {
			answer.Rcode = dns.RcodeNameError
		} else if q.Qtype == dns.TypeA {
			answer.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.IPv4(192, 0, 2, 1),
			}}
		}
		_ = w.WriteMsg(answer)
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.ShutdownContext(context.Background()) })
	at := netip.MustParseAddrPort(conn.LocalAddr().String())
	if err := lookUp(t.Context(), at, "there.example."); err != nil {
		t.Error(err)
	}
	if err := lookUp(t.Context(), at, "gone.example."); err == nil {
		t.Error("a name that is not there was found")
	}
}
