package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/verify/echoserver"
	"github.com/replumb/replumb/internal/verify/probe"
)

func start(t *testing.T, drain time.Duration) (*echoserver.Server, context.CancelFunc, <-chan error) {
	t.Helper()
	const anyPort = "127.0.0.1:0"
	s := &echoserver.Server{Identity: probe.EchoIdentity{Name: "cart", Node: "n1", Pod: "cart-1"}, Drain: drain}
	equip(s)
	if err := s.Listen(t.Context(), anyPort, anyPort, anyPort); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	return s, cancel, done
}

func fetch(t *testing.T, s *echoserver.Server, path string) (int, []byte) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	web, _, _ := s.Addresses()
	response, err := client.Get("http://" + web.String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, body
}

func TestAnswersCarryIdentity(t *testing.T) {
	s, cancel, done := start(t, 0)
	want := probe.EchoIdentity{Name: "cart", Node: "n1", Pod: "cart-1", Client: "127.0.0.1"}
	check := func(protocol string, answer []byte) {
		t.Helper()
		var got probe.EchoIdentity
		if err := json.Unmarshal(answer, &got); err != nil {
			t.Fatalf("%s: %v in %q", protocol, err, answer)
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", protocol, got, want)
		}
	}
	for _, path := range []string{"/", "/slow?ms=1"} {
		_, body := fetch(t, s, path)
		check("http "+path, body)
	}

	_, tcpAt, udpAt := s.Addresses()
	tcp, err := net.Dial("tcp", tcpAt.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tcp.Close() }()
	_, _ = fmt.Fprint(tcp, "17\nid\n")
	lines := bufio.NewScanner(tcp)
	if lines.Scan(); lines.Text() != "17" {
		t.Errorf("echo = %q", lines.Text())
	}
	lines.Scan()
	check("tcp", lines.Bytes())

	udp, err := net.Dial("udp", udpAt.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = udp.Close() }()
	_, _ = fmt.Fprint(udp, "hello")
	buffer := make([]byte, 1000)
	n, err := udp.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	check("udp", buffer[:n])
	_, _ = fmt.Fprint(udp, "replumb? 17")
	if n, err = udp.Read(buffer); err != nil || string(buffer[:n]) != "replumb! 17" {
		t.Errorf("a probe is answered %q, %v", buffer[:n], err)
	}

	cancel()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestBadRequests(t *testing.T) {
	s, _, _ := start(t, 0)
	for path, want := range map[string]int{
		"/healthz": 200, "/slow": 400, "/slow?ms=-1": 400, "/slow?ms=99999999": 400, "/nowhere": 404,
	} {
		if got, _ := fetch(t, s, path); got != want {
			t.Errorf("%s: status %d, want %d", path, got, want)
		}
	}
}

func TestServesWhileDraining(t *testing.T) {
	s, cancel, done := start(t, time.Hour)
	cancel()
	for !s.Draining() {
		// Each round is a request: it either comes before the signal was noticed or after.
		fetch(t, s, "/")
	}
	if got, _ := fetch(t, s, "/"); got != 200 {
		t.Errorf("status %d while draining", got)
	}
	if got, _ := fetch(t, s, "/healthz"); got != 503 {
		t.Errorf("healthz: status %d while draining, want 503", got)
	}
	select {
	case err := <-done:
		t.Errorf("stopped before the drain delay: %v", err)
	default:
	}
}
