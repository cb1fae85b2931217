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

// ServiceAccountDir is where the kubelet mounts a pod's token and the cluster's CA.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	// serverName is in every API server's certificate.
	serverName = "kubernetes.default.svc"
	// dialTimeout is short, since another endpoint may answer.
	dialTimeout = 3 * time.Second
	// dialKeepAlive finds an API server that has vanished.
	dialKeepAlive = 10 * time.Second
)

// Direct connects to the API servers at endpoints, each IP:port, with the credentials in dir. It
// uses no Service and no DNS: a program must not depend on the parts that it checks or repairs.
func Direct(endpoints []string, dir string) (*rest.Config, *APIEndpoints) {
	e := &APIEndpoints{all: slices.Clone(endpoints)}
	return &rest.Config{
		Host:            "https://" + serverName,
		BearerTokenFile: filepath.Join(dir, "token"),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca.crt"), ServerName: serverName},
		Dial:            e.dial,
	}, e
}

// APIEndpoints are the addresses of API servers, any of which serves a connection.
type APIEndpoints struct {
	mu  sync.Mutex
	all []string
	// first answered last.
	first string
}

// Set replaces the endpoints. Open connections stay.
func (e *APIEndpoints) Set(endpoints []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = slices.Clone(endpoints)
}

// order begins with the endpoint that answered last.
func (e *APIEndpoints) order() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := max(0, slices.Index(e.all, e.first))
	return slices.Concat(e.all[at:], e.all[:at])
}

func (e *APIEndpoints) dial(ctx context.Context, network, _ string) (net.Conn, error) {
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
