package cluster

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/internal/engine"
)

// server is an API server: how it answers when asked for its version, and whether it is ready.
type server struct {
	version func(http.ResponseWriter, *http.Request)
	unready bool
}

func answering(code int, body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

func well() func(http.ResponseWriter, *http.Request) { return answering(200, `{"major":"1"}`) }

func failing() func(http.ResponseWriter, *http.Request) {
	return answering(500, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"message":"etcdserver: request timed out"}`)
}

// waiting answers after some time, unless the client has given up by then.
func waiting(d time.Duration) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(d):
			well()(w, r)
		}
	}
}

// balanced is a load balancer: its first connection leads to the one API server, and each later one
// to a second that is well.
func balanced(t *testing.T, first server) *rest.Config {
	t.Helper()
	var mu sync.Mutex
	at := ""
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if at == "" {
			at = r.RemoteAddr
		}
		on := server{version: well()}
		if at == r.RemoteAddr {
			on = first
		}
		mu.Unlock()
		switch {
		case r.URL.Path != "/readyz":
			on.version(w, r)
		case on.unready:
			answering(500, "[-]etcd failed: reason withheld")(w, r)
		default:
			answering(200, "ok")(w, r)
		}
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// TestGoesOnWithAnotherAPIServer: a client whose connection leads to an API server that is not
// ready leaves it, whether that answers with errors or not at all; one that is ready is not left,
// however slow it is and whatever it answers.
func TestGoesOnWithAnotherAPIServer(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first server
		// err is what the first request ends with.
		err  string
		left bool
	}{
		{"errors", server{failing(), true}, "was left for another one", true},
		{"no answer", server{waiting(time.Minute), true}, "was left for another one", true},
		{"errors of one that is ready", server{failing(), false}, "an error on the server", false},
		{"a slow answer of one that is ready", server{waiting(suspected + 2*time.Second), false}, "", false},
		{"refusals", server{answering(403, `{}`), true}, "unknown", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := Connect(balanced(t, tt.first))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			began := time.Now()
			_, err = c.GetRaw(ctx, "/version")
			took := time.Since(began)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("after %s the first request ended with %v", took, err)
			}
			if got := errors.As(err, new(*failoverError)); got != tt.left || got && (!engine.Retryable(err) || took > suspected+readyLimit) {
				t.Errorf("left: %t, after %s: %v", got, took, err)
			}
			if !tt.left {
				return
			}
			if _, err := c.GetRaw(ctx, "/version"); err != nil {
				t.Errorf("the next request ended with %v", err)
			}
		})
	}
}

// TestBareClientStays is the control: a client without it gets nothing but errors from then on.
func TestBareClientStays(t *testing.T) {
	config := balanced(t, server{failing(), true})
	bare, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+"/version", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := bare.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusInternalServerError {
			t.Fatalf("answered %s", answer.Status)
		}
	}
}
