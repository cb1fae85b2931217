//go:build root

package proxyrules

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/testing/ownnet"
)

// in calls f in a network namespace.
func in(t *testing.T, ns netns.NsHandle, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with this goroutine
		err := netns.Set(ns)
		if err == nil {
			f()
		}
		done <- err
	}()
	must(t, <-done)
}

// place adds a namespace with one address to the node that the test is in.
func place(t *testing.T, name, address string) netns.NsHandle {
	t.Helper()
	node, err := netns.Get()
	must(t, err)
	own, err := netns.New()
	must(t, err)
	must(t, netns.Set(node))
	t.Cleanup(func() { _, _ = own.Close(), node.Close() })
	must(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(own)),
	}))
	program(t, "", "sh", "-c", fmt.Sprintf("ip link set %s up && ip addr add 169.254.1.1/32 dev %[1]s && ip route add %s/32 dev %[1]s", name, address))
	in(t, own, func() {
		program(t, "", "sh", "-c", fmt.Sprintf(`ip link set lo up && ip link set eth0 up && ip addr add %s/32 dev eth0 &&
			ip route add 169.254.1.1/32 dev eth0 && ip route add default via 169.254.1.1`, address))
	})
	return own
}

// TestTheCopyMasquerades: who calls a Service of each kind is seen by its pod as in mode ipvs: pods
// as themselves, but for a pod that calls itself; others by policy.
func TestTheCopyMasquerades(t *testing.T) {
	shown := readIPVSInput(t)
	ownnet.Enter(t)
	program(t, "", "sh", "-c", "sysctl -qw net.ipv4.ip_forward=1 && ip link set lo up && ip addr add 172.30.0.1/32 dev lo")
	places := map[string]netns.NsHandle{}
	for name, address := range map[string]string{"pod": "10.244.0.5", "other": "10.244.0.6", "outside": "172.31.0.9"} {
		places[name] = place(t, name, address)
	}
	in(t, places["pod"], func() { tellClients(t) })
	text, _, err := FromIPVS("ip", regexp.MustCompile(`(?m)^  -> 0AF4(0006|0107):.*\n`).ReplaceAllString(shown.servers, ""), shown.sets, shown.save)
	must(t, err)
	program(t, text, "nft", "-f", "-")

	const node = "169.254.1.1"
	for _, tt := range []struct{ from, to, want string }{
		{"other", "10.96.0.20:80", "10.244.0.6"},
		{"pod", "10.96.0.20:80", node},
		{"outside", "10.96.0.20:80", node},
		{"outside", "10.96.0.21:80", node},
		{"outside", "192.0.2.24:80", node},
		{"outside", "192.0.2.25:80", node},
		{"outside", "192.0.2.26:80", "172.31.0.9"},
		{"outside", "172.30.0.1:30080", node},
		{"outside", "172.30.0.1:30081", "172.31.0.9"},
		{"other", "192.0.2.29:80", node},
		{"outside", "192.0.2.29:80", ""},
	} {
		if got := seenAs(t, places[tt.from], tt.to); got != tt.want {
			t.Errorf("%s to %s is seen as %q, want %q", tt.from, tt.to, got, tt.want)
		}
	}
	clean(t, nodecleanup.CopiedRules)
	if got := seenAs(t, places["other"], "10.96.0.20:80"); got != "" {
		t.Errorf("without the copy a call is seen as %q", got)
	}
}

// tellClients tells who connects to port 8080 its address.
func tellClients(t *testing.T) {
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", ":8080")
	if err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = io.WriteString(c, host)
			_ = c.Close()
		}
	}()
}

// seenAs is the address by which a call is seen; empty, if it is not answered.
func seenAs(t *testing.T, from netns.NsHandle, to string) (seen string) {
	t.Helper()
	in(t, from, func() {
		d := net.Dialer{Timeout: time.Second}
		c, err := d.DialContext(t.Context(), "tcp", to)
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		data, _ := io.ReadAll(c)
		seen = strings.TrimSpace(string(data))
	})
	return seen
}
