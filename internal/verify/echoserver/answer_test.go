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

// serve runs a server on loopback. The returned function asks it to end, and gives what Serve
// returned.
func serve(t *testing.T, drain time.Duration) (s *Server, end func() error) {
	t.Helper()
	s = &Server{Identity: probe.EchoIdentity{Name: "probe-x", Pod: "probe-x"}, Drain: drain}
	if err := s.Listen(t.Context(), "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(cancel)
	return s, func() error { cancel(); return <-ended }
}

func TestAnswers(t *testing.T) {
	s, end := serve(t, 0)
	web, tcp, udp := s.Addresses()

	response, err := http.Get("http://" + web.String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil || response.StatusCode != http.StatusOK || strings.TrimSpace(string(body)) != "probe-x" {
		t.Errorf("HTTP: %d %q, %v", response.StatusCode, body, err)
	}

	conn := dial(t, "tcp", tcp)
	lines := bufio.NewScanner(conn)
	for _, tt := range []struct{ line, want string }{
		{"1", "1"}, {"23", "23"}, {probe.IdentityRequest, `{"name":"probe-x","node":"","pod":"probe-x","client":"127.0.0.1"}`},
	} {
		if _, err := fmt.Fprintln(conn, tt.line); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || lines.Text() != tt.want {
			t.Errorf("line %q echoed as %q, want %q", tt.line, lines.Text(), tt.want)
		}
	}
	_ = conn.Close()

	conn = dial(t, "udp", udp)
	for _, sent := range []string{"77", "replumb! 77", "replumb? 77"} { // the first two are no questions
		if _, err := conn.Write([]byte(sent)); err != nil {
			t.Fatal(err)
		}
	}
	echo := make([]byte, 20)
	if n, err := conn.Read(echo); err != nil || string(echo[:n]) != "replumb! 77" {
		t.Errorf("UDP: %q, %v", echo[:n], err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

func dial(t *testing.T, network string, to net.Addr) net.Conn {
	t.Helper()
	conn, err := net.Dial(network, to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestGoodbye has a server end whose client leaves when asked, and one whose client does not.
func TestGoodbye(t *testing.T) {
	for _, polite := range []bool{true, false} {
		s, end := serve(t, 100*time.Millisecond)
		tcp := s.tcp.Addr()
		conn := dial(t, "tcp", tcp)
		lines := bufio.NewScanner(conn)
		if _, err := fmt.Fprintln(conn, "1"); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
		ended := make(chan error, 1)
		go func() { ended <- end() }()
		if !lines.Scan() || lines.Text() != probe.Goodbye {
			t.Errorf("was sent %q, want a goodbye", lines.Text())
		}
		if polite { // and is answered to the end
			if _, err := fmt.Fprintln(conn, "2"); err != nil {
				t.Fatal(err)
			}
			if !lines.Scan() || lines.Text() != "2" {
				t.Errorf("after the goodbye line 2 is echoed as %q", lines.Text())
			}
			_ = conn.Close()
		} else if lines.Scan() {
			t.Errorf("was sent %q after the goodbye", lines.Text())
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestStreamGoesOn has the prober's own stream call it: a server that ends loses none of its lines.
func TestStreamGoesOn(t *testing.T) {
	s, end := serve(t, 200*time.Millisecond)
	tcp := s.tcp.Addr()
	config, err := probe.Config{Targets: []probe.Target{
		{Name: "stream", Kind: probe.Stream, Address: tcp.String(), Rate: 50},
	}}.Resolve("")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sent, failed := 0, 0
	answered := make(chan struct{}, 1)
	prober := probe.New(config, func(w probe.Interval) error {
		sent, failed = sent+w.Sent, failed+w.Failed
		select {
		case answered <- struct{}{}:
		default:
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- prober.Run(ctx) }()
	<-answered
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if sent == 0 || failed != 0 {
		t.Errorf("%d of %d lines failed", failed, sent)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

func TestListenFails(t *testing.T) {
	s, end := serve(t, 0)
	web, tcp, udp := s.Addresses()
	other := &Server{}
	for _, at := range [][3]string{
		{web.String(), "127.0.0.1:0", "127.0.0.1:0"}, {"127.0.0.1:0", tcp.String(), "127.0.0.1:0"}, {"127.0.0.1:0", "127.0.0.1:0", udp.String()},
	} {
		if err := other.Listen(t.Context(), at[0], at[1], at[2]); err == nil {
			t.Errorf("listens at %v beside another", at)
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}
