package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	gateEvery = 250 * time.Millisecond
	askLimit  = 2 * time.Second
)

// gate holds the agents' own probes back until the Service, or its name, has answered once: what
// never existed cannot be lost. It opens once in an agent's life, and the report says so until
// then.
type gate struct {
	// find is the Service to ask, or nil; optional says that it may be missing.
	find     func(view) *corev1.Service
	optional bool
	// connected hears of the connections that are made.
	connected func(network string, local, remote netip.AddrPort)
	// names says whom to ask for the name.
	names *nameServers

	mu              sync.Mutex
	answered, named bool
	why             error
}

func (g *gate) state() (answered, named bool, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.answered, g.named, g.why
}

// open tries until all have answered or ctx ends, and calls opened on progress.
func (g *gate) open(ctx context.Context, look func() (view, bool), domain string, opened func()) {
	_ = wait.PollUntilContextCancel(ctx, gateEvery, true, func(ctx context.Context) (bool, error) {
		answered, _, _ := g.state()
		s, ok := look()
		if !ok || s.migration == nil {
			return false, nil
		}
		err := g.try(ctx, s, domain)
		g.mu.Lock()
		g.why = err
		more, done := g.answered != answered || g.named, g.named
		g.mu.Unlock()
		if more {
			opened()
		}
		return done, nil
	})
}

func (g *gate) try(ctx context.Context, s view, domain string) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	svc := g.find(s)
	switch {
	case svc == nil && g.optional:
		return nil
	case svc == nil:
		return fmt.Errorf("there is no Service that leads to the agents' own servers")
	}
	if answered, _, _ := g.state(); !answered {
		old, recent := addresses(s.migration, svc)
		err := g.ask(ctx, portOf(svc, portHTTP), recent, old)
		if err != nil {
			return fmt.Errorf("service %s/%s has not answered yet: %w", svc.Namespace, svc.Name, err)
		}
		g.mu.Lock()
		g.answered = true
		g.mu.Unlock()
	}
	name := nameOf(svc, domain)
	if err := lookUp(ctx, g.names.server(s), name); err != nil {
		return fmt.Errorf("the name of service %s/%s was not found yet: %w", svc.Namespace, svc.Name, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.named = true
	return nil
}

func (g *gate) ask(ctx context.Context, port uint16, addresses ...netip.Addr) error {
	err := fmt.Errorf("it has no address, or no port %s", portHTTP)
	for _, a := range addresses {
		if !a.IsValid() || port == 0 {
			continue
		}
		if _, err = get(ctx, netip.AddrPortFrom(a, port).String(), g.connected); err == nil {
			return nil
		}
	}
	return err
}

func get(ctx context.Context, address string, connected func(network string, local, remote netip.AddrPort)) ([]byte, error) {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			tell(conn, connected)
		}
		return conn, err
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return nil, err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	return readGood(response)
}
