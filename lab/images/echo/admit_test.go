package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAdmit(t *testing.T) {
	for body, want := range map[string]string{
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","object":{"kind":"Pod"}}}`: `{"apiVersion":"admission.k8s.io/v1",` +
			`"kind":"AdmissionReview","response":{"uid":"1","allowed":true}}`,
		`{"kind":"AdmissionReview"}`: "nothing is asked",
		`{`:                          "unexpected EOF",
	} {
		got := httptest.NewRecorder()
		admit(got, httptest.NewRequest(http.MethodPost, "/admit", strings.NewReader(body)))
		if said := strings.TrimSpace(got.Body.String()); said != want {
			t.Errorf("to %s it says %q, want %q", body, said, want)
		}
		if ok := strings.Contains(want, "allowed"); ok != (got.Code == http.StatusOK) {
			t.Errorf("to %s it says %d", body, got.Code)
		}
	}
}

func TestParting(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	for _, want := range []string{"", "close"} {
		got := httptest.NewRecorder()
		parting(ctx, admit)(got, httptest.NewRequest(http.MethodPost, "/admit", strings.NewReader(`{}`)))
		if is := got.Header().Get("Connection"); is != want {
			t.Errorf("Connection is %q, want %q", is, want)
		}
		end()
	}
}
