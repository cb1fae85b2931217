package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/replumb/replumb/internal/probe"
)

// dialTimeout is how long a Service may take to accept a connection before the caller is told that it did not.
const dialTimeout = 2 * time.Second

// inCluster is where a Service is found, by a name that is looked up as it stands.
func inCluster(namespace, service string) string {
	return service + "." + namespace + ".svc.cluster.local.:80"
}

// handler leads requests to Services that find finds.
func handler(identity probe.Identity, draining *atomic.Bool, find func(namespace, service string) string) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			host := find(r.In.PathValue("namespace"), r.In.PathValue("service"))
			r.Out.URL = &url.URL{Scheme: "http", Host: host, Path: "/" + r.In.PathValue("rest"), RawQuery: r.In.URL.RawQuery}
			r.SetXForwarded()
		},
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
			// A Service decides about every request anew, where it goes.
			DisableKeepAlives: true,
		},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if draining.Load() {
			http.Error(w, "draining", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		seen := identity
		seen.Client, _, _ = net.SplitHostPort(r.RemoteAddr)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(seen) // a client that hangs up meanwhile is its own affair
	})
	mux.Handle("/{namespace}/{service}/{rest...}", proxy)
	mux.Handle("/{namespace}/{service}", proxy)
	return mux
}
