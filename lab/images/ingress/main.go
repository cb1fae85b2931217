// Command ingress is the lab's ingress controller. It leads requests to Services as the Ingresses of its class say, over HTTP and
// TLS, with the certificates in the Secrets that they name. What no Ingress is about it leads by path: /NAMESPACE/SERVICE/... is
// that Service, and / it answers itself.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/internal/verify/probe"
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
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	c, err := newController(client, os.Getenv("INGRESS_CLASS"), os.Getenv("INGRESS_ADDRESS"))
	if err != nil {
		return err
	}
	p := &proxy{
		identity: probe.EchoIdentity{Name: "ingress", Node: os.Getenv("NODE_NAME"), Pod: os.Getenv("POD_NAME")},
		routes:   c.table.Load, find: c.find, byPath: inCluster,
	}
	plain, err := new(net.ListenConfig).Listen(ctx, "tcp", os.Getenv("INGRESS_HTTP"))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	secure, err := new(net.ListenConfig).Listen(ctx, "tcp", os.Getenv("INGRESS_HTTPS"))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	// Ingresses may change while this drains, and are followed to the end of the process.
	go c.run(context.WithoutCancel(ctx), func() { p.synced.Store(true) })
	return p.serve(ctx, drain, plain, tls.NewListener(secure, p.tlsConfig()))
}

// errUnknownHost ends a handshake: a certificate of another host would only look like an answer.
var errUnknownHost = errors.New("no Ingress has a certificate for this host")

func (p *proxy) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := p.routes().certificate(hello.ServerName); c != nil {
				return c, nil
			}
			return nil, fmt.Errorf("%q: %w", hello.ServerName, errUnknownHost)
		},
	}
}

// serve answers until ctx ends, and then for the drain delay: first /healthz says no, and until balancers outside and
// kube-proxies have heard of it, they go on sending.
func (p *proxy) serve(ctx context.Context, drain time.Duration, listeners ...net.Listener) error {
	server := &http.Server{Handler: p.handler(), ReadHeaderTimeout: time.Minute}
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- server.Serve(l) }()
	}
	select {
	case err := <-failed:
		return errors.Join(err, server.Close())
	case <-ctx.Done():
	}
	p.draining.Store(true)
	server.SetKeepAlivesEnabled(false) // who keeps a connection is to go on over another one
	select {
	case err := <-failed:
		return errors.Join(err, server.Close())
	case <-time.After(drain):
	}
	last, cancel := context.WithTimeout(context.Background(), lastRequests)
	defer cancel()
	if err := server.Shutdown(last); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return server.Close()
}
