package machine

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// backend is a TLS server that is ready or not, and says its name.
func backend(t *testing.T, name string, ready *atomic.Bool) *httptest.Server {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" && !ready.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, name)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestBalancer(t *testing.T) {
	var aReady, bReady atomic.Bool
	aReady.Store(true)
	a, b := backend(t, "a", &aReady), backend(t, "b", &bReady)
	balancer := newBalancer([]string{a.Listener.Addr().String(), b.Listener.Addr().String()})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go balancer.watch(ctx)
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = front.Close() }()
	go balancer.serve(front)

	client := a.Client()
	client.Transport.(*http.Transport).DisableKeepAlives = true
	// Who answers a few connections in a row.
	answers := func() string {
		seen := map[string]bool{}
		for range 4 {
			response, err := client.Get("https://" + front.Addr().String())
			if err != nil {
				return err.Error()
			}
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			seen[string(body)] = true
		}
		switch {
		case seen["a"] && seen["b"]:
			return "both"
		case seen["a"]:
			return "a"
		}
		return "b"
	}
	await := func(what, want string) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			got := answers()
			if got == want {
				return
			}
			select {
			case <-deadline:
				t.Fatalf("%s: %s answered, want %s", what, got, want)
			case <-tick.C:
			}
		}
	}
	await("a is ready", "a")
	bReady.Store(true)
	await("both are ready", "both")
	aReady.Store(false)
	await("only b is ready", "b")
	bReady.Store(false)
	await("none is ready, but both listen", "both")
	b.Close()
	await("one does not listen", "a")

	c := backend(t, "b", &aReady)
	balancer.lead([]string{c.Listener.Addr().String()})
	await("the other has left, and one has come", "b")

	balancer.lead(nil)
	if got := answers(); got == "a" || got == "b" || got == "both" {
		t.Errorf("without targets %s answered", got)
	}
	balancer.lead([]string{a.Listener.Addr().String()})
	await("the first of all machines has come", "a")
}
