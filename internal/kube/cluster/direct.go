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
	"k8s.io/client-go/util/connrotation"
)

// ServiceAccountDir is where the kubelet mounts a pod's token and the cluster's CA.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	// serverName is in every API server's certificate.
	serverName = "kubernetes.default.svc"
	// dialTimeout is short, since another endpoint may answer.
	dialTimeout = 3 * time.Second
	// returnLimit is how long a look for an endpoint lasts while the fallback serves.
	returnLimit = time.Second
	// dialKeepAlive finds an API server that has vanished.
	dialKeepAlive = 10 * time.Second
)

// Direct connects to the API servers at endpoints, each IP:port, with the credentials in dir. It
// uses no Service and no DNS: a program must not depend on the parts that it checks or repairs.
// Addresses in fallback, such as that of the Service kubernetes, are for while no endpoint answers.
func Direct(endpoints, fallback []string, dir string) (*rest.Config, *APIEndpoints) {
	connect := net.Dialer{Timeout: dialTimeout, KeepAlive: dialKeepAlive}
	e := &APIEndpoints{all: slices.Clone(endpoints), fallback: fallback, connect: connect.DialContext}
	e.detour = connrotation.NewDialer(e.connect)
	return &rest.Config{
		Host:            "https://" + serverName,
		BearerTokenFile: filepath.Join(dir, "token"),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca.crt"), ServerName: serverName},
		Dial:            e.dial,
	}, e
}

// APIEndpoints are the addresses of API servers, any of which serves a connection.
type APIEndpoints struct {
	fallback []string
	connect  connrotation.DialFunc
	// detour has the connections to the fallback.
	detour *connrotation.Dialer

	mu  sync.Mutex
	all []string
	// first answered last. It is empty since a connection went to the fallback.
	first string
}

// Set replaces the endpoints. Open connections to endpoints stay; those to the fallback are closed
// once an endpoint answers, since they would last, and count as clients of a Service that moves.
func (e *APIEndpoints) Set(ctx context.Context, endpoints []string) {
	e.mu.Lock()
	e.all = slices.Clone(endpoints)
	direct := e.first != ""
	e.mu.Unlock()
	if direct {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, returnLimit)
	defer cancel()
	if conn, err := e.dialEndpoint(ctx, "tcp"); err == nil {
		_ = conn.Close()
		e.detour.CloseAll()
	}
}

// order begins with the endpoint that answered last.
func (e *APIEndpoints) order() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := max(0, slices.Index(e.all, e.first))
	return slices.Concat(e.all[at:], e.all[:at])
}

func (e *APIEndpoints) remember(endpoint string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.first = endpoint
}

func (e *APIEndpoints) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	conn, failed := e.dialEndpoint(ctx, network)
	if failed == nil {
		return conn, nil
	}
	for _, address := range e.fallback {
		conn, err := e.detour.DialContext(ctx, network, address)
		if err == nil {
			e.remember("")
			return conn, nil
		}
		failed = fmt.Errorf("%w; %w", failed, err)
	}
	return nil, failed
}

func (e *APIEndpoints) dialEndpoint(ctx context.Context, network string) (net.Conn, error) {
	failed := errors.New("no API server answers")
	for _, endpoint := range e.order() {
		conn, err := e.connect(ctx, network, endpoint)
		if err == nil {
			e.remember(endpoint)
			return conn, nil
		}
		failed = fmt.Errorf("%w; %w", failed, err)
	}
	return nil, failed
}
