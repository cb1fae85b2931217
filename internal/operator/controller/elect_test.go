package controller

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
)

// TestTermEndsWhenItsWorkHas: what was begun in a term has ended before the next, and nothing is
// begun once it is over.
func TestTermEndsWhenItsWorkHas(t *testing.T) {
	var term term
	began, release := make(chan struct{}), make(chan struct{})
	var done atomic.Bool
	go term.serve(func() {
		close(began)
		<-release
		done.Store(true)
	})
	<-began
	go close(release)
	term.end()
	if !done.Load() {
		t.Error("the term ended before its work")
	}
	term.serve(func() { t.Error("begun when the term was over") })
}

func TestHealth(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var away atomic.Bool
	h := ServeHealth(listener, func(context.Context) error {
		if away.Load() {
			return errors.New("secret detail")
		}
		return nil
	})
	for _, tt := range []struct {
		path  string
		away  bool
		code  int
		wrote string
	}{
		{"/healthz", false, http.StatusOK, "ok\n"},
		{"/readyz", false, http.StatusOK, "ok\n"},
		{"/healthz", true, http.StatusOK, "ok\n"},
		{"/readyz", true, http.StatusServiceUnavailable, "no API server answers\n"},
		{"/metrics", false, http.StatusNotFound, "404 page not found\n"},
	} {
		away.Store(tt.away)
		code, wrote := ask(t, "http://"+h.Address.String()+tt.path)
		if code != tt.code || wrote != tt.wrote {
			t.Errorf("%s, %t: %d %q", tt.path, tt.away, code, wrote)
		}
	}
	if err := h.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func ask(t *testing.T, url string) (code int, wrote string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}
