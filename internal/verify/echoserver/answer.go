// Package echoserver answers probes over HTTP, TCP and UDP, and drains before it ends.
package echoserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
)

// The addresses that pods answer at.
const (
	HTTPAddress = ":8080"
	TCPAddress  = ":8081"
	UDPAddress  = ":8082"
)

// Drain is how long a server serves after it is to end, until all nodes know.
const Drain = 5 * time.Second

// Server answers HTTP requests, and echoes lines over TCP and datagrams over UDP.
type Server struct {
	// Identity is what it tells of itself.
	Identity probe.EchoIdentity
	// Web answers HTTP requests. Default: all of them with the name.
	Web http.Handler
	// Datagram answers a datagram; by default as probe.Answer, and only questions, so that two
	// servers cannot answer each other.
	Datagram func(sent []byte, from net.Addr) []byte
	// Limits are those of connections. Default: none.
	Limits Limits
	// Drain is the time to go on after the end, and then for long-lived clients to leave.
	Drain time.Duration

	http net.Listener
	tcp  net.Listener
	udp  net.PacketConn

	draining  atomic.Bool
	echoing   sync.WaitGroup
	mu        sync.Mutex
	conns     map[net.Conn]struct{}
	dismissed bool
}

// Listen opens all the ports, so that a caller that is answered by one of them is by the others.
func (s *Server) Listen(ctx context.Context, http, tcp, udp string) error {
	s.conns = map[net.Conn]struct{}{}
	var config net.ListenConfig
	var err error
	if s.http, err = config.Listen(ctx, "tcp", http); err != nil {
		return fmt.Errorf("listening for HTTP: %w", err)
	}
	if s.tcp, err = config.Listen(ctx, "tcp", tcp); err != nil {
		_ = s.http.Close()
		return fmt.Errorf("listening for TCP: %w", err)
	}
	if s.udp, err = config.ListenPacket(ctx, "udp", udp); err != nil {
		_ = s.http.Close()
		_ = s.tcp.Close()
		return fmt.Errorf("listening for UDP: %w", err)
	}
	s.http, s.tcp = limit(s.http, s.Limits), limit(s.tcp, s.Limits)
	return nil
}

// Addresses are where it listens, for HTTP, TCP and UDP.
func (s *Server) Addresses() (web, tcp, udp net.Addr) {
	return s.http.Addr(), s.tcp.Addr(), s.udp.LocalAddr()
}

// Serve answers until ctx ends, and then for as long as it takes to lose nothing.
func (s *Server) Serve(ctx context.Context) error {
	web := s.web()
	failed := make(chan error, 3)
	go func() { failed <- web.Serve(s.http) }()
	go func() { failed <- s.serveTCP() }()
	go func() { failed <- s.serveUDP() }()
	defer s.close()
	select {
	case err := <-failed:
		return errors.Join(err, web.Close())
	case <-ctx.Done():
	}
	s.draining.Store(true)
	drained := time.NewTimer(s.Drain)
	defer drained.Stop()
	select {
	case err := <-failed:
		return errors.Join(err, web.Close())
	case <-drained.C:
	}
	s.close()
	s.dismiss()
	s.awaitDismissed()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(s.Drain, time.Second))
	defer cancel()
	return web.Shutdown(last)
}

func (s *Server) close() {
	_ = s.tcp.Close()
	_ = s.udp.Close()
}

// dismiss asks clients of long-lived connections to move to another one.
func (s *Server) dismiss() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dismissed = true
	for conn := range s.conns {
		// One write is one piece, so it does not land within an echo.
		_, _ = fmt.Fprintln(conn, probe.Goodbye)
	}
}

// awaitDismissed waits for them within the drain time, and cuts off the rest.
func (s *Server) awaitDismissed() {
	gone := make(chan struct{})
	go func() { s.echoing.Wait(); close(gone) }()
	late := time.NewTimer(s.Drain)
	defer late.Stop()
	select {
	case <-gone:
		return
	case <-late.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		_ = conn.Close()
	}
}

// admit registers a connection for the goodbye, before that begins.
func (s *Server) admit(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dismissed {
		s.conns[conn] = struct{}{}
	}
	return !s.dismissed
}

func (s *Server) Draining() bool { return s.draining.Load() }

func (s *Server) name(w http.ResponseWriter, _ *http.Request) {
	// A client that hangs up meanwhile is its own affair.
	_, _ = fmt.Fprintln(w, s.Identity.Name)
}

// Tell is the identity as JSON, with the client's address as it arrived here, and without its port.
func (s *Server) Tell(client string) []byte {
	answer := s.Identity
	answer.Client = client
	if at, err := netip.ParseAddrPort(client); err == nil {
		answer.Client = at.Addr().Unmap().String()
	}
	// A struct of strings always marshals.
	data, _ := json.Marshal(answer)
	return data
}

func (s *Server) serveTCP() error {
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

// echo returns every line, and answers the one that asks for an identity. A line that is too long
// or slow ends the connection.
func (s *Server) echo(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 0, 64), longestLine)
	for s.patient(conn) && lines.Scan() {
		reply := lines.Bytes()
		if string(reply) == probe.IdentityRequest {
			reply = s.Tell(conn.RemoteAddr().String())
		}
		if _, err := conn.Write(append(reply, '\n')); err != nil {
			return
		}
	}
}

// patient limits the wait for the next line and for the client's reading.
func (s *Server) patient(conn net.Conn) bool {
	return s.Limits.Idle == 0 || conn.SetDeadline(time.Now().Add(s.Limits.Idle)) == nil
}

func (s *Server) serveUDP() error {
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := s.udp.ReadFrom(buffer)
		if err != nil {
			return ended(err)
		}
		reply := s.answer(buffer[:n], from)
		if reply == nil {
			continue
		}
		// A datagram that cannot be sent is lost, as datagrams are.
		_, _ = s.udp.WriteTo(reply, from)
	}
}

func (s *Server) answer(sent []byte, from net.Addr) []byte {
	if at, err := netip.ParseAddrPort(from.String()); err != nil || at.Port() < ephemeral || probe.IsAnswer(sent) {
		return nil
	}
	if s.Datagram != nil {
		return s.Datagram(sent, from)
	}
	return probe.Answer(sent)
}

func ended(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
