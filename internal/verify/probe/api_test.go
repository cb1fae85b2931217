package probe

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// apiServer answers who knows the token, as an API server does.
func apiServer(t *testing.T, answer http.HandlerFunc) (server *httptest.Server, target Target) {
	t.Helper()
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "who are you?", http.StatusForbidden)
			return
		}
		answer(w, r)
	}))
	server.EnableHTTP2 = true // a client that does not ask for it is served HTTP/1.1
	server.StartTLS()
	t.Cleanup(server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return server, Target{
		Name: "t", Kind: API, Address: server.Listener.Addr().String(),
		TokenFile: writeFile(t, "token", []byte("secret\n")), CAFile: writeFile(t, "ca.crt", authority),
	}
}

func writeFile(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func versions(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, `{"kind":"APIVersions"}`) }

func TestAPICalls(t *testing.T) {
	_, good := apiServer(t, versions)
	_, other := apiServer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "<html>") })
	_, busy := apiServer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) })
	stranger := good
	stranger.TokenFile = writeFile(t, "token", []byte("guess"))
	_, impostor := apiServer(t, versions)
	impostor.CAFile = writeFile(t, "ca.crt", otherAuthority(t))
	elsewhere := good
	_, port := splitPort(t, good.Address)
	elsewhere.Address = "localhost:" + port // the certificate is for 127.0.0.1 and example.com
	refused := good
	refused.Address = closedAddress(t)
	tests := []struct {
		name   string
		target Target
		want   Class
	}{
		{"good", good, ""},
		{"no API server", other, BadAnswer},
		{"too many requests", busy, HTTPStatus},
		{"not authenticated", stranger, HTTPStatus},
		{"another authority", impostor, BadCertificate},
		{"certificate for another address", elsewhere, BadCertificate},
		{"refused", refused, ConnectRefused},
	}
	for _, tt := range tests {
		for _, kind := range []TargetKind{API, APIKept} {
			t.Run(tt.name+" "+string(kind), func(t *testing.T) {
				tt.target.Kind = kind
				err := doOnce(t, tt.target)
				if tt.want != "" && err == nil {
					t.Fatalf("no error, want %s", tt.want)
				}
				wantClass(t, err, tt.want)
			})
		}
	}
}

// TestKeptConnection closes a connection between two requests, which loses nothing, and in the
// middle of an answer, which does.
func TestKeptConnection(t *testing.T) {
	var cut atomic.Bool
	var peers sync.Map
	count := func() (n int) {
		peers.Range(func(any, any) bool { n++; return true })
		return n
	}
	server, target := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		peers.Store(r.RemoteAddr, true)
		if cut.Load() {
			w.Header().Set("Content-Length", "100")
			_, _ = fmt.Fprint(w, "half")
			panic(http.ErrAbortHandler)
		}
		versions(w, r)
	})
	target.Kind = APIKept
	target = target.withDefaults("")
	requester := newRequester(target, hooks{
		reconnected: func(time.Time) { t.Error("a connection closed between requests is none that broke") },
	})
	defer requester.close()
	ask := func() error { return requester.do(t.Context()) }
	for range 3 {
		if err := ask(); err != nil {
			t.Fatal(err)
		}
	}
	if count() != 1 {
		t.Errorf("3 requests went over %d connections, want 1", count())
	}
	server.CloseClientConnections()
	if err := ask(); err != nil {
		t.Errorf("after the server closed the connection between requests: %v", err)
	}
	if count() != 2 {
		t.Errorf("then requests went over %d connections, want 2", count())
	}
	cut.Store(true)
	if err := ask(); err == nil {
		t.Error("half an answer was taken for one")
	}
	cut.Store(false)
	if err := ask(); err != nil {
		t.Errorf("after half an answer: %v", err)
	}
}

// TestKeptConnectionToServerThatEnds has a server turn away who comes over a connection it knows,
// which loses nothing, and then everybody, which does. An answer of that kind without Retry-After
// is a failure at once.
func TestKeptConnectionToServerThatEnds(t *testing.T) {
	var known sync.Map
	var everybody, silent atomic.Bool
	_, target := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		if _, seen := known.LoadOrStore(r.RemoteAddr, true); !seen && !everybody.Load() {
			versions(w, r)
			return
		}
		if !silent.Load() {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	target.Kind = APIKept
	requester := newRequester(target.withDefaults(""), hooks{})
	defer requester.close()
	for range 3 {
		if err := requester.do(t.Context()); err != nil {
			t.Errorf("turned away from a kept connection: %v", err)
		}
	}
	silent.Store(true)
	if err := requester.do(t.Context()); err == nil || asFailure(err).Class != HTTPStatus {
		t.Errorf("unavailable: %v", err)
	}
	silent.Store(false)
	everybody.Store(true)
	if err := requester.do(t.Context()); err == nil || asFailure(err).Class != HTTPStatus {
		t.Errorf("turned away from a new connection: %v", err)
	}
}

// otherAuthority is a certificate that signed nothing of what is under test.
func otherAuthority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func splitPort(t *testing.T, address string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}
