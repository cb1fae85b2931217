// Command ingress is the lab's ingress controller, without anything to control: a reverse proxy that leads requests for
// /NAMESPACE/SERVICE/... to that Service, by its name in cluster DNS, and answers / itself.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/replumb/replumb/internal/probe"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// lastRequests is how long requests under way may take when serving has ended.
const lastRequests = 5 * time.Second

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	drain, err := time.ParseDuration(os.Getenv("INGRESS_DRAIN"))
	if err != nil {
		return fmt.Errorf("read INGRESS_DRAIN: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", os.Getenv("INGRESS_HTTP"))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	identity := probe.Identity{Name: "ingress", Node: os.Getenv("NODE_NAME"), Pod: os.Getenv("POD_NAME")}
	return serve(ctx, listener, identity, drain)
}

// serve answers until ctx ends, and then for the drain delay: first /healthz says no, and until balancers outside and
// kube-proxies have heard of it, they go on sending.
func serve(ctx context.Context, listener net.Listener, identity probe.Identity, drain time.Duration) error {
	var draining atomic.Bool
	server := &http.Server{Handler: handler(identity, &draining, inCluster), ReadHeaderTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	draining.Store(true)
	server.SetKeepAlivesEnabled(false) // who keeps a connection is to go on over another one
	select {
	case err := <-failed:
		return err
	case <-time.After(drain):
	}
	last, cancel := context.WithTimeout(context.Background(), lastRequests)
	defer cancel()
	if err := server.Shutdown(last); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return server.Close()
}
