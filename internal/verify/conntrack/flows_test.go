package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// standard are the time-outs of a kernel that was not changed.
func standard() timeouts { return readTimeouts("/nonexistent/") }

func TestTimeoutsAreRead(t *testing.T) {
	dir := t.TempDir()
	for name, body := range map[string]string{"x_tcp_timeout_established": "7200\n", "x_udp_timeout": "nonsense", "x_udp_timeout_stream": "180\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := standard()
	want.tcp[tcpEstablished], want.stream = 7200, 180
	if got := readTimeouts(filepath.Join(dir, "x_")); got != want {
		t.Errorf("read %+v, want %+v", got, want)
	}
}

func TestIdle(t *testing.T) {
	const day = 86400
	for _, tt := range []struct {
		name string
		flow flow
		want time.Duration
		open bool
	}{
		{"established, just now", flow{state: tcpEstablished, left: 5 * day}, 0, true},
		{"established, an hour ago", flow{state: tcpEstablished, left: 5*day - 3600}, time.Hour, true},
		{"established, not acknowledged", flow{state: tcpEstablished, left: 290}, 10 * time.Second, true},
		{"answered", flow{state: tcpSynReceived, left: 55}, 5 * time.Second, true},
		{"not answered", flow{state: tcpSynSent, left: 100}, 20 * time.Second, false},
		{"client has closed its half", flow{state: tcpCloseWait, left: 60}, 0, true},
		{"closed", flow{state: 7, left: 30}, 90 * time.Second, false},
		{"reset", flow{state: tcpClose, left: 4}, 6 * time.Second, false},
		{"more is left than there should be", flow{state: 7, left: 900}, 0, false},
		{"a state from the future", flow{state: 200, left: 3}, 0, false},
		{"UDP without an answer", flow{endpoints: endpoints{protocol: udp}, left: 10}, 20 * time.Second, true},
		{"UDP both ways", flow{endpoints: endpoints{protocol: udp}, assured: true, left: 10}, 110 * time.Second, true},
		{"SCTP", flow{endpoints: endpoints{protocol: sctp}, state: sctpEstablished, left: 200}, 10 * time.Second, true},
		{"SCTP that is ending", flow{endpoints: endpoints{protocol: sctp}, state: 5, left: 1}, 2 * time.Second, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.flow.protocol == 0 {
				tt.flow.protocol = tcp
			}
			limits := standard()
			if got := limits.idle(tt.flow); got != tt.want {
				t.Errorf("idle for %s, want %s", got, tt.want)
			}
			if got := tt.flow.open(); got != tt.open {
				t.Errorf("open: %v", got)
			}
		})
	}
	limits := standard()
	limits.short = [2]uint32{300, 100}
	if got := limits.idle(flow{endpoints: endpoints{protocol: tcp}, state: tcpEstablished, left: 90}); got != 10*time.Second {
		t.Errorf("of two short time-outs the one that puts the packet latest: %s", got)
	}
}

// scene is a Table with entries and a clock of the test's own.
type scene struct {
	*Table
	clock   time.Time
	entries []flow
	fails   error
	moved   map[netip.Addr]string
	pods    map[netip.Addr]string
}

func newScene() *scene {
	s := &scene{clock: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
	s.Table = New()
	s.now = func() time.Time { return s.clock }
	s.timeouts = standard
	s.read = func(each func(flow)) error {
		for _, f := range s.entries {
			each(f)
		}
		return s.fails
	}
	s.moved = map[netip.Addr]string{netip.MustParseAddr("10.96.0.5"): "shop/cart", netip.MustParseAddr("10.96.0.10"): "kube-system/dns"}
	s.pods = map[netip.Addr]string{
		netip.MustParseAddr("10.244.1.7"): "shop/web-1", netip.MustParseAddr("10.244.1.8"): "shop/web-2",
		netip.MustParseAddr("10.244.1.9"): "", // one of replumb's own
	}
	return s
}

func pair(protocol uint8, from, to string) endpoints {
	return endpoints{protocol, netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)}
}

func established(from, to string, left uint32) flow {
	return flow{endpoints: pair(tcp, from, to), state: tcpEstablished, left: left}
}

// look lists clients in short: address/protocol service client source open seconds-ago.
func (s *scene) look(t *testing.T) []string {
	t.Helper()
	all, err := s.Clients(s.moved, s.pods)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, c := range all {
		out = append(out, s.text(c))
	}
	return out
}

func (s *scene) text(c v1alpha1.OldAddressClient) string {
	return fmt.Sprintf("%s/%s %s %q %s open=%d %s", c.Address, c.Protocol, c.Service, c.Pod, c.Source, c.Open, s.clock.Sub(c.LastSeen.Time))
}

func (s *scene) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	if got := s.look(t); !slices.Equal(got, want) {
		t.Errorf("%s:\n%q\nwant\n%q", what, got, want)
	}
}

const fiveDays = 5 * 86400

func TestClients(t *testing.T) {
	s := newScene()
	s.entries = []flow{
		established("10.244.1.7:40000", "10.96.0.5:80", fiveDays-60),
		established("10.244.1.7:40001", "10.96.0.5:80", fiveDays-10),
		{endpoints: pair(tcp, "10.244.1.7:40002", "10.96.0.5:80"), state: 7, left: 115},
		established("10.244.1.7:40003", "10.96.0.5:443", fiveDays-40),
		established("10.244.1.8:40000", "10.96.0.5:80", fiveDays-50),
		{endpoints: pair(udp, "10.244.1.8:5353", "10.96.0.10:53"), assured: true, left: 119},
		{endpoints: pair(tcp, "10.244.1.8:40009", "10.96.0.10:53"), state: tcpSynSent, left: 90},
		established("192.0.2.1:40000", "10.96.0.5:80", fiveDays-70),
		established("10.244.1.7:40005", "172.24.0.5:80", fiveDays),   // a new address
		established("10.244.1.9:40005", "10.96.0.5:80", fiveDays),    // replumb's own
		established("10.244.9.1:40005", "10.244.1.8:8080", fiveDays), // translated on another node
	}
	s.expect(t, "all kinds",
		`10.96.0.10:53/UDP kube-system/dns "shop/web-2" 10.244.1.8 open=1 1s`,
		`10.96.0.5:80/TCP shop/cart "shop/web-1" 10.244.1.7 open=2 5s`,
		`10.96.0.10:53/TCP kube-system/dns "shop/web-2" 10.244.1.8 open=0 30s`,
		`10.96.0.5:443/TCP shop/cart "shop/web-1" 10.244.1.7 open=1 40s`,
		`10.96.0.5:80/TCP shop/cart "shop/web-2" 10.244.1.8 open=1 50s`,
		`10.96.0.5:80/TCP shop/cart "" 192.0.2.1 open=1 1m10s`,
	)
	s.fails = errors.New("interrupted")
	if _, err := s.Clients(s.moved, s.pods); !errors.Is(err, s.fails) {
		t.Errorf("half a table is a table: %v", err)
	}
}

// TestClientsAreRemembered looks again and again at what does not move, rounded as the kernel does,
// and at what does.
func TestClientsAreRemembered(t *testing.T) {
	s := newScene()
	f := established("10.244.1.7:40000", "10.96.0.5:80", fiveDays-3600)
	s.entries = []flow{f}
	s.expect(t, "open", `10.96.0.5:80/TCP shop/cart "shop/web-1" 10.244.1.7 open=1 1h0m0s`)
	first, _ := s.Clients(s.moved, s.pods)
	for i := range 5 {
		s.clock = s.clock.Add(10*time.Second + 300*time.Millisecond)
		s.entries[0].left = f.left - uint32(10*(i+1))
		again, _ := s.Clients(s.moved, s.pods)
		if len(again) != 1 || !again[0].LastSeen.Equal(&first[0].LastSeen) {
			t.Fatalf("seen %v, then %v", first, again)
		}
	}
	s.entries[0].left = fiveDays
	s.expect(t, "a packet", `10.96.0.5:80/TCP shop/cart "shop/web-1" 10.244.1.7 open=1 0s`)
	s.entries = nil
	s.clock = s.clock.Add(time.Minute)
	s.expect(t, "gone", `10.96.0.5:80/TCP shop/cart "shop/web-1" 10.244.1.7 open=0 1m0s`)
	s.moved = map[netip.Addr]string{}
	s.expect(t, "the Service is back")
	if len(s.known) != 0 {
		t.Errorf("remembers %v", s.known)
	}
}

func TestForgotten(t *testing.T) {
	s := newScene()
	s.entries = []flow{established("10.244.1.7:40000", "10.96.0.5:80", fiveDays)}
	s.expect(t, "open", `10.96.0.5:80/TCP shop/cart "shop/web-1" 10.244.1.7 open=1 0s`)
	s.entries = nil
	s.clock = s.clock.Add(Kept + time.Second)
	s.expect(t, "long gone")
	if len(s.known) != 0 {
		t.Errorf("remembers %v", s.known)
	}
}

// TestPodIsGone has an entry that was not closed, of a pod that ended, and its address going to
// another one.
func TestPodIsGone(t *testing.T) {
	s := newScene()
	s.entries = []flow{established("10.244.1.7:40000", "10.96.0.5:80", fiveDays-10)}
	s.expect(t, "open", `10.96.0.5:80/TCP shop/cart "shop/web-1" 10.244.1.7 open=1 10s`)
	address := netip.MustParseAddr("10.244.1.7")
	delete(s.pods, address)
	s.expect(t, "no such pod", `10.96.0.5:80/TCP shop/cart "shop/web-1" 10.244.1.7 open=0 10s`)
	s.pods[address] = "shop/other"
	s.expect(t, "another pod", `10.96.0.5:80/TCP shop/cart "shop/web-1" 10.244.1.7 open=0 10s`)
	for range 3 { // it does not come back as another client
		s.clock = s.clock.Add(Kept)
		s.entries[0].left -= 300
		s.expect(t, "much later")
	}
	s.entries = append(s.entries, established("10.244.1.7:40001", "10.96.0.5:80", fiveDays))
	s.expect(t, "the other pod is a client", `10.96.0.5:80/TCP shop/cart "shop/other" 10.244.1.7 open=1 0s`)
}

func TestPodIsKnownLater(t *testing.T) {
	s := newScene()
	pods := s.pods
	s.pods = nil
	s.entries = []flow{established("10.244.1.7:40000", "10.96.0.5:80", fiveDays-10)}
	s.expect(t, "before", `10.96.0.5:80/TCP shop/cart "" 10.244.1.7 open=1 10s`)
	s.pods = pods
	s.expect(t, "after", `10.96.0.5:80/TCP shop/cart "shop/web-1" 10.244.1.7 open=1 10s`)
}

func TestOwn(t *testing.T) {
	s := newScene()
	const mine, other, vip = "192.0.2.1:40000", "192.0.2.1:40001", "10.96.0.5:80"
	s.Own("tcp4", netip.MustParseAddrPort(mine), netip.MustParseAddrPort("[::ffff:10.96.0.5]:80"))
	s.Own("udp", netip.MustParseAddrPort("192.0.2.1:5353"), netip.MustParseAddrPort("10.96.0.10:53"))
	s.entries = []flow{
		established(mine, vip, fiveDays),
		established(other, vip, fiveDays-20),
		{endpoints: pair(udp, "192.0.2.1:5353", "10.96.0.10:53"), left: 30},
		{endpoints: pair(udp, "192.0.2.1:5354", "10.96.0.10:53"), left: 20},
		established("10.244.1.7:40000", vip, fiveDays-30),
	}
	want := []string{
		`10.96.0.10:53/UDP kube-system/dns "" 192.0.2.1 open=1 10s`,
		`10.96.0.5:80/TCP shop/cart "" 192.0.2.1 open=1 20s`,
		`10.96.0.5:80/TCP shop/cart "shop/web-1" 10.244.1.7 open=1 30s`,
	}
	s.expect(t, "own flows do not count", want...)

	// As long as the entry is there, it is one's own; afterwards it is forgotten.
	s.entries, s.moved = s.entries[:1], map[netip.Addr]string{netip.MustParseAddr("10.96.0.5"): "shop/cart"}
	s.known = nil
	for range 10 {
		s.clock = s.clock.Add(ownGrace - time.Second)
		s.expect(t, "for hours")
	}
	if len(s.own.young)+len(s.own.old) == 0 {
		t.Error("remembers nothing")
	}
	s.entries = nil
	for range 2 {
		s.clock = s.clock.Add(ownGrace + time.Second)
		s.expect(t, "nothing")
	}
	if n := len(s.own.young) + len(s.own.old); n != 0 {
		t.Errorf("remembers %d", n)
	}
}

// TestOwnIsToldLate has flows of the node that have only just begun: whose they are is judged with
// the next look.
func TestOwnIsToldLate(t *testing.T) {
	s := newScene()
	s.entries = []flow{
		established("192.0.2.1:1", "10.96.0.5:80", fiveDays),
		established("192.0.2.1:2", "10.96.0.5:80", fiveDays),
		{endpoints: pair(tcp, "192.0.2.1:3", "10.96.0.5:443"), state: tcpClose, left: 10},
	}
	s.expect(t, "only just")
	s.Own("tcp", netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("10.96.0.5:80"))
	s.clock = s.clock.Add(10 * time.Second)
	s.entries = s.entries[:2]
	s.expect(t, "then", // also what is gone by now
		`10.96.0.5:80/TCP shop/cart "" 192.0.2.1 open=1 0s`,
		`10.96.0.5:443/TCP shop/cart "" 192.0.2.1 open=0 10s`)
}

// TestProcessIsBusy has a process of the node send all the time, and one do so now and then: both
// are there with every look.
func TestProcessIsBusy(t *testing.T) {
	s := newScene()
	s.entries = []flow{established("192.0.2.1:1", "10.96.0.5:80", fiveDays), established("192.0.2.2:2", "10.96.0.5:81", fiveDays-20)}
	s.expect(t, "the first", `10.96.0.5:81/TCP shop/cart "" 192.0.2.2 open=1 20s`)
	s.entries[1].left = fiveDays
	for range 4 {
		s.clock = s.clock.Add(5 * time.Second)
		s.expect(t, "every other",
			`10.96.0.5:80/TCP shop/cart "" 192.0.2.1 open=1 0s`, `10.96.0.5:81/TCP shop/cart "" 192.0.2.2 open=1 0s`)
	}
	s.entries = nil
	s.clock = s.clock.Add(5 * time.Second)
	s.expect(t, "gone",
		`10.96.0.5:80/TCP shop/cart "" 192.0.2.1 open=0 5s`, `10.96.0.5:81/TCP shop/cart "" 192.0.2.2 open=0 5s`)
}

// TestOwnDialFailed has what dials leave behind that came to nothing.
func TestOwnDialFailed(t *testing.T) {
	s := newScene()
	s.Own("tcp", netip.AddrPort{}, netip.MustParseAddrPort("10.96.0.5:80"))
	s.entries = []flow{
		{endpoints: pair(tcp, "192.0.2.1:1", "10.96.0.5:80"), state: tcpSynSent, left: 100},
		{endpoints: pair(tcp, "192.0.2.1:1", "10.96.0.5:81"), state: tcpSynSent, left: 100},
		{endpoints: pair(tcp, "10.244.1.7:1", "10.96.0.5:80"), state: tcpSynSent, left: 100},
		established("192.0.2.1:2", "10.96.0.5:80", fiveDays-50),
	}
	s.expect(t, "half open",
		`10.96.0.5:80/TCP shop/cart "shop/web-1" 10.244.1.7 open=0 20s`,
		`10.96.0.5:81/TCP shop/cart "" 192.0.2.1 open=0 20s`,
		`10.96.0.5:80/TCP shop/cart "" 192.0.2.1 open=1 50s`)
}

// TestOwnIsBounded tells more flows than any node has, with a table that can't be read.
func TestOwnIsBounded(t *testing.T) {
	s := newScene()
	remote := netip.MustParseAddrPort("10.96.0.5:80")
	for i := range 3 * ownMany {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		s.Own("tcp", netip.AddrPortFrom(a, 1), remote)
	}
	if n := len(s.own.young) + len(s.own.old); n > 2*ownMany {
		t.Errorf("remembers %d", n)
	}
}
