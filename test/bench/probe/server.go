package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"
)

// addresses are where the server listens.
type addresses struct{ HTTP, Stream, UDP string }

// serveUntil serves until ctx ends or the process that began it has gone.
func serveUntil(ctx context.Context, parent io.Reader, out io.Writer) error {
	var config net.ListenConfig
	web, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	lines, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	datagrams, err := config.ListenPacket(ctx, "udp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	at := addresses{web.Addr().String(), lines.Addr().String(), datagrams.LocalAddr().String()}
	if err := json.NewEncoder(out).Encode(at); err != nil {
		return err
	}
	failed := make(chan error, 3)
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") }),
		ReadHeaderTimeout: time.Minute,
	}
	go func() { failed <- server.Serve(web) }()
	go func() { failed <- echoLines(lines) }()
	go func() { failed <- echoDatagrams(datagrams) }()
	gone := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, parent); close(gone) }()
	select {
	case err := <-failed:
		return err
	case <-gone:
	case <-ctx.Done():
	}
	return nil
}

func echoLines(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = conn.Close() }()
			_, _ = io.Copy(conn, conn)
		}()
	}
}

func echoDatagrams(conn net.PacketConn) error {
	buffer := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		_, _ = conn.WriteTo(buffer[:n], from) // one that cannot be sent is lost, as datagrams are
	}
}

// server is one in a process of its own.
type server struct {
	at    addresses
	cmd   *exec.Cmd
	stdin io.Closer
}

func startServer(ctx context.Context) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.CommandContext(ctx, self, "-serve")}
	s.cmd.Stderr = os.Stderr
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s.at)
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("the server did not start: %w", err)
	}
	return s, nil
}

func (s *server) stop() {
	_ = s.stdin.Close()
	_ = s.cmd.Wait()
}
