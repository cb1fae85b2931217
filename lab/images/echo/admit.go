package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// maxReview is more than API servers send of an object.
const maxReview = 8 << 20

// A review is as much of an AdmissionReview as it takes to answer one (k8s.io/api/admission/v1).
type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *asked    `json:"request,omitempty"`
	Response   *admitted `json:"response,omitempty"`
}

type asked struct {
	UID string `json:"uid"`
}

type admitted struct {
	UID     string `json:"uid"`
	Allowed bool   `json:"allowed"`
}

// admit allows whatever it is asked about, as a webhook that finds nothing wrong does.
func admit(w http.ResponseWriter, r *http.Request) {
	var in review
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReview)).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if in.Request == nil {
		http.Error(w, "nothing is asked", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review{
		APIVersion: in.APIVersion, Kind: in.Kind, Response: &admitted{UID: in.Request.UID, Allowed: true},
	}) // an API server that hangs up asks again
}

// serveAdmission is a webhook over TLS until ctx ends, and for a drain longer. In that time it has each client hang up after its answer: API servers
// keep connections, and a request on one that the webhook has closed fails.
func serveAdmission(ctx context.Context, address, cert, key string, drain time.Duration) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /admit", parting(ctx, admit))
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() {
		time.AfterFunc(drain, func() { _ = server.Shutdown(context.Background()) })
	})
	if err := server.ListenAndServeTLS(cert, key); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// parting has clients hang up after an answer once ctx has ended.
func parting(ctx context.Context, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if ctx.Err() != nil {
			w.Header().Set("Connection", "close")
		}
		answer(w, r)
	}
}
