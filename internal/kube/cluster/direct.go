package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// ServiceAccountDir is where kubelet gives a pod its token and the cluster's authority.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	// serverName is what every API server's certificate is valid for.
	serverName = "kubernetes.default.svc"
	// dialTimeout is short, since another endpoint may answer.
	dialTimeout = 3 * time.Second
	// dialKeepAlive finds out about an API server that has vanished.
	dialKeepAlive = 10 * time.Second
)

// Direct leads to the API servers at endpoints, each IP:port, with what kubelet has put in dir. No Service and no name is on the way:
// what a program in the cluster is to judge or to repair must not be what it depends on.
func Direct(endpoints []string, dir string) (*rest.Config, *Endpoints) {
	e := &Endpoints{all: slices.Clone(endpoints)}
	return &rest.Config{
		Host:            "https://" + serverName,
		BearerTokenFile: filepath.Join(dir, "token"),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca.crt"), ServerName: serverName},
		Dial:            e.dial,
	}, e
}

// Endpoints are where API servers are. A connection is to one of them, whatever it is asked for.
type Endpoints struct {
	mu  sync.Mutex
	all []string
	// first is the one that answered last.
	first string
}

// Set replaces the endpoints. Connections stay.
func (e *Endpoints) Set(endpoints []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.Clone(endpoints)
}

// order is in which they are tried: beginning with the one that answered last.
func (e *Endpoints) order() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := max(0, slices.Index(e.all, e.first))
	return slices.Concat(e.all[at:], e.all[:at])
}

func (e *Endpoints) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	failed := errors.New("no API server answers")
	for _, endpoint := range e.order() {
		connect := net.Dialer{Timeout: dialTimeout, KeepAlive: dialKeepAlive}
		conn, err := connect.DialContext(ctx, network, endpoint)
		if err == nil {
			e.mu.Lock()
			e.first = endpoint
			e.mu.Unlock()
			return conn, nil
		}
		failed = fmt.Errorf("%w; %w", failed, err)
	}
	return nil, failed
}
