package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// answerLimit is how long a probe waits for the API server.
const answerLimit = 5 * time.Second

// Health answers the probes of kubelets.
type Health struct {
	Address net.Addr

	server *http.Server
	ended  chan error
}

// ServeHealth answers /healthz while the process runs, /readyz while it reaches an API server.
// Anyone may ask.
func ServeHealth(listener net.Listener, reaches func(context.Context) error) *Health {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), answerLimit)
		defer cancel()
		if err := reaches(ctx); err != nil {
			http.Error(w, "no API server answers", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	h := &Health{
		Address: listener.Addr(), ended: make(chan error, 1),
		server: &http.Server{Handler: mux, ReadHeaderTimeout: answerLimit, IdleTimeout: time.Minute},
	}
	go func() { h.ended <- h.server.Serve(listener) }()
	return h
}

// Stop waits for answers in hand, until ctx ends, and returns the error of serving.
func (h *Health) Stop(ctx context.Context) error {
	err := h.server.Shutdown(ctx)
	if ended := <-h.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	return nil
}
