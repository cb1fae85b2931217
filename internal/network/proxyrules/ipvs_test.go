package proxyrules

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ipvsInput is what a node in mode ipvs shows: virtual servers, sets and rules.
type ipvsInput struct{ servers, sets, save string }

// readIPVSInput reads what is written after the sources that FromIPVS names: no kernel has shown
// it.
func readIPVSInput(t testing.TB) (in ipvsInput) {
	t.Helper()
	for file, to := range map[string]*string{"ip_vs": &in.servers, "ipset": &in.sets, "iptables": &in.save} {
		data, err := os.ReadFile(filepath.Join("testdata", "ipvs", file))
		if err != nil {
			t.Fatal(err)
		}
		*to = string(data)
	}
	return in
}

// TestFromIPVSKinds: each kind of Service leads where its virtual server led, from the same
// addresses.
func TestFromIPVSKinds(t *testing.T) {
	in := readIPVSInput(t)
	text, foreign, err := FromIPVS("ip", in.servers, in.sets, in.save)
	if err != nil || len(foreign) > 0 {
		t.Fatalf("%v, %v", foreign, err)
	}
	for _, want := range []string{
		"10.96.0.20 . tcp . 80 : goto", "192.0.2.24 . tcp . 80 : goto", "192.0.2.25 . tcp . 80 : goto", "tcp . 30080 : goto",
		"elements = { 172.30.0.1 }", "ip saddr != 10.244.0.0/16 jump mark-for-masquerade", "ip saddr != { 10.244.0.0/16 } drop",
		"ip saddr 10.244.0.5 jump mark-for-masquerade", "dnat to 10.244.0.5:8080", "meta mark set meta mark | 0x4000",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "172.30.0.1 . tcp . 30080") {
		t.Errorf("a node port is taken for a Service's own address:\n%s", text)
	}
	if text, _, err := FromIPVS("ip6", in.servers, in.sets, in.save); err != nil || text != "" {
		t.Errorf("without Services of IPv6: %v\n%s", err, text)
	}
}

// TestFromIPVSLeavesOut: servers that are about to go, and virtual servers without any or of
// others.
func TestFromIPVSLeavesOut(t *testing.T) {
	in := readIPVSInput(t)
	const header = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
	const own, going = "TCP  0A600014:0050 rr  \n", "  -> 0AF40005:1F90      Masq    0      2          0         \n"
	const one = "  -> 0AF40006:1F90      Masq    1      2          0         \n"
	if text, _, err := FromIPVS("ip", header+own+going+one, in.sets, in.save); err != nil || strings.Contains(text, "10.244.0.5:8080") ||
		!strings.Contains(text, "numgen random mod 1 ") {
		t.Errorf("with a server that goes: %v\n%s", err, text)
	}
	if text, _, err := FromIPVS("ip", header+own+going, in.sets, in.save); err != nil || text != "" {
		t.Errorf("with no server left: %v\n%s", err, text)
	}
	others := header + "TCP  C0A80001:0050 wlc persistent 75000 FFFFFFFF\n" + one
	if text, foreign, err := FromIPVS("ip", others, in.sets, in.save); err != nil || text != "" || !slices.Equal(foreign, []string{"192.168.0.1:80 tcp"}) {
		t.Errorf("of others: %v, %v\n%s", foreign, err, text)
	}
	for name, servers := range map[string]string{
		"another way": strings.ReplaceAll(header+own+one, "Masq ", "Route"), "no port": header + "TCP  0A600014 rr  \n",
		"a name": header + "TCP  localhost:0050 rr  \n", "a protocol": header + "ESP  0A600014:0050 rr  \n",
	} {
		if text, _, err := FromIPVS("ip", servers, in.sets, in.save); err == nil {
			t.Errorf("%s: %s", name, text)
		}
	}
	if text, _, err := FromIPVS("ip", in.servers, in.sets, "*nat\nCOMMIT\n"); err == nil {
		t.Errorf("without rules:\n%s", text)
	}
}

// TestFromIPVSv6: addresses of IPv6 have the sets of their family.
func TestFromIPVSv6(t *testing.T) {
	const servers = "TCP  [fd96:0000:0000:0000:0000:0000:0000:0014]:0050 rr persistent 2700000 00000080\n" +
		"  -> [fd44:0000:0000:0000:0000:0000:0000:0005]:1F90      Masq    1      0          0         \n" +
		"TCP  [fd00:0000:0000:0000:0000:0000:0000:0019]:0050 rr \n" +
		"  -> [fd44:0000:0000:0000:0000:0000:0000:0005]:1F90      Masq    1      0          0         \n"
	const sets = "add KUBE-6-CLUSTER-IP fd96::14,tcp:80\nadd KUBE-6-LOAD-BALANCER fd00::19,tcp:80\n" +
		"add KUBE-6-LOAD-BALANCER-FW fd00::19,tcp:80\nadd KUBE-6-LOAD-BALANCER-SOURCE-CID fd00::19,tcp:80,fd44::/64\n"
	save := strings.ReplaceAll(strings.ReplaceAll(readIPVSInput(t).save, "10.244.0.0/16", "fd44::/64"), "KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP")
	text, foreign, err := FromIPVS("ip6", servers, sets, save)
	if err != nil || len(foreign) > 0 {
		t.Fatalf("%v, %v", foreign, err)
	}
	for _, want := range []string{"fd96::14 . tcp . 80 : goto", "dnat to [fd44::5]:8080", "ip6 saddr != fd44::/64 jump", "ip6 saddr != { fd44::/64 } drop", "update @service-0-to-0 { ip6 saddr }"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// FuzzFromIPVS: whatever a node shows, the copy writes to no table but its own.
func FuzzFromIPVS(f *testing.F) {
	in := readIPVSInput(f)
	f.Add(in.servers, in.sets, in.save)
	f.Fuzz(func(t *testing.T, servers, sets, save string) {
		for _, family := range []string{"ip", "ip6"} {
			text, _, err := FromIPVS(family, servers, sets, save)
			if err != nil || text == "" {
				continue
			}
			depth, tables := 0, 0
			for _, r := range text {
				switch r {
				case '{':
					depth++
				case '}':
					depth--
				}
			}
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "table ") || strings.HasPrefix(line, "add ") || strings.HasPrefix(line, "delete ") {
					tables++
				}
			}
			if depth != 0 || tables != 3 || strings.Contains(text, ";;") {
				t.Errorf("writes elsewhere:\n%s", text)
			}
		}
	})
}
