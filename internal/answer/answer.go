// Package answer is what agents call: an HTTP server, and echoes over TCP and UDP. It stays until nobody calls it any more.
package answer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/replumb/replumb/internal/probe"
)

// The addresses that pods answer at.
const (
	HTTPAddress = ":8080"
	TCPAddress  = ":8081"
	UDPAddress  = ":8082"
)

// Drain is for how long a server goes on that is to end: other nodes still send to it until they have heard.
const Drain = 5 * time.Second

// Server answers every HTTP request with its name, and echoes lines over TCP and datagrams over UDP.
type Server struct {
	// Name is what it answers.
	Name string
	// Drain is how long it goes on after it was to end, and then how long clients of long-lived connections have to leave.
	Drain time.Duration

	http net.Listener
	tcp  net.Listener
	udp  net.PacketConn

	echoing   sync.WaitGroup
	mu        sync.Mutex
	conns     map[net.Conn]struct{}
	dismissed bool
}

// Listen opens all the ports, so that whoever is answered by one of them is by the others.
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
	return nil
}

// Serve answers until ctx ends, and then for as long as it takes to lose nothing.
func (s *Server) Serve(ctx context.Context) error {
	web := &http.Server{Handler: http.HandlerFunc(s.answer), ReadHeaderTimeout: time.Minute}
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

// close closes the echoes' sockets. Connections go on.
func (s *Server) close() {
	_ = s.tcp.Close()
	_ = s.udp.Close()
}

// dismiss asks the clients of all long-lived connections to go on over another one, which leads them elsewhere by now.
func (s *Server) dismiss() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dismissed = true
	for conn := range s.conns {
		// One write is one piece, so it does not land within an echo.
		_, _ = fmt.Fprintln(conn, probe.Goodbye)
	}
}

// awaitDismissed waits until they have done so, and cuts off who does not within the drain time.
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

// admit keeps a connection to say goodbye to, unless that time has come.
func (s *Server) admit(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dismissed {
		s.conns[conn] = struct{}{}
	}
	return !s.dismissed
}

func (s *Server) answer(w http.ResponseWriter, _ *http.Request) {
	// A client that hangs up meanwhile is its own affair.
	_, _ = fmt.Fprintln(w, s.Name)
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

// echo sends every line back; the line that asks for an identity is answered with one.
func (s *Server) echo(conn net.Conn) {
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
			reply = s.identity(conn.RemoteAddr())
		}
		if _, err := conn.Write(append(reply, '\n')); err != nil {
			return
		}
	}
}

func (s *Server) identity(client net.Addr) []byte {
	host, _, err := net.SplitHostPort(client.String())
	if err != nil {
		host = client.String()
	}
	// A struct of strings always marshals.
	data, _ := json.Marshal(probe.Identity{Name: s.Name, Pod: s.Name, Client: host})
	return data
}

func (s *Server) serveUDP() error {
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := s.udp.ReadFrom(buffer)
		if err != nil {
			return ended(err)
		}
		// A datagram that cannot be sent is lost, as datagrams are.
		_, _ = s.udp.WriteTo(buffer[:n], from)
	}
}

// ended makes nothing of sockets that were closed on purpose.
func ended(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
