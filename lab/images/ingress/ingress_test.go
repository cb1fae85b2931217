package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
)

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

// newProxy leads as a table says that does not change.
func newProxy(t *table) *proxy {
	p := &proxy{routes: func() *table { return t }, byPath: inCluster}
	p.synced.Store(true)
	return p
}

func TestLeadsToServices(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.URL)
	}))
	defer service.Close()
	asked := ""
	find := func(namespace, name string) string {
		asked = inCluster(namespace, name)
		if name == "gone" {
			return "127.0.0.1:1"
		}
		return service.Listener.Addr().String()
	}
	p := newProxy(newTable(nil, nil))
	p.identity, p.byPath = probe.EchoIdentity{Name: "ingress", Node: "n1", Pod: "p1"}, find
	ingress := httptest.NewServer(p.handler())
	defer ingress.Close()
	for _, tt := range []struct {
		path   string
		status int
		body   string // empty, if it does not matter
		asked  string
	}{
		{"/", 200, `{"name":"ingress","node":"n1","pod":"p1","client":"127.0.0.1"}` + "\n", ""},
		{"/shop/front", 200, "/", "front.shop.svc.cluster.local.:80"},
		{"/shop/front/a/b?c=d", 200, "/a/b?c=d", "front.shop.svc.cluster.local.:80"},
		{"/shop/gone/", 502, "", "gone.shop.svc.cluster.local.:80"},
		{"/shop", 404, "", ""},
		{"/healthz", 200, "ok\n", ""},
	} {
		asked = ""
		status, body := get(t, ingress.URL+tt.path)
		if status != tt.status || (tt.body != "" && body != tt.body) || asked != tt.asked {
			t.Errorf("%s: %d %q by way of %q, want %d %q by way of %q", tt.path, status, body, asked, tt.status, tt.body, tt.asked)
		}
	}
}

func TestAnswersFailures(t *testing.T) {
	for want, err := range map[int]error{
		http.StatusBadGateway:     &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
		http.StatusGatewayTimeout: &net.OpError{Op: "dial", Err: &net.DNSError{Err: "i/o timeout", Name: "front.shop.svc", IsTimeout: true}},
	} {
		got := httptest.NewRecorder()
		answerFailure(got, httptest.NewRequest(http.MethodGet, "/shop/front", nil), err)
		if got.Code != want || !strings.Contains(got.Body.String(), err.Error()) {
			t.Errorf("of %v it says %d %q, want %d", err, got.Code, got.Body, want)
		}
	}
}

func TestServesWhileDraining(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- newProxy(newTable(nil, nil)).serve(ctx, time.Hour, listener) }()
	url := "http://" + listener.Addr().String()
	if status, _ := get(t, url+"/healthz"); status != http.StatusOK {
		t.Errorf("healthz says %d", status)
	}
	cancel()
	for status := 0; status != http.StatusServiceUnavailable; { // each round is a request, before it has noticed or after
		status, _ = get(t, url+"/healthz")
	}
	if status, _ := get(t, url); status != http.StatusOK {
		t.Errorf("it answers with %d while it drains", status)
	}
	select {
	case err := <-done:
		t.Errorf("it ended before the drain delay: %v", err)
	default:
	}
}

func TestEnds(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newProxy(newTable(nil, nil)).serve(ctx, time.Millisecond, listener); err != nil {
		t.Error(err)
	}
}
