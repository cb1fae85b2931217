package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/internal/engine"
)

// authority signs certificates, as the CA of a cluster does.
type authority struct {
	*testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{T: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign makes a serving certificate for names, which may be addresses.
func (a *authority) sign(change func(*x509.Certificate), names ...string) *tls.Certificate {
	a.Helper()
	key := newKey(a.T)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// server answers on loopback with whatever certificate is current, and notes who showed which
// token.
type server struct {
	*httptest.Server
	current atomic.Pointer[tls.Certificate]
	tokens  chan string
}

func serve(t *testing.T, cert *tls.Certificate, flagz http.HandlerFunc) *server {
	t.Helper()
	s := &server{tokens: make(chan string, 100)}
	s.current.Store(cert)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.tokens <- r.URL.Path + " " + r.Header.Get("Authorization")
		if r.URL.Path == "/flagz" && flagz != nil {
			flagz(w, r)
			return
		}
		http.NotFound(w, r)
	}))
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*s.current.Load()}, NextProtos: []string{"h2", "http/1.1"}}, nil
	}}
	s.EnableHTTP2 = true
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *server) address() string { return s.Listener.Addr().String() }

func (s *server) seen() []string {
	var all []string
	for len(s.tokens) > 0 {
		all = append(all, <-s.tokens)
	}
	return all
}

func text(separator, value string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "\napiserver flagz\nWarning: not for machines.\nsecure-port%s6443\nservice-cluster-ip-range%s%s\nv%s0\n",
			separator, separator, value, separator)
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

func TestInspectThroughForward(t *testing.T) {
	ca := newAuthority(t)
	s := serve(t, ca.sign(nil, "kubernetes.default.svc", "10.96.0.1", "fd00::1"), text("=", "10.96.0.0/16,fd00::/108"))
	config := &rest.Config{
		Host: "https://api.example.com", BearerToken: "secret",
		TLSClientConfig: rest.TLSClientConfig{CAData: ca.pem},
	}
	got := New(config).Inspect(t.Context(), s.address())
	if got.CertErr != nil || got.FlagsErr != nil {
		t.Fatal(got.CertErr, got.FlagsErr)
	}
	if want := []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00::1")}; !slices.Equal(got.SANs, want) {
		t.Errorf("SANs = %v", got.SANs)
	}
	if !slices.Equal(got.Names, []string{"kubernetes.default.svc"}) {
		t.Errorf("names = %v", got.Names)
	}
	if !slices.Equal(got.Ranges, prefixes("10.96.0.0/16", "fd00::/108")) {
		t.Errorf("ranges = %v", got.Ranges)
	}
	if want := []string{"/version ", "/flagz Bearer secret"}; !slices.Equal(s.seen(), want) {
		t.Errorf("the token was not shown where it belongs, and only there")
	}
}

func TestInspectSeesCertificateOfNow(t *testing.T) {
	ca := newAuthority(t)
	s := serve(t, ca.sign(nil, "kubernetes.default.svc", "10.96.0.1"), text(" ", "10.96.0.0/16"))
	i := New(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: ca.pem}})
	want := netip.MustParseAddr("172.24.0.1")
	if err := CertificatesCover([]APIServer{i.Inspect(t.Context(), s.address())}, want); err == nil {
		t.Error("covered before it was")
	}
	s.current.Store(ca.sign(nil, "kubernetes.default.svc", "10.96.0.1", "172.24.0.1"))
	if err := CertificatesCover([]APIServer{i.Inspect(t.Context(), s.address())}, want); err != nil {
		t.Error(err)
	}
}

func TestInspectTellsWhatItCannotKnow(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ca.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	trusting := rest.Config{BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{CAFile: file}}
	insecure := rest.Config{BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	elsewhere := serve(t, other.sign(nil, "evil"), nil)
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	for _, tt := range []struct {
		name        string
		config      rest.Config
		cert        *tls.Certificate
		flagz       http.HandlerFunc
		cert1, flag string
		token       bool
	}{
		{"all well", trusting, ca.sign(nil, "kubernetes.default.svc"), text(": ", "10.96.0.0/16"), "", "", true},
		{"another CA", trusting, other.sign(nil, "kubernetes.default.svc"), text(":", "1.2.3.0/24"), "unknown authority", "not asked", false},
		{"expired", trusting, ca.sign(expired, "kubernetes.default.svc"), text(":", "1.2.3.0/24"), "expired", "not asked", false},
		{"a kubelet", trusting, ca.sign(nil, "node-1", "10.0.0.5"), text(":", "1.2.3.0/24"), "", "not that of an API server", false},
		{"not verified", insecure, ca.sign(nil, "x"), text("=", "10.96.0.0/16"), ErrUnverified.Error(), ErrUnverified.Error(), false},
		{"no flagz", trusting, ca.sign(nil, "kubernetes.default.svc"), nil, "", ErrNoFlagz.Error(), true},
		{"forbidden", trusting, ca.sign(nil, "kubernetes.default.svc"), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
		}, "", ErrFlagzForbidden.Error(), true},
		{"starting", trusting, ca.sign(nil, "kubernetes.default.svc"), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}, "", "503", true},
		{"redirect", trusting, ca.sign(nil, "kubernetes.default.svc"), func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/flagz", http.StatusFound)
		}, "", "302", true},
		{"odd value", trusting, ca.sign(nil, "kubernetes.default.svc"), text("=", "many"), "", "many", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, tt.cert, tt.flagz)
			got := New(&tt.config).Inspect(t.Context(), s.address())
			match(t, "certificate", got.CertErr, tt.cert1)
			match(t, "flags", got.FlagsErr, tt.flag)
			if shown := slices.Contains(s.seen(), "/flagz Bearer secret"); shown != tt.token {
				t.Errorf("token shown: %v", shown)
			}
		})
	}
	if len(elsewhere.seen()) > 0 {
		t.Error("a redirect was followed")
	}
}

// TestAnswers: who is between replumb and a new control plane could else pass for its API server,
// and names would be led there.
func TestAnswers(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	trusting := rest.Config{BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{CAData: ca.pem}}
	insecure := rest.Config{BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	for _, tt := range []struct {
		name   string
		config rest.Config
		cert   *tls.Certificate
		want   string
	}{
		{"good", trusting, ca.sign(nil, "api.example.com", "a.example.com"), ""},
		{"another name", trusting, ca.sign(nil, "api.example.com"), "not good for a.example.com"},
		{"another CA", trusting, other.sign(nil, "api.example.com", "a.example.com"), "unknown authority"},
		{"expired", trusting, ca.sign(expired, "api.example.com", "a.example.com"), "expired"},
		{"not verified", insecure, ca.sign(nil, "api.example.com", "a.example.com"), ErrUnverified.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, tt.cert, nil)
			err := New(&tt.config).Answers(t.Context(), s.address(), "api.example.com", "a.example.com")
			match(t, "certificate", err, tt.want)
			if engine.Retryable(err) {
				t.Errorf("%v is waited for", err)
			}
			if slices.ContainsFunc(s.seen(), func(seen string) bool { return strings.Contains(seen, "secret") }) {
				t.Error("the token was sent")
			}
		})
	}
	if err := New(&trusting).Answers(t.Context(), "127.0.0.1:1", "api.example.com"); !engine.Retryable(err) {
		t.Errorf("no answer: %v", err)
	}
}

func match(t *testing.T, what string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
	if err != nil && strings.Contains(err.Error(), "secret") {
		t.Errorf("%s: error with a secret", what)
	}
}

func TestInspectGivesUp(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // and nothing accepts
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	all := New(&rest.Config{}).InspectAll(ctx, []string{listener.Addr().String(), "127.0.0.1:1"})
	for _, s := range all {
		if s.CertErr == nil || s.FlagsErr == nil {
			t.Errorf("%s: %v, %v", s.Address, s.CertErr, s.FlagsErr)
		}
	}
	if !errors.Is(all[0].CertErr, context.DeadlineExceeded) {
		t.Errorf("silent server: %v", all[0].CertErr)
	}
}

func TestParseFlagz(t *testing.T) {
	header := "\napiserver flagz\nWarning: This endpoint\n"
	for _, tt := range []struct {
		name, kind, body string
		want             []netip.Prefix
		err              string
	}{
		{"colon", "text/plain", header + "service-cluster-ip-range:10.96.0.0/16\n", prefixes("10.96.0.0/16"), ""},
		{"colon space", "text/plain", header + "service-cluster-ip-range: 10.96.0.0/16\n", prefixes("10.96.0.0/16"), ""},
		{"equals", "text/plain", header + "service-cluster-ip-range=10.96.0.0/16\n", prefixes("10.96.0.0/16"), ""},
		{"space", "text/plain", header + "service-cluster-ip-range 10.96.0.7/16\n", prefixes("10.96.0.0/16"), ""},
		{"IPv6 after a colon", "text/plain", "service-cluster-ip-range:::/64", prefixes("::/64"), ""},
		{"not set", "text/plain", header + "service-cluster-ip-range=\n", prefixes("10.0.0.0/24"), ""},
		{"longer name", "text/plain", header + "service-cluster-ip-range-x=10.96.0.0/16\n", nil, "does not tell"},
		{"structured", "application/json", `{"kind":"Flagz","flags":{"service-cluster-ip-range":"10.96.0.0/16"}}`, prefixes("10.96.0.0/16"), ""},
		{"structured, not set", "application/json", `{"flags":{"service-cluster-ip-range":""}}`, prefixes("10.0.0.0/24"), ""},
		{"structured, without", "application/json", `{"flags":{}}`, nil, "does not tell"},
		{"half", "application/json", `{"flags":`, nil, "unexpected end"},
		{"nonsense", "text/plain", "service-cluster-ip-range=x", nil, "x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseFlagz(tt.kind, []byte(tt.body))
			match(t, "parsing", err, tt.err)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
