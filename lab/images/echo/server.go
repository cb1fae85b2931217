package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/replumb/replumb/internal/probe"
)

// Identity is what every answer carries; probe checks it.
type Identity = probe.Identity

// Addresses are the listening addresses.
type Addresses struct{ HTTP, TCP, UDP string }

// maxSlow bounds how long /slow may hold a request.
const maxSlow = time.Minute

type server struct {
	identity Identity
	drain    time.Duration
	http     net.Listener
	tcp      net.Listener
	udp      net.PacketConn
	draining atomic.Bool

	echoing   sync.WaitGroup
	mu        sync.Mutex
	conns     map[net.Conn]struct{}
	dismissed bool
}

func listen(ctx context.Context, at Addresses, identity Identity, drain time.Duration) (*server, error) {
	s := &server{identity: identity, drain: drain, conns: map[net.Conn]struct{}{}}
	var config net.ListenConfig
	var err error
	if s.http, err = config.Listen(ctx, "tcp", at.HTTP); err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	if s.tcp, err = config.Listen(ctx, "tcp", at.TCP); err != nil {
		_ = s.http.Close()
		return nil, fmt.Errorf("listen for TCP: %w", err)
	}
	if s.udp, err = config.ListenPacket(ctx, "udp", at.UDP); err != nil {
		_ = s.http.Close()
		_ = s.tcp.Close()
		return nil, fmt.Errorf("listen for UDP: %w", err)
	}
	return s, nil
}

// serve answers until ctx ends, and then for the drain delay: other nodes still send here until they have heard that
// the pod is going away, and what they send must not be lost.
func (s *server) serve(ctx context.Context) error {
	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: maxSlow}
	failed := make(chan error, 3)
	go func() { failed <- web.Serve(s.http) }()
	go func() { failed <- s.serveTCP() }()
	go func() { failed <- s.serveUDP() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.draining.Store(true)
	select {
	case err := <-failed:
		return err
	case <-time.After(s.drain):
	}
	_ = s.tcp.Close()
	_ = s.udp.Close()
	s.dismiss()
	s.awaitDismissed()
	last, cancel := context.WithTimeout(context.Background(), max(s.drain, time.Second))
	defer cancel()
	return web.Shutdown(last)
}

// dismiss asks the clients of all long-lived connections to go on over another one, which leads them elsewhere by now.
func (s *server) dismiss() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dismissed = true
	for conn := range s.conns {
		// One write is one piece, so it does not land within an echo.
		_, _ = fmt.Fprintln(conn, probe.Goodbye)
	}
}

// awaitDismissed waits until they have done so, or have had as long as draining took.
func (s *server) awaitDismissed() {
	gone := make(chan struct{})
	go func() { s.echoing.Wait(); close(gone) }()
	select {
	case <-gone:
	case <-time.After(s.drain):
	}
}

// admit keeps a connection to say goodbye to, unless that time has come.
func (s *server) admit(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dismissed {
		s.conns[conn] = struct{}{}
	}
	return !s.dismissed
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.answer)
	mux.HandleFunc("GET /healthz", s.health)
	mux.HandleFunc("GET /slow", s.slow)
	return mux
}

func (s *server) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	// A client that hangs up meanwhile is its own affair.
	_ = json.NewEncoder(w).Encode(s.seen(r.RemoteAddr))
}

func (s *server) health(w http.ResponseWriter, _ *http.Request) {
	if s.draining.Load() {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

func (s *server) slow(w http.ResponseWriter, r *http.Request) {
	ms, err := strconv.Atoi(r.URL.Query().Get("ms"))
	delay := time.Duration(ms) * time.Millisecond
	if err != nil || delay < 0 || delay > maxSlow {
		http.Error(w, fmt.Sprintf("ms must be between 0 and %d", maxSlow.Milliseconds()), http.StatusBadRequest)
		return
	}
	select {
	case <-r.Context().Done():
	case <-time.After(delay):
		s.answer(w, r)
	}
}

// serveTCP echoes lines; the line "id" is answered with the identity instead.
func (s *server) serveTCP() error {
	for {
		conn, err := s.tcp.Accept()
		if err != nil {
			return ended(err)
		}
		if !s.admit(conn) {
			_ = conn.Close()
			continue
		}
		s.echoing.Go(func() { s.echo(conn) })
	}
}

func (s *server) echo(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		reply := lines.Bytes()
		if string(reply) == probe.IdentityRequest {
			reply = s.identityJSON(conn.RemoteAddr())
		}
		if _, err := conn.Write(append(reply, '\n')); err != nil {
			return
		}
	}
}

func (s *server) serveUDP() error {
	buffer := make([]byte, 64<<10)
	for {
		_, from, err := s.udp.ReadFrom(buffer)
		if err != nil {
			return ended(err)
		}
		// A datagram that cannot be sent is lost, as datagrams are.
		_, _ = s.udp.WriteTo(s.identityJSON(from), from)
	}
}

func (s *server) identityJSON(from net.Addr) []byte {
	// A struct of strings always marshals.
	data, _ := json.Marshal(s.seen(from.String()))
	return data
}

// seen is the identity with the client's address as it arrived here.
func (s *server) seen(remote string) Identity {
	answer := s.identity
	answer.Client = remote
	if host, _, err := net.SplitHostPort(remote); err == nil {
		answer.Client = host
		if ip := net.ParseIP(host); ip != nil {
			answer.Client = ip.String()
		}
	}
	return answer
}

func ended(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
