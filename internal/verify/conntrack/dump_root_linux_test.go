//go:build root

package conntrack

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/internal/testing/ownnet"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run a program of the machine, in the namespace of this thread.
func run(t testing.TB, in string, words ...string) {
	t.Helper()
	if _, err := exec.LookPath(words[0]); err != nil {
		t.Fatalf("%s is missing; make deps installs it", words[0])
	}
	cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
	cmd.Stdin = strings.NewReader(in)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", words, err, out)
	}
}

// fabric is a node and a pod on it, each with a network of its own. The thread of the test is in
// that of the node.
type fabric struct{ node, pod netns.NsHandle }

// services leads old addresses to a server of the node, and one to where nothing is.
const services = `
table inet services {
	chain lead {
		ip daddr 10.96.0.5 tcp dport 80 dnat ip to 10.244.1.1:8080
		ip daddr 10.96.0.10 udp dport 53 dnat ip to 10.244.1.1:5353
		ip daddr 10.96.0.6 tcp dport 80 dnat ip to 10.244.1.99:8080
		ip6 daddr fd96::5 tcp dport 80 dnat ip6 to [fd44::1]:8080
	}
	chain prerouting { type nat hook prerouting priority dstnat; jump lead; }
	chain output { type nat hook output priority -100; jump lead; }
}`

func newFabric(t *testing.T) *fabric {
	t.Helper()
	f := &fabric{node: ownnet.Enter(t)}
	var err error
	f.pod, err = netns.New()
	must(t, err)
	t.Cleanup(func() { must(t, f.pod.Close()) })
	must(t, netns.Set(f.node))
	must(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "cni0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(f.pod)),
	}))
	for _, line := range []string{
		"ip link set lo up", "ip link set cni0 up", "ip address add 10.244.1.1/24 dev cni0", "ip address add fd44::1/64 dev cni0 nodad",
		"ip route add 10.96.0.0/16 via 10.244.1.7", "ip route add fd96::/64 via fd44::7", "sysctl -qw net.ipv4.ip_forward=1",
	} {
		run(t, "", strings.Fields(line)...)
	}
	run(t, services, "nft", "-f", "-")
	f.in(t, f.pod, func() {
		for _, line := range []string{
			"ip link set lo up", "ip link set eth0 up", "ip address add 10.244.1.7/24 dev eth0", "ip address add fd44::7/64 dev eth0 nodad",
			"ip route add default via 10.244.1.1", "ip -6 route add default via fd44::1",
		} {
			run(t, "", strings.Fields(line)...)
		}
	})
	f.serve(t)
	return f
}

// in does something in one of the networks. What is opened there stays there.
func (f *fabric) in(t *testing.T, where netns.NsHandle, do func()) {
	t.Helper()
	must(t, netns.Set(where))
	defer func() { must(t, netns.Set(f.node)) }()
	do()
}

// serve echoes lines over TCP, and datagrams.
func (f *fabric) serve(t *testing.T) {
	t.Helper()
	for _, address := range []string{"10.244.1.1:8080", "[fd44::1]:8080"} {
		l, err := net.Listen("tcp", address)
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
			}
		}()
	}
	p, err := net.ListenPacket("udp", "10.244.1.1:5353")
	must(t, err)
	t.Cleanup(func() { _ = p.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = p.WriteTo(buf[:n], from)
		}
	}()
}

// dial opens a connection from a network, and sees that it is answered.
func (f *fabric) dial(t *testing.T, where netns.NsHandle, network, address string) net.Conn {
	t.Helper()
	var c net.Conn
	f.in(t, where, func() {
		var err error
		c, err = net.DialTimeout(network, address, 10*time.Second)
		must(t, err)
	})
	t.Cleanup(func() { _ = c.Close() })
	ask(t, c)
	return c
}

func ask(t *testing.T, c net.Conn) {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, err := fmt.Fprintln(c, "hello")
	must(t, err)
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || line != "hello\n" {
		t.Fatalf("answered %q, %v", line, err)
	}
}

// until looks until what is reported of clients is as wanted.
func (f *fabric) until(t *testing.T, table *Table, pods map[netip.Addr]string, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	moved := map[netip.Addr]string{
		netip.MustParseAddr("10.96.0.5"): "shop/cart", netip.MustParseAddr("10.96.0.6"): "shop/dead",
		netip.MustParseAddr("10.96.0.10"): "kube-system/dns", netip.MustParseAddr("fd96::5"): "shop/cart",
	}
	for {
		all, err := table.Clients(moved, pods)
		must(t, err)
		got := []string{}
		for _, c := range all {
			if since := time.Since(c.LastSeen.Time); since < -time.Second || since > 15*time.Second {
				t.Fatalf("%s was seen %s ago", c.Address, since)
			}
			got = append(got, fmt.Sprintf("%s/%s %s %q %s open=%d", c.Address, c.Protocol, c.Service, c.Pod, c.Source, c.Open))
		}
		slices.Sort(got)
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("clients are\n%q\nwant\n%q", got, want)
		case <-tick.C:
		}
	}
}

// TestRealFlows has real packets, translated as kube-proxy does.
func TestRealFlows(t *testing.T) {
	f := newFabric(t)
	table := New()
	pods := map[netip.Addr]string{netip.MustParseAddr("10.244.1.7"): "shop/web-1", netip.MustParseAddr("fd44::7"): "shop/web-1"}
	f.until(t, table, pods)

	one, two := f.dial(t, f.pod, "tcp", "10.96.0.5:80"), f.dial(t, f.pod, "tcp", "10.96.0.5:80")
	const pod = `"shop/web-1" 10.244.1.7`
	f.until(t, table, pods, `10.96.0.5:80/TCP shop/cart `+pod+` open=2`)
	must(t, one.Close())
	f.until(t, table, pods, `10.96.0.5:80/TCP shop/cart `+pod+` open=1`)
	ask(t, two)
	must(t, two.Close())
	f.until(t, table, pods, `10.96.0.5:80/TCP shop/cart `+pod+` open=0`)

	f.dial(t, f.pod, "udp", "10.96.0.10:53")
	f.until(t, table, pods, `10.96.0.10:53/UDP kube-system/dns `+pod+` open=1`, `10.96.0.5:80/TCP shop/cart `+pod+` open=0`)

	f.in(t, f.pod, func() { // nothing answers
		c, err := net.DialTimeout("tcp", "10.96.0.6:80", 200*time.Millisecond)
		if err == nil {
			_ = c.Close()
			t.Fatal("answered")
		}
	})
	f.dial(t, f.pod, "tcp", "[fd96::5]:80")
	half := f.dial(t, f.pod, "tcp", "10.96.0.5:80")
	must(t, half.(*net.TCPConn).CloseWrite()) // the server ends its half as well
	want := []string{
		`10.96.0.10:53/UDP kube-system/dns ` + pod + ` open=1`,
		`10.96.0.5:80/TCP shop/cart ` + pod + ` open=0`,
		`10.96.0.6:80/TCP shop/dead ` + pod + ` open=0`,
		`[fd96::5]:80/TCP shop/cart "shop/web-1" fd44::7 open=1`,
	}
	f.until(t, table, pods, want...)

	// A process of the node is a client, this one is not.
	f.dial(t, f.node, "tcp", "10.96.0.5:80")
	mine := f.dial(t, f.node, "tcp", "10.96.0.5:80")
	table.Own("tcp", mine.LocalAddr().(*net.TCPAddr).AddrPort(), mine.RemoteAddr().(*net.TCPAddr).AddrPort())
	f.until(t, table, pods, slices.Insert(want, 1, `10.96.0.5:80/TCP shop/cart "" 10.244.1.1 open=1`)...)
}

// fill makes entries, to an old address each hundredth of them.
func fill(t testing.TB, n int) {
	t.Helper()
	for i := range n {
		to := net.IPv4(10, 244, 9, 9).To4()
		if i%100 == 0 {
			to = net.IPv4(10, 96, 0, 5).To4()
		}
		from := net.IPv4(10, 244, byte(i>>16), byte(i>>8)).To4()
		port := uint16(i&0xff) + 1000
		must(t, netlink.ConntrackCreate(netlink.ConntrackTable, netlink.FAMILY_V4, &netlink.ConntrackFlow{
			FamilyType: unix.AF_INET,
			Forward:    netlink.IPTuple{SrcIP: from, DstIP: to, SrcPort: port, DstPort: 80, Protocol: unix.IPPROTO_TCP},
			Reverse:    netlink.IPTuple{SrcIP: to, DstIP: from, SrcPort: 80, DstPort: port, Protocol: unix.IPPROTO_TCP},
			TimeOut:    4000,
			ProtoInfo:  &netlink.ProtoInfoTCP{State: nl.TCP_CONNTRACK_ESTABLISHED},
		}))
	}
}

// TestManyFlows reads more entries than come in one message.
func TestManyFlows(t *testing.T) {
	ownnet.Enter(t)
	const n = 3000
	fill(t, n)
	seen, old := map[endpoints]bool{}, 0
	must(t, dump(func(f flow) {
		seen[f.endpoints] = true
		if f.to.Addr() == netip.MustParseAddr("10.96.0.5") {
			old++
		}
		if f.state != tcpEstablished || f.left > 4000 || f.left < 3000 {
			t.Errorf("read %+v", f)
		}
	}))
	if len(seen) != n || old != n/100 {
		t.Errorf("read %d entries, %d of them to the old address", len(seen), old)
	}
}

// BenchmarkClients looks at a table of 50,000 entries, and for comparison lets vishvananda/netlink
// list them.
func BenchmarkClients(b *testing.B) {
	ownnet.Enter(b)
	fill(b, 50000)
	b.ReportAllocs()
	moved := map[netip.Addr]string{netip.MustParseAddr("10.96.0.5"): "shop/cart"}
	table := New()
	for b.Loop() {
		all, err := table.Clients(moved, map[netip.Addr]string{})
		must(b, err)
		if len(all) == 0 {
			b.Fatal("no clients")
		}
	}
	report := func(what string, read func()) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		read()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), what+"-MiB")
	}
	report("held", func() { _, _ = table.Clients(moved, nil) })
	report("library", func() {
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		must(b, err)
		runtime.KeepAlive(all)
	})
}
