package ipvs

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// listed is what a node in mode ipvs has: a ClusterIP, one whose only server takes no new
// connections, a node port, one of IPv6, and keepalived's, of an address and of a firewall mark.
const listed = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600014:0050 rr
  -> 0AF40006:1F90      Masq    1      0          0
  -> 0AF40005:1F90      Masq    1      2          1
TCP  0A600015:0050 rr persistent 10800 FFFFFFFF
  -> 0AF40005:1F90      Masq    0      1          0
UDP  0A60000A:0035 rr
TCP  AC1E0001:7580 rr
  -> 0AF40005:1F90      Masq    1      0          0
TCP  [fd00:0096:0000:0000:0000:0000:0000:0014]:0050 rr
  -> [fd00:0244:0000:0000:0000:0000:0000:0005]:1F90      Masq    1      0          0
FWM  00000007 wlc
  -> C0000207:0050      Route   1      0          0
TCP  C0000263:0050 wlc
  -> C0000207:0050      Route   1      0          0
`

func TestOwn(t *testing.T) {
	all, err := parseServers(listed)
	if err != nil || len(all) != 6 {
		t.Fatalf("%+v, %v", all, err)
	}
	o := newOwnership()
	o.bound[netip.MustParseAddr("10.96.0.20")] = true
	o.bound[netip.MustParseAddr("10.96.0.21")] = true
	o.take("KUBE-CLUSTER-IP", "udp", netip.MustParseAddrPort("10.96.0.10:53"))
	o.take("KUBE-6-CLUSTER-IP", "tcp", netip.MustParseAddrPort("[fd00:96::14]:80"))
	o.take("KUBE-NODE-PORT-TCP", "", netip.AddrPortFrom(netip.Addr{}, 30080))
	o.take("KUBE-NODE-PORT-LOCAL-UDP", "", netip.AddrPortFrom(netip.Addr{}, 80))
	var got []string
	for _, s := range o.own(all) {
		text := s.String()
		if s.Leads() {
			text += " leads"
		}
		if s.NodePort {
			text += " node port"
		}
		got = append(got, text)
	}
	want := []string{
		"10.96.0.20:80 tcp leads", "10.96.0.21:80 tcp", "10.96.0.10:53 udp", "172.30.0.1:30080 tcp leads node port", "[fd00:96::14]:80 tcp leads",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestConnections: what remembers a client is no connection.
func TestConnections(t *testing.T) {
	const text = `Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP 0AF40005 9C40 0A600014 0050 0AF40006 1F90 ESTABLISHED     899
TCP 0AF40004 9C41 0A600014 0050 0AF40006 1F90 FIN_WAIT        119
TCP 0AF40005 9C42 0A600014 0050 0AF40006 1F90 TIME_WAIT        10
TCP 0AF40005 9C43 0A600014 0050 0AF40006 1F90 CLOSE             9
TCP 0AF40005 9C46 0A600014 0050 0AF40006 1F90 SYN_RECV         59
TCP 0AF40005 0000 0A600015 0050 0AF40006 1F90 ESTABLISHED   10799
UDP 0AF40005 9C44 0A60000A 0035 0AF40006 0035 UDP             290
TCP fd00:0244:0000:0000:0000:0000:0000:0005 9C45 fd00:0096:0000:0000:0000:0000:0000:0014 0050 fd00:0244:0000:0000:0000:0000:0000:0006 1F90 ESTABLISHED     899
`
	open, err := parseConnections(text)
	want := []string{
		"1 to 10.96.0.10:53 udp, from 10.244.0.5", "1 to [fd00:96::14]:80 tcp, from fd00:244::5", "5 to 10.96.0.20:80 tcp, from 10.244.0.4",
	}
	if got := Tell(open); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestSockets: a socket of the node itself is found by its own address, also one of both families.
func TestSockets(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	four := head +
		"   0: 1400600A:9C40 1400600A:0050 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0 20 4 30 10 -1\n" + // from 10.96.0.20
		"   1: 1400600A:9C41 1400600A:0050 06 00000000:00000000 00:00000000 00000000     0        0 1 1 0 20 4 30 10 -1\n" + // has ended
		"   2: 01001EAC:9C40 1500600A:0050 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0 20 4 30 10 -1\n" + // from the node's own
		"   3: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0\n"
	six := head +
		"   0: 0000000000000000FFFF00001500600A:9C40 0000000000000000FFFF00001500600A:01BB 01 00000000:00000000 00:0 0 0 0 1 1 0 20 4 30 10 -1\n"
	bound := map[netip.Addr]bool{netip.MustParseAddr("10.96.0.20"): true, netip.MustParseAddr("10.96.0.21"): true}
	var open []OpenConnection
	for _, text := range []string{four, six} {
		more, err := parseSockets("tcp", text, bound)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, more...)
	}
	want := []string{"1 to 10.96.0.20:80 tcp, from 10.96.0.20", "1 to 10.96.0.21:443 tcp, from 10.96.0.21"}
	if got := Tell(open); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestUnreadable: what the kernel lists in a form that is not known is no empty list.
func TestUnreadable(t *testing.T) {
	for _, text := range []string{
		"TCP  XA600014:0050 rr", "TCP  0A600014 rr", "TCP  [fd00::x]:0050 rr", "TCP  0A600014:005X rr",
		"TCP  0A600014:0050 rr\n  -> 0AF40005:1F90 Masq", "TCP  0A600014:0050 rr\n  -> 0AF40005:1F90 Masq x 0 0",
	} {
		if all, err := parseServers(text); err == nil {
			t.Errorf("%s: %+v", text, all)
		}
	}
	const line = "TCP 0AF40005 9C40 0A600014 0050 0AF40006 1F90 ESTABLISHED 899"
	for _, part := range []string{"0AF40005", "9C40", "0A600014", "0050"} {
		if all, err := parseConnections(strings.Replace(line, part, "Z", 1)); err == nil {
			t.Errorf("%s: %+v", part, all)
		}
	}
}
