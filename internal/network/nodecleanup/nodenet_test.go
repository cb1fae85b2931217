package nodecleanup

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestReportFits(t *testing.T) {
	r := &TracesReport{}
	for i := range 5000 {
		r.Found = append(r.Found, fmt.Sprintf("interface cali%d", i))
	}
	body, err := r.Marshal()
	if err != nil || len(body) > messageLimit {
		t.Fatalf("%d bytes, %v", len(body), err)
	}
	back, err := Parse(string(body))
	if err != nil || len(back.Found)+back.More != 5000 || len(r.Found) != 5000 {
		t.Errorf("%d and %d more, %v", len(back.Found), back.More, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"", "{", `{"other":1}`, "{} {}", "error: no"} {
		if r, err := Parse(text); err == nil {
			t.Errorf("%q gave %+v", text, r)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`{"found":["interface cni0"],"more":3}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		if _, err := r.Marshal(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// FuzzLegacy: whatever a save holds, nothing of others is removed.
func FuzzLegacy(f *testing.F) {
	f.Add("*filter\n:INPUT DROP [0:0]\n:FLANNEL-FWD - [0:0]\n-A FORWARD -j FLANNEL-FWD\n-A INPUT -j DROP\nCOMMIT\n")
	f.Add("*nat\n-A POSTROUTING -m comment --comment \"flanneld masq\" -j MASQUERADE\nCOMMIT\n")
	n, _ := Find("flannel")
	f.Fuzz(func(t *testing.T, save string) {
		_, restore := legacyFinds(n, save)
		for line := range strings.SplitSeq(restore, "\n") {
			if rest, ok := strings.CutPrefix(
				line,
				"-D ",
			); ok && !strings.Contains(rest, "FLANNEL-") &&
				!strings.Contains(rest, "flanneld ") {
				t.Errorf("removes %q", line)
			}
			if strings.HasPrefix(line, "-F ") && !strings.HasPrefix(line, "-F FLANNEL-") {
				t.Errorf("empties %q", line)
			}
		}
	})
}

// weaveRules are those that Weave writes (net/bridge.go and npc/controller.go in
// github.com/weaveworks/weave), as iptables-save prints them.
const weaveRules = `*mangle
:WEAVE-CANARY - [0:0]
COMMIT
*nat
:WEAVE - [0:0]
:WEAVE-CANARY - [0:0]
-A POSTROUTING -j WEAVE
-A WEAVE -s 10.32.0.0/12 -d 224.0.0.0/4 -j RETURN
-A WEAVE ! -s 10.32.0.0/12 -d 10.32.0.0/12 -j MASQUERADE
-A WEAVE -s 10.32.0.0/12 ! -d 10.32.0.0/12 -j MASQUERADE
COMMIT
*filter
:WEAVE-NPC - [0:0]
:WEAVE-NPC-DEFAULT - [0:0]
:WEAVE-NPC-EGRESS - [0:0]
-A INPUT -i weave -j WEAVE-NPC-EGRESS
-A FORWARD -i weave -m comment --comment "NOTE: this must go before '-j KUBE-FORWARD'" -j WEAVE-NPC-EGRESS
-A FORWARD -o weave -m comment --comment "NOTE: this must go before '-j KUBE-FORWARD'" -j WEAVE-NPC
-A FORWARD -o weave -m state --state NEW -j NFLOG --nflog-group 86
-A FORWARD -o weave -j DROP
-A FORWARD -i weave ! -o weave -j ACCEPT
-A FORWARD -o weave -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A WEAVE-NPC -m state --state NEW -j WEAVE-NPC-DEFAULT
-A WEAVE-NPC-DEFAULT -m set --match-set weave-local-pods dst -j ACCEPT
COMMIT
`

// TestWeaveRules: all that Weave writes is found, and nothing of others, whose chains and
// interfaces have names like its own.
func TestWeaveRules(t *testing.T) {
	const others = `*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:WEAVER - [0:0]
-A INPUT -i weave0 -j ACCEPT
-A INPUT -i weave -p tcp -m tcp --dport 9100 -m comment --comment "by hand" -j ACCEPT
-A FORWARD -j WEAVER
-A FORWARD -i eth0 -o eth1 -j ACCEPT
COMMIT
`
	n, ok := Find("weave")
	if !ok || !slices.Contains(Names(), "weave") {
		t.Fatal("weave is not known")
	}
	if found, restore := legacyFinds(n, others); len(found) > 0 || restore != "" {
		t.Errorf("found %v of others, and would\n%s", found, restore)
	}
	found, restore := legacyFinds(n, weaveRules)
	if want := strings.Count(
		weaveRules,
		"\n:",
	) + strings.Count(
		weaveRules,
		"\n-A ",
	) - strings.Count(
		weaveRules,
		"\n-A WEAVE",
	); len(
		found,
	) != want {
		t.Errorf("found %d, want %d: %v", len(found), want, found)
	}
	for _, line := range []string{
		"-D POSTROUTING -j WEAVE", "-D FORWARD -o weave -j DROP", "-D FORWARD -i weave ! -o weave -j ACCEPT", "-F WEAVE", "-X WEAVE-NPC", "-X WEAVE-CANARY",
	} {
		if !strings.Contains(restore, line+"\n") {
			t.Errorf("%q is left:\n%s", line, restore)
		}
	}
}

// TestWeaveLinks are the names of its interfaces, and not those of others.
func TestWeaveLinks(t *testing.T) {
	n, _ := Find("weave")
	for name, own := range map[string]bool{
		"vethwe-bridge": true, "vethwe-datapath": true, "vethwe-pcap": true, "vethwepl551c56d": true, "vxlan-6784": true, "datapath": true,
		"vethpod": false, "vxlan.calico": false, "ovs-system": false, "weave0": false, "datapath1": false,
	} {
		if matches(n.Links, name) != own {
			t.Errorf("%s is its own: %t", name, !own)
		}
	}
}

func TestWhoIsAClient(t *testing.T) {
	prefix := netip.MustParsePrefix
	w := &Watcher{
		Inside: []netip.Prefix{
			prefix("192.0.2.0/28"),
			prefix("10.244.0.0/16"),
			prefix("10.96.0.0/16"),
		},
		Ignore: []netip.Prefix{prefix("198.51.100.9/32")},
		Served: []netip.Prefix{prefix("10.244.0.0/16"), prefix("10.96.0.0/16")},
		Ports:  []uint16{8443},
	}
	flowOf := func(from, to, answers string, port uint16) flow {
		return flow{
			from:    netip.MustParseAddr(from),
			to:      netip.MustParseAddr(to),
			answers: netip.MustParseAddr(answers),
			port:    port,
			left:    100,
		}
	}
	for _, tt := range []struct {
		name string
		flow flow
		want bool
	}{
		{"node port", flowOf("203.0.113.5", "192.0.2.1", "10.244.1.2", 30080), true},
		{"pod address", flowOf("203.0.113.5", "10.244.1.2", "10.244.1.2", 80), true},
		{"host port", flowOf("203.0.113.5", "192.0.2.1", "192.0.2.1", 8443), true},
		{"ssh", flowOf("203.0.113.5", "192.0.2.1", "192.0.2.1", 22), false},
		{"health check", flowOf("198.51.100.9", "192.0.2.1", "10.244.1.2", 30080), false},
		{"pod to service", flowOf("10.244.1.2", "10.96.0.10", "10.244.2.2", 53), false},
		{"node to pod", flowOf("192.0.2.1", "10.244.1.2", "10.244.1.2", 80), false},
		{"out", flowOf("10.244.1.2", "203.0.113.5", "203.0.113.5", 443), false},
		{"itself", flowOf("127.0.0.1", "10.96.0.10", "10.244.2.2", 53), false},
		{"mapped", flowOf("::ffff:203.0.113.5", "::ffff:192.0.2.1", "::ffff:10.244.1.2", 30080), true},
	} {
		if got := w.client(tt.flow); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

func TestWhoIsActive(t *testing.T) {
	w := &Watcher{Served: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	at := func(from string, left uint32) flow {
		return flow{
			from:    netip.MustParseAddr(from),
			to:      netip.MustParseAddr("10.244.0.1"),
			answers: netip.MustParseAddr("10.244.0.1"),
			left:    left,
		}
	}
	before := map[string]flow{"idle": at("203.0.113.1", 100), "alive": at("203.0.113.2", 100), "steady": at("203.0.113.3", 100)}
	now := map[string]flow{
		"idle":   at("203.0.113.1", 98),
		"alive":  at("203.0.113.2", 120),
		"steady": at("203.0.113.3", 100),
		"new":    at("203.0.113.4", 120),
	}
	var got []string
	for _, a := range w.active(before, now) {
		got = append(got, a.String())
	}
	slices.Sort(got)
	if want := []string{"203.0.113.2", "203.0.113.3", "203.0.113.4"}; !slices.Equal(got, want) {
		t.Errorf("active are %v, want %v", got, want)
	}
}
