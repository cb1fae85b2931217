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

// A load balancer leads a connection to one API server, and all requests go over that connection for as long as it lasts: also when the API server
// has lost its etcd, and lets requests wait or answers them with errors. A load balancer asks API servers whether they are ready, and so do those
// whose connection it is.
const (
	// suspected is how long a request may go unanswered before the API server is asked whether it is ready, and again after as long.
	suspected = 3 * time.Second
	// readyLimit is how long it may take to say so: more than it gives its etcd (2 s).
	readyLimit = 3 * time.Second
	// askAgain is how long what it said holds.
	askAgain = time.Second
)

// elsewhere has a client leave an API server that is not ready, where its connections may lead to another.
type elsewhere struct {
	host string
	next http.RoundTripper
	// forget closes all connections.
	forget func()

	// mu is held while the API server is asked.
	mu    sync.Mutex
	asked time.Time
	// left counts how often connections were closed, why says what the API server had said the last time.
	left int
	why  error
}

// movesOn has the clients of a configuration do so.
func movesOn(config *rest.Config) {
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	connections := connrotation.NewDialer(connrotation.DialFunc(dial))
	config.Dial = connections.DialContext
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &elsewhere{host: config.Host, next: next, forget: connections.CloseAll}
	})
}

func (e *elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	if mayLast(r) {
		return e.next.RoundTrip(r)
	}
	before, _ := e.leftSoFar()
	stop := e.suspect(r)
	answer, err := e.next.RoundTrip(r)
	stop()
	if err == nil && answer.StatusCode >= http.StatusInternalServerError {
		e.ask(r)
	}
	after, why := e.leftSoFar()
	if after == before || err == nil && answer.StatusCode < http.StatusInternalServerError {
		return answer, err
	}
	if answer != nil {
		_ = answer.Body.Close()
	}
	if r.Context().Err() != nil {
		return nil, r.Context().Err()
	}
	return nil, &leftError{Host: e.host, Err: why}
}

// mayLast is true of requests that are not answered soon, or by others than API servers.
func mayLast(r *http.Request) bool {
	q := r.URL.Query()
	return q.Get("watch") != "" || q.Get("follow") != "" || strings.Contains(r.URL.Path, "/proxy/") ||
		strings.HasSuffix(r.URL.Path, "/readyz")
}

// suspect asks, time and again, whether the API server is ready that a request waits for, until stop is called.
func (e *elsewhere) suspect(r *http.Request) (stop func()) {
	ctx, cancel := context.WithCancel(r.Context())
	tick := time.AfterFunc(suspected, func() { e.suspectUntil(ctx, r) })
	return func() { tick.Stop(); cancel() }
}

func (e *elsewhere) suspectUntil(ctx context.Context, r *http.Request) {
	tick := time.NewTicker(suspected)
	defer tick.Stop()
	for ctx.Err() == nil {
		e.ask(r)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (e *elsewhere) leftSoFar() (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.left, e.why
}

// ask closes all connections if the API server says that it is not ready, or nothing.
func (e *elsewhere) ask(about *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.asked) < askAgain {
		return
	}
	err := e.ready(about)
	e.asked = time.Now()
	if err != nil {
		e.why = err
		e.left++
		e.forget()
	}
}

// ready asks where a request went.
func (e *elsewhere) ready(about *http.Request) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(about.Context()), readyLimit)
	defer cancel()
	at := url.URL{Scheme: about.URL.Scheme, Host: about.URL.Host, Path: "/readyz"}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return err
	}
	answer, err := e.next.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("asked whether it is ready: %w", err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode >= http.StatusInternalServerError {
		return errors.New("it is not ready: " + answer.Status)
	}
	return nil // or it is not to be asked by this user
}

// leftError says that connections to an API server were closed since it is not ready. It is a net.Error: the request is to be made again.
type leftError struct {
	Host string
	Err  error
}

func (e *leftError) Error() string {
	return fmt.Sprintf("the API server behind %s was left for another one, if there is: %v", e.Host, e.Err)
}

// Unwrap gives what it said.
func (e *leftError) Unwrap() error { return e.Err }

// Timeout and Temporary implement net.Error.
func (*leftError) Timeout() bool   { return true }
func (*leftError) Temporary() bool { return true }
