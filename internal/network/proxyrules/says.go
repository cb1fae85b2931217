package proxyrules

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// modeURL is where kube-proxy says its mode, unless metricsBindAddress is another (serveMetrics in
// cmd/kube-proxy/app/server.go of k8s.io/kubernetes).
const (
	modeURL   = "http://127.0.0.1:10249/proxyMode"
	modeWait  = 2 * time.Second
	modeLimit = 64
	saying    = "kube-proxy says "
)

// says is what the kube-proxy of this node says that its mode is; nothing if none answers.
func says(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, modeWait)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, modeURL, http.NoBody)
	if err != nil {
		return nil
	}
	// Variables of the environment that name a proxy are not for this node's own address.
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return nil
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, modeLimit))
	if err != nil || response.StatusCode != http.StatusOK {
		return nil
	}
	return []string{saying + strings.TrimSpace(string(body))}
}

// Said is the mode that kube-proxy says it has, by a report; empty if it does not answer.
func Said(r *nodecleanup.TracesReport) string {
	for _, f := range r.Found {
		if mode, ok := strings.CutPrefix(f, saying); ok {
			return mode
		}
	}
	return ""
}
