//go:build root

package masquerade

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/replumb/replumb/internal/testing/ownnet"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run a program of the machine, in the namespace of this thread, and never in the machine's own: a
// subtest has another thread than its test, and what it flushed there would be everybody's.
func run(t *testing.T, in string, words ...string) string {
	t.Helper()
	machine, err := os.Readlink(
		fmt.Sprintf("/proc/%d/ns/net", os.Getppid()),
	) // of go test; the thread of a test may be this process's first
	must(t, err)
	here, err := os.Readlink("/proc/thread-self/ns/net")
	must(t, err)
	if here == machine {
		t.Fatalf("%v would run in the network of the machine; call alone in this subtest", words)
	}
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

// world is a node that leads from the pod of one network to that of another, each in a namespace of
// its own.
type world struct{ node, old, fresh netns.NsHandle }

const (
	oldPod, oldPod6     = "10.244.1.2", "fd00:1::2"
	freshPod, freshPod6 = "192.168.1.2", "fd00:2::2"
)

func aWorld(t *testing.T) *world {
	t.Helper()
	w := &world{node: ownnet.Enter(t)}
	w.old = w.pod(t, "old", "10.244.1.", "fd00:1::")
	w.fresh = w.pod(t, "fresh", "192.168.1.", "fd00:2::")
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		must(t, os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0))
	}
	return w
}

// pod is one at the node, whose end is called by its name.
func (w *world) pod(t *testing.T, name, in, in6 string) netns.NsHandle {
	t.Helper()
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() { must(t, ns.Close()) })
	must(t, netns.Set(w.node))
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}))
	addresses(t, name, in+"1/24", in6+"1/64")
	inside(t, w.node, ns, func() {
		addresses(t, "eth0", in+"2/24", in6+"2/64")
		run(t, "", "ip", "route", "add", "default", "via", in+"1")
		run(t, "", "ip", "-6", "route", "add", "default", "via", in6+"1")
	})
	return ns
}

func addresses(t *testing.T, link, address, address6 string) {
	t.Helper()
	run(t, "", "ip", "address", "add", address, "dev", link)
	run(t, "", "ip", "address", "add", address6, "dev", link, "nodad")
	run(t, "", "ip", "link", "set", link, "up")
}

// inside does something in another namespace. What is opened there stays there.
func inside(t *testing.T, here, there netns.NsHandle, do func()) {
	t.Helper()
	must(t, netns.Set(there))
	defer func() { must(t, netns.Set(here)) }()
	do()
}

// flow is a connection from the pod of the old network to that of the new one.
type flow struct {
	t              *testing.T
	client, server net.PacketConn
	to             net.Addr
}

func (w *world) flow(t *testing.T, from, to string) *flow {
	t.Helper()
	f := &flow{t: t}
	listen := func(at string) net.PacketConn {
		c, err := net.ListenPacket("udp", net.JoinHostPort(at, "0"))
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	inside(t, w.node, w.old, func() { f.client = listen(from) })
	inside(t, w.node, w.fresh, func() { f.server = listen(to) })
	f.to = f.server.LocalAddr()
	return f
}

// seen is the address that the server sees, which answers to it: the answer has to come back too.
// Which address it is, and not whether a datagram is lost while neighbours are found, is what
// matters: the client asks again until it has an answer.
func (f *flow) seen() string {
	f.t.Helper()
	answered := make(chan struct{})
	defer close(answered)
	go f.ask(answered)
	from := f.receive(f.server, "ask")
	_, err := f.server.WriteTo([]byte("answer"), from)
	must(f.t, err)
	if back := f.receive(f.client, "answer"); back.String() != f.to.String() {
		f.t.Errorf("the answer comes from %s, not %s", back, f.to)
	}
	return netip.MustParseAddrPort(from.String()).Addr().String()
}

// ask asks every second until there is an answer. An error shows in that none comes.
func (f *flow) ask(answered <-chan struct{}) {
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		_, _ = f.client.WriteTo([]byte("ask"), f.to)
		select {
		case <-answered:
			return
		case <-again.C:
		}
	}
}

func (f *flow) receive(c net.PacketConn, want string) net.Addr {
	f.t.Helper()
	must(f.t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	b := make([]byte, 100)
	n, from, err := c.ReadFrom(b)
	must(f.t, err)
	if string(b[:n]) != want {
		f.t.Fatalf("got %q, not %q", b[:n], want)
	}
	return from
}

// sees fails the test unless a new connection has that address, in both families.
func (w *world) sees(t *testing.T, when, want, want6 string) {
	t.Helper()
	for _, tt := range []struct{ from, to, want string }{{oldPod, freshPod, want}, {oldPod6, freshPod6, want6}} {
		if got := w.flow(t, tt.from, tt.to).seen(); got != tt.want {
			t.Errorf("%s: the pod at %s sees %s, not %s", when, tt.to, got, tt.want)
		}
	}
}

// Masquerading as flannel, Calico and kube-proxy have it, by each of the ways in which rules are
// written.
const (
	withNft = `table %[1]s others { chain postrouting {
	type nat hook postrouting priority srcnat; %[1]s saddr %[2]s %[1]s daddr != 224.0.0.0/4 masquerade fully-random
}; }
`
	withNft6 = `table %[1]s others { chain postrouting {
	type nat hook postrouting priority srcnat; %[1]s saddr %[2]s masquerade fully-random
}; }
`
	withIptables = `*nat
:FLANNEL-POSTRTG - [0:0]
-A POSTROUTING -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -s %s -j MASQUERADE --random-fully
COMMIT
`
)

func masquerade(t *testing.T, by string) {
	t.Helper()
	if by == "nftables" {
		run(t, fmt.Sprintf(withNft, "ip", "10.244.0.0/16")+fmt.Sprintf(withNft6, "ip6", "fd00:1::/64"), "nft", "-f", "-")
		return
	}
	run(t, fmt.Sprintf(withIptables, "10.244.0.0/16"), "iptables-"+by+"-restore")
	run(t, fmt.Sprintf(withIptables, "fd00:1::/64"), "ip6tables-"+by+"-restore")
}

func testPairs(t *testing.T) []RangePair {
	t.Helper()
	pairs, err := Pairs(ranges("10.244.0.0/16", "fd00:1::/64", "192.168.0.0/16", "fd00:2::/64"))
	must(t, err)
	return pairs
}

// accepting is what does not help: the same rules, that accept.
const accepting = `
table ip replumb-crossing { chain postrouting { type nat hook postrouting priority 90; ip saddr 10.244.0.0/16 ip daddr 192.168.0.0/16 accept; }; }
table ip6 replumb-crossing { chain postrouting { type nat hook postrouting priority 90; ip6 saddr fd00:1::/64 ip6 daddr fd00:2::/64 accept; }; }
`

// TestPodsSeeEachOther has packets go from one network to the other through a node that
// masquerades. Without the rules the other pod sees the node, and also with rules that accept; with
// them it sees the pod. What leaves to elsewhere is masqueraded as before.
func TestPodsSeeEachOther(t *testing.T) {
	const node, node6 = "192.168.1.1", "fd00:2::1"
	for _, by := range []string{"nftables", "nft", "legacy"} {
		t.Run(by, func(t *testing.T) {
			w := aWorld(t)
			w.sees(t, "nothing masquerades", oldPod, oldPod6)
			masquerade(t, by)
			w.sees(t, "without rules", node, node6)
			open := w.flow(t, oldPod, freshPod)
			if got := open.seen(); got != node {
				t.Errorf("it has %s", got)
			}
			run(t, accepting, "nft", "-f", "-")
			w.sees(t, "with rules that accept", node, node6)
			changed, err := Apply(testPairs(t))
			must(t, err)
			if !changed {
				t.Error("rules that accept were taken for ours")
			}
			w.sees(t, "with rules", oldPod, oldPod6)
			kept := w.flow(t, oldPod, freshPod)
			for range 2 {
				if got := kept.seen(); got != oldPod {
					t.Errorf("the pod sees %s", got)
				}
				if got := open.seen(); got != node {
					t.Errorf("what was open before has %s now", got)
				}
				must(t, Remove()) // which takes no address from what is open
			}
			w.sees(t, "with the rules removed", node, node6)
		})
	}
}

// TestElsewhere: what leaves for any other address is masqueraded as before.
func TestElsewhere(t *testing.T) {
	w := aWorld(t)
	inside(t, w.node, w.fresh, func() { run(t, "", "ip", "address", "add", "203.0.113.5/32", "dev", "eth0") })
	run(t, "", "ip", "route", "add", "203.0.113.5/32", "via", freshPod)
	masquerade(t, "nftables")
	_, err := Apply(testPairs(t))
	must(t, err)
	if got := w.flow(t, oldPod, "203.0.113.5").seen(); got != "192.168.1.1" {
		t.Errorf("the world sees %s", got)
	}
}

const firewall = "table inet firewall { chain in { type filter hook input priority 0; policy drop; iif lo accept; }; }"

// TestPut: what is there already is left alone, and whatever differs is put right, beside the
// tables of others.
func TestPut(t *testing.T) {
	for name, change := range map[string]string{
		"nothing there":   "delete table ip replumb-crossing; delete table ip6 replumb-crossing",
		"one family gone": "delete table ip6 replumb-crossing",
		"no rules":        "flush chain ip replumb-crossing postrouting",
		"one rule more":   "insert rule ip replumb-crossing postrouting accept",
		"other rules": "flush chain ip replumb-crossing postrouting" +
			strings.Repeat("; add rule ip replumb-crossing postrouting masquerade", 2),
		"another chain too": "add chain ip replumb-crossing more",
		"it comes too late": "delete table ip replumb-crossing; " +
			"add table ip replumb-crossing; add chain ip replumb-crossing postrouting { type nat hook postrouting priority 110; }",
	} {
		t.Run(name, func(t *testing.T) {
			ownnet.Enter(t)
			pairs := testPairs(t)
			run(t, firewall, "nft", "-f", "-")
			missing := (*MissingError)(nil)
			if err := Check(pairs); !errors.As(err, &missing) {
				t.Errorf("with no table it is %v", err)
			}
			requirePut(t, pairs)
			run(t, change, "nft", "-f", "-")
			if err := Check(pairs); !errors.As(err, &missing) {
				t.Errorf("it is %v", err)
			}
			requirePut(t, pairs)
			if out := run(t, "", "nft", "list", "table", "inet", "firewall"); !strings.Contains(out, "policy drop") {
				t.Errorf("others have %s", out)
			}
		})
	}
}

// requirePut puts the rules there, the first time by a change and the second time by none.
func requirePut(t *testing.T, pairs []RangePair) {
	t.Helper()
	for i, want := range []bool{true, false} {
		if changed, err := Apply(pairs); err != nil || changed != want {
			t.Errorf("time %d: that it changes something is %v, %v", i+1, changed, err)
		}
		must(t, Check(pairs))
	}
}

// TestRemove: of other ranges nothing is left, and of others everything.
func TestRemove(t *testing.T) {
	ownnet.Enter(t)
	must(t, Remove()) // of nothing
	run(t, firewall, "nft", "-f", "-")
	requirePut(t, testPairs(t))
	fewer, err := Pairs(ranges("10.244.0.0/16", "192.168.0.0/16"))
	must(t, err)
	requirePut(t, fewer)
	if out := run(t, "", "nft", "list", "tables"); strings.Contains(out, "ip6 ") {
		t.Errorf("of other ranges there is still %s", out)
	}
	for range 2 {
		must(t, Remove())
		if out := run(t, "", "nft", "list", "tables"); strings.TrimSpace(out) != "table inet firewall" {
			t.Errorf("left: %s", out)
		}
	}
}

// TestAsNftWritesIt: people who look at a node read what is meant.
func TestAsNftWritesIt(t *testing.T) {
	ownnet.Enter(t)
	_, err := Apply(testPairs(t))
	must(t, err)
	out := run(t, "", "nft", "list", "ruleset")
	for _, want := range []string{
		"type nat hook postrouting priority srcnat - 10; policy accept;",
		"ip saddr 10.244.0.0/16 ip daddr 192.168.0.0/16 snat to ip saddr",
		"ip6 saddr fd00:2::/64 ip6 daddr fd00:1::/64 snat to ip6 saddr",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

// TestKeep: what someone flushes comes back, and an end leaves it.
func TestKeep(t *testing.T) {
	own := ownnet.Enter(t)
	pairs := testPairs(t)
	ctx, cancel := context.WithCancel(t.Context())
	said, ended := make(chan error, 10), make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		if err := netns.Set(own); err != nil {
			ended <- err
			return
		}
		ended <- Maintain(ctx, pairs, 10*time.Millisecond, func(err error) { said <- err })
	}()
	appears(t, pairs)
	run(t, "flush ruleset", "nft", "-f", "-")
	appears(t, pairs)
	select {
	case err := <-said:
		if !strings.Contains(err.Error(), "is back") {
			t.Errorf("it says %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it says nothing")
	}
	cancel()
	must(t, <-ended)
	must(t, Check(pairs))
}

func appears(t *testing.T, pairs []RangePair) {
	t.Helper()
	var err error
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); {
		if err = Check(pairs); err == nil {
			return
		}
	}
	t.Fatal(err)
}
