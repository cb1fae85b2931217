package echoserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
)

// guarded runs a server with limits on loopback.
func guarded(t *testing.T, limits Limits) *Server {
	t.Helper()
	s := &Server{Identity: probe.EchoIdentity{Name: "probe-x"}, Limits: limits}
	if err := s.Listen(t.Context(), "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestServersDoNotAnswerEachOther sends one datagram to a server in the name of another.
func TestServersDoNotAnswerEachOther(t *testing.T) {
	s := guarded(t, ForAgents())
	_, _, udp := s.Addresses()
	other, err := net.ListenPacket("udp", "127.0.0.1:0") // where the other server listens
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if _, err := other.WriteTo([]byte("replumb? 1"), udp); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	if err := other.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, _, err := other.ReadFrom(buffer)
	if err != nil {
		t.Fatal(err)
	}
	if next := s.answer(buffer[:n], udp); next != nil {
		t.Errorf("%q is answered with %q", buffer[:n], next)
	}
	for _, port := range []int{7, 19, 53, 123} {
		if next := s.answer([]byte("replumb? 1"), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}); next != nil {
			t.Errorf("port %d is answered", port)
		}
	}
	if next := s.answer([]byte("replumb? "+strings.Repeat("1", 100)), other.LocalAddr()); next != nil {
		t.Errorf("%d bytes are answered", len(next))
	}
}

// TestIdleConnectionsDoNotKeepOthersOut has one client open more than it may, and leave them idle.
func TestIdleConnectionsDoNotKeepOthersOut(t *testing.T) {
	s := guarded(t, Limits{Connections: 3, FromOne: 2, Idle: 300 * time.Millisecond})
	web, tcp, _ := s.Addresses()
	var idle []net.Conn
	for range 3 {
		conn := dial(t, "tcp", tcp)
		answers(t, conn, "1")
		idle = append(idle, conn)
	}
	closed(t, idle[0], "the first of one too many")
	answers(t, idle[2], "2")
	if response, err := http.Get("http://" + web.String() + "/"); err != nil { // the other port is another matter
		t.Error(err)
	} else {
		_ = response.Body.Close()
	}
	for _, conn := range idle {
		closed(t, conn, "an idle one")
	}
	answers(t, dial(t, "tcp", tcp), "2")
}

// TestOthersDoNotKeepAgentsOut: eight addresses hold as many connections as there may be. An agent
// with a stream, and another one behind the address of one of the eight, are answered all the same.
func TestOthersDoNotKeepAgentsOut(t *testing.T) {
	limits := Limits{Connections: 64, FromOne: 8, Idle: time.Minute}
	_, tcp, _ := guarded(t, limits).Addresses()
	stream := dial(t, "tcp", tcp)
	answers(t, stream, "1")
	fill := func() {
		for i := 2; i < 10; i++ {
			for range limits.FromOne {
				answers(t, dialFrom(t, net.IPv4(127, 0, 0, byte(i)), tcp), "0")
			}
		}
	}
	fill()
	answers(t, stream, "2")
	answers(t, dial(t, "tcp", tcp), "3")
	answers(t, dialFrom(t, net.IPv4(127, 0, 0, 2), tcp), "4")
	fill()
	answers(t, stream, "5")
}

func dialFrom(t *testing.T, from net.IP, to net.Addr) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestAnEndlessLine ends the connection, and takes no memory.
func TestAnEndlessLine(t *testing.T) {
	_, tcp, _ := guarded(t, ForAgents()).Addresses()
	conn := dial(t, "tcp", tcp)
	if _, err := conn.Write([]byte(strings.Repeat("x", longestLine+1))); err != nil {
		t.Fatal(err)
	}
	closed(t, conn, "an endless line")
}

// TestStreamsGoOn: a stream that is not idle lives longer than an idle one may.
func TestStreamsGoOn(t *testing.T) {
	_, tcp, _ := guarded(t, Limits{Connections: 3, FromOne: 2, Idle: 500 * time.Millisecond}).Addresses()
	conn := dial(t, "tcp", tcp)
	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	for i := range 10 {
		<-every.C
		answers(t, conn, fmt.Sprint(i))
	}
}

func answers(t *testing.T, conn net.Conn, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(conn, line); err != nil {
		t.Fatal(err)
	}
	got, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || strings.TrimSpace(got) != line {
		t.Fatalf("line %s echoed as %q, %v", line, got, err)
	}
}

// closed fails the test unless the server closes a connection.
func closed(t *testing.T, conn net.Conn, what string) {
	t.Helper()
	if _, err := io.Copy(io.Discard, conn); err != nil {
		if timeout, is := err.(net.Error); is && timeout.Timeout() { //nolint:errorlint // as net returns it
			t.Errorf("%s is left open", what)
		}
	}
}
