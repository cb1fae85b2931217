package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
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

// Config leads to the API servers at endpoints, each IP:port, with what kubelet has put in dir. No Service and no name is on the way:
// what an agent is to judge must not be what it depends on.
func Config(endpoints []string, dir string) *rest.Config {
	d := &dialer{endpoints: endpoints}
	return &rest.Config{
		Host:            "https://" + serverName,
		BearerTokenFile: filepath.Join(dir, "token"),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca.crt"), ServerName: serverName},
		Dial:            d.dial,
	}
}

// dialer connects to one of the endpoints, whatever it is asked for.
type dialer struct {
	endpoints []string

	mu sync.Mutex
	// first is the one that answered last.
	first int
}

func (d *dialer) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	d.mu.Lock()
	first := d.first
	d.mu.Unlock()
	failed := errors.New("no API server answers")
	for i := range d.endpoints {
		at := (first + i) % len(d.endpoints)
		connect := net.Dialer{Timeout: dialTimeout, KeepAlive: dialKeepAlive}
		conn, err := connect.DialContext(ctx, network, d.endpoints[at])
		if err == nil {
			d.mu.Lock()
			d.first = at
			d.mu.Unlock()
			return conn, nil
		}
		failed = fmt.Errorf("%w; %w", failed, err)
	}
	return nil, failed
}
