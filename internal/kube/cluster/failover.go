package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"
)

// A load balancer keeps a connection on one API server for as long as it lasts, also when that
// server has lost its etcd and lets requests hang or fails them.
const (
	// suspected is the time without an answer after which the API server is asked for its
	// readiness.
	suspected = 3 * time.Second
	// readyLimit is longer than an API server gives its etcd (2 s).
	readyLimit = 3 * time.Second
	// askAgain is how long an answer counts.
	askAgain = time.Second
)

// failover closes the connections of a client to an API server that is not ready, so that new ones
// may reach another.
type failover struct {
	host     string
	next     http.RoundTripper
	closeAll func()

	// mu is held during a question, so that there is one at a time.
	mu    sync.Mutex
	asked time.Time
	// closed counts how often connections were closed, why is the last reason.
	closed int
	why    error
}

// withFailover adds a failover to the clients of a configuration.
func withFailover(config *rest.Config) {
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	connections := connrotation.NewDialer(connrotation.DialFunc(dial))
	config.Dial = connections.DialContext
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &failover{host: config.Host, next: next, closeAll: connections.CloseAll}
	})
}

func (f *failover) RoundTrip(r *http.Request) (*http.Response, error) {
	if longRunning(r) {
		return f.next.RoundTrip(r)
	}
	before, _ := f.state()
	stop := f.suspect(r)
	answer, err := f.next.RoundTrip(r)
	stop()
	if err == nil && answer.StatusCode >= http.StatusInternalServerError {
		f.checkReady(r)
	}
	after, why := f.state()
	if after == before || err == nil && answer.StatusCode < http.StatusInternalServerError {
		return answer, err
	}
	if answer != nil {
		_ = answer.Body.Close()
	}
	if r.Context().Err() != nil {
		return nil, r.Context().Err()
	}
	return nil, &failoverError{Host: f.host, Err: why}
}

// longRunning are requests that API servers answer late, or that others answer.
func longRunning(r *http.Request) bool {
	q := r.URL.Query()
	return q.Get("watch") != "" || q.Get("follow") != "" || strings.Contains(r.URL.Path, "/proxy/") ||
		strings.HasSuffix(r.URL.Path, "/readyz")
}

// suspect asks for the readiness of the API server that a request waits for, until stop is called.
func (f *failover) suspect(r *http.Request) (stop func()) {
	ctx, cancel := context.WithCancel(r.Context())
	tick := time.AfterFunc(suspected, func() { f.suspectLoop(ctx, r) })
	return func() { tick.Stop(); cancel() }
}

func (f *failover) suspectLoop(ctx context.Context, r *http.Request) {
	tick := time.NewTicker(suspected)
	defer tick.Stop()
	for ctx.Err() == nil {
		f.checkReady(r)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (f *failover) state() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed, f.why
}

// checkReady closes all connections unless the API server says that it is ready.
func (f *failover) checkReady(about *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.asked) < askAgain {
		return
	}
	err := f.ready(about)
	f.asked = time.Now()
	if err != nil {
		f.why = err
		f.closed++
		f.closeAll()
	}
}

// ready asks the API server that a request went to.
func (f *failover) ready(about *http.Request) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(about.Context()), readyLimit)
	defer cancel()
	at := url.URL{Scheme: about.URL.Scheme, Host: about.URL.Host, Path: "/readyz"}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return err
	}
	answer, err := f.next.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("asked whether it is ready: %w", err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode >= http.StatusInternalServerError {
		return errors.New("it is not ready: " + answer.Status)
	}
	return nil // below 500 it answers, if only that this user may not ask
}

// failoverError says that connections were closed since an API server is not ready. It is a
// net.Error, so that callers repeat the request.
type failoverError struct {
	Host string
	Err  error
}

func (e *failoverError) Error() string {
	return fmt.Sprintf("the API server behind %s was left for another one, if there is: %v", e.Host, e.Err)
}

func (e *failoverError) Unwrap() error { return e.Err }

// Timeout and Temporary implement net.Error.
func (*failoverError) Timeout() bool   { return true }
func (*failoverError) Temporary() bool { return true }
