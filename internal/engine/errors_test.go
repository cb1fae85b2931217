package engine

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

func TestRetryable(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"a page that the API server keeps no more": {apierrors.NewResourceExpired("the provided continue parameter is too old"), true},
		"wrapped":     {fmt.Errorf("listing pods: %w", apierrors.NewResourceExpired("too old")), true},
		"busy":        {apierrors.NewTooManyRequestsError("busy"), true},
		"away":        {apierrors.NewServiceUnavailable("no endpoints"), true},
		"not there":   {apierrors.NewNotFound(pods, "web"), false},
		"not allowed": {apierrors.NewForbidden(pods, "web", nil), false},
		"another":     {errors.New("no"), false},
		"none":        {nil, false},
		"broken off":  {fmt.Errorf("crd: %w", brokenOff(t)), true},
	} {
		if got := Retryable(tt.err); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// brokenOff is what a client says when the API server ends the connection in the middle of an
// answer.
func brokenOff(t *testing.T) error {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	c, err := rest.UnversionedRESTClientFor(&rest.Config{
		Host:            s.URL,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		ContentConfig: rest.ContentConfig{
			NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
			GroupVersion:         &schema.GroupVersion{Version: "v1"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err = c.Get().AbsPath("/version").Do(t.Context()).Error(); err == nil {
		t.Fatal("the answer was whole")
	}
	t.Logf("%T: %v", err, err)
	return err
}
