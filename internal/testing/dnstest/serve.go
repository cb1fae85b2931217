package dnstest

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// FreePort is one that is free on every address, over UDP and TCP.
func FreePort(t testing.TB, addresses ...string) string {
	t.Helper()
	var l net.ListenConfig
	for range 50 {
		var all []interface{ Close() error }
		port, ok := "0", true
		for _, a := range addresses {
			tcp, err := l.Listen(context.Background(), "tcp", net.JoinHostPort(a, port))
			if err != nil {
				ok = false
				break
			}
			all = append(all, tcp)
			port = strconv.Itoa(tcp.Addr().(*net.TCPAddr).Port)
			udp, err := l.ListenPacket(context.Background(), "udp", net.JoinHostPort(a, port))
			if err != nil {
				ok = false
				break
			}
			all = append(all, udp)
		}
		for _, c := range all {
			_ = c.Close()
		}
		if ok {
			return port
		}
	}
	t.Fatal("no port is free on all of ", addresses)
	return ""
}

// Serve answers at address:port over UDP and TCP until the test ends.
func Serve(t testing.TB, address, port string, secrets map[string]string, h dns.HandlerFunc) string {
	t.Helper()
	at := net.JoinHostPort(address, port)
	for _, network := range []string{"udp", "tcp"} {
		up := make(chan struct{})
		s := &dns.Server{
			Addr: at, Net: network, Handler: h, TsigSecret: secrets, NotifyStartedFunc: func() { close(up) },
			MsgAcceptFunc: func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept }, // updates as well
		}
		failed := make(chan error, 1)
		go func() { failed <- s.ListenAndServe() }()
		select {
		case <-up:
		case err := <-failed:
			t.Fatal(err)
		case <-time.After(5 * time.Second):
			t.Fatal("the server does not come up")
		}
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return at
}
