package nodes

import (
	"crypto/tls"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
)

// TestAnswersAt: an end of a record that changes its type has to answer at one of the API's ports, with a certificate for the name.
func TestAnswersAt(t *testing.T) {
	api := httptest.NewUnstartedServer(http.NotFoundHandler())
	api.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	api.StartTLS()
	t.Cleanup(api.Close)
	host, text, err := net.SplitHostPort(api.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	at, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	servers := apiserver.New(&rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
	port, closed := uint16(at), uint16(1)
	for _, tt := range []struct {
		name, of string
		ports    []uint16
		again    bool
		problem  string
	}{
		{"it answers", "example.com", []uint16{port}, false, ""},
		{"it answers at one of two ports", "example.com", []uint16{closed, port}, false, ""},
		{"nothing listens", "example.com", []uint16{closed}, true, "does not answer"},
		{"the certificate is for others", "api.example.org", []uint16{closed, port}, false, "not good for api.example.org"},
	} {
		err := answersAt(t.Context(), servers, host, tt.ports, tt.of)
		if tt.problem == "" && err != nil || tt.problem != "" && (err == nil || !strings.Contains(err.Error(), tt.problem) ||
			engine.Retryable(err) != tt.again) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
