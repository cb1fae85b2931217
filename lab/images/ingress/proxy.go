package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
)

// dialTimeout is how long a Service may take to be looked up and to accept a connection before the caller is told that it did not: less than callers
// wait, and time for a resolver and for TCP to send again what was lost once, which is a late answer as for callers inside.
const dialTimeout = 4 * time.Second

// inCluster is where a Service is found whose port is not said.
func inCluster(namespace, service string) string { return serviceHost(namespace, service, "80") }

// serviceHost is a Service's name in cluster DNS, to be looked up as it stands.
func serviceHost(namespace, service, port string) string {
	return net.JoinHostPort(service+"."+namespace+".svc.cluster.local.", port)
}

// proxy leads requests to Services.
type proxy struct {
	identity probe.EchoIdentity
	// synced is set when everything is known that requests are led by, and draining when the end has come near.
	synced, draining atomic.Bool
	// routes is what Ingresses say now, and find where a backend of theirs is.
	routes func() *table
	find   func(backend) (string, error)
	// byPath is where the Service in the path of a request is that no Ingress wants.
	byPath func(namespace, service string) string
}

func transport() http.RoundTripper {
	return &http.Transport{
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
		// A Service decides for every request where it goes.
		DisableKeepAlives: true,
	}
}

// handler asks Ingresses first about hosts that they name, and last about all others: those at which this is asked for its health.
func (p *proxy) handler() http.Handler {
	to := transport()
	others := p.others(to)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		routes := p.routes()
		if !routes.knows(r.Host) && (r.URL.Path == healthPath || routes.route(r.Host, r.URL.Path) == nil) {
			others.ServeHTTP(w, r)
			return
		}
		b := routes.route(r.Host, r.URL.Path)
		if b == nil {
			http.NotFound(w, r)
			return
		}
		host, err := p.find(*b)
		if err != nil {
			slog.ErrorContext(r.Context(), "find a Service", "error", err)
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		forward := &httputil.ReverseProxy{Transport: to, ErrorHandler: answerFailure, Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", host, r.In.Host
			r.SetXForwarded()
		}}
		forward.ServeHTTP(w, r)
	})
}

// answerFailure says whether a Service refused or did not answer in time (RFC 9110, sections 15.6.3 and 15.6.5).
func answerFailure(w http.ResponseWriter, r *http.Request, err error) {
	slog.ErrorContext(r.Context(), "ask a Service", "path", r.URL.Path, "error", err)
	status := http.StatusBadGateway
	var failed net.Error
	if errors.As(err, &failed) && failed.Timeout() {
		status = http.StatusGatewayTimeout
	}
	http.Error(w, err.Error(), status)
}

const healthPath = "/healthz"

// others answers what no Ingress is about: how this is, who this is, and Services by their names in the path.
func (p *proxy) others(to http.RoundTripper) http.Handler {
	forward := &httputil.ReverseProxy{
		Transport: to, ErrorHandler: answerFailure,
		Rewrite: func(r *httputil.ProxyRequest) {
			host := p.byPath(r.In.PathValue("namespace"), r.In.PathValue("service"))
			r.Out.URL = &url.URL{Scheme: "http", Host: host, Path: "/" + r.In.PathValue("rest"), RawQuery: r.In.URL.RawQuery}
			r.SetXForwarded()
		},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+healthPath, func(w http.ResponseWriter, _ *http.Request) {
		if !p.synced.Load() || p.draining.Load() {
			http.Error(w, "draining, or not begun", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		seen := p.identity
		seen.Client, _, _ = net.SplitHostPort(r.RemoteAddr)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(seen) // a client that hangs up meanwhile is its own affair
	})
	mux.Handle("/{namespace}/{service}/{rest...}", forward)
	mux.Handle("/{namespace}/{service}", forward)
	return mux
}
