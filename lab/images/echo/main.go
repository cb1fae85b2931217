// Command echo is the server half of the lab's traffic: it tells every client which pod answered and which client
// address it saw, over HTTP, TCP and UDP. With a certificate it is a webhook that allows everything, too.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/replumb/replumb/internal/verify/echoserver"
	"github.com/replumb/replumb/internal/verify/probe"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	drain, err := time.ParseDuration(envOr("ECHO_DRAIN", "8s"))
	if err != nil {
		return fmt.Errorf("read ECHO_DRAIN: %w", err)
	}
	s := &echoserver.Server{
		Identity: probe.EchoIdentity{Name: os.Getenv("NAME"), Node: os.Getenv("NODE_NAME"), Pod: os.Getenv("POD_NAME")}, Drain: drain,
	}
	equip(s)
	if err := s.Listen(ctx, envOr("ECHO_HTTP", ":8080"), envOr("ECHO_TCP", ":9000"), envOr("ECHO_UDP", ":9001")); err != nil {
		return err
	}
	if cert := os.Getenv("ADMIT_CERT"); cert != "" { // it is a webhook as well
		var g errgroup.Group
		g.Go(func() error { return serveAdmission(ctx, envOr("ADMIT", ":8443"), cert, os.Getenv("ADMIT_KEY"), drain) })
		g.Go(func() error { return s.Serve(ctx) })
		return g.Wait()
	}
	return s.Serve(ctx)
}

func envOr(name, fallback string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return fallback
}
