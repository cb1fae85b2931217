package dnscutover

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// authority signs certificates of tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(t *testing.T, until time.Time, names ...string) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: names, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}
}

// balancer answers for one name, or for all if that is empty, and with 404 for others. It counts
// questions.
type balancer struct {
	*httptest.Server
	asked  atomic.Int64
	status atomic.Int64
	// ill is a name that is answered for with 503.
	ill atomic.Value
}

func newBalancer(t *testing.T, at, name string, status int, certificate *tls.Certificate) *balancer {
	t.Helper()
	b := &balancer{}
	b.status.Store(int64(status))
	b.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.asked.Add(1)
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		code := int(b.status.Load())
		if name == "" && host == b.ill.Load() {
			code = http.StatusServiceUnavailable
		}
		if name != "" && host != name || r.TLS != nil && r.TLS.ServerName != name {
			code = http.StatusNotFound
		}
		if code/100 == 3 {
			w.Header().Set("Location", "http://"+r.Host+"/elsewhere")
		}
		w.WriteHeader(code)
	}))
	b.Config.ErrorLog = nil
	if at != "" {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		_ = b.Listener.Close()
		b.Listener = l
	}
	if certificate != nil {
		b.TLS = &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS12}
		b.StartTLS()
	} else {
		b.Start()
	}
	t.Cleanup(b.Close)
	return b
}

func (b *balancer) port() int32 {
	_, port, _ := net.SplitHostPort(b.Listener.Addr().String())
	n, _ := strconv.ParseInt(port, 10, 32)
	return int32(n)
}

func TestAsk(t *testing.T) {
	const name = "shop.example.com"
	a := newAuthority(t)
	good, other, old := a.sign(t, time.Now().Add(time.Hour), name), a.sign(t, time.Now().Add(time.Hour), "a.example.com", "b.example.com"),
		a.sign(t, time.Now().Add(-time.Hour), name)
	https, wrong := newBalancer(t, "", name, 200, &good), newBalancer(t, "", name, 200, &other)
	expired, plainHTTP := newBalancer(t, "", name, 200, &old), newBalancer(t, "", name, 302, nil)
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	silentPort := int32(silent.Addr().(*net.TCPAddr).Port)
	for _, tt := range []struct {
		name    string
		mode    v1alpha1.ProbeMode
		port    int32
		roots   *x509.CertPool
		address string
		asked   string
		status  int
		problem string
	}{
		{name: "HTTPS", mode: v1alpha1.ProbeHTTPS, port: https.port(), roots: a.pool, status: 200},
		{
			name: "unknown authority", mode: v1alpha1.ProbeHTTPS, port: https.port(),
			problem: "authority that is not trusted (issued by CN=test authority for " + name + ")",
		},
		{
			name: "certificate for others", mode: v1alpha1.ProbeHTTPS, port: wrong.port(), roots: a.pool,
			problem: "has a certificate for a.example.com, b.example.com, not for this name",
		},
		{name: "expired", mode: v1alpha1.ProbeHTTPS, port: expired.port(), roots: a.pool, problem: "certificate that is not good"},
		{name: "no TLS", mode: v1alpha1.ProbeHTTPS, port: plainHTTP.port(), roots: a.pool, problem: "does not speak TLS"},
		{name: "HTTP, not redirected", mode: v1alpha1.ProbeHTTP, port: plainHTTP.port(), status: 302},
		{name: "another name", mode: v1alpha1.ProbeHTTP, port: plainHTTP.port(), asked: "x.example.com", status: 404},
		{name: "TCP", mode: v1alpha1.ProbeTCP, port: silentPort},
		{name: "silence", mode: v1alpha1.ProbeHTTP, port: silentPort, problem: "does not answer within 500ms"},
		{name: "nothing there", mode: v1alpha1.ProbeTCP, port: 1, problem: "127.0.0.1:1 refuses connections"},
		{name: "a balancer by name", mode: v1alpha1.ProbeHTTP, port: plainHTTP.port(), address: "localhost", status: 302},
		{name: "no such balancer", mode: v1alpha1.ProbeHTTP, port: 80, address: "nowhere.invalid", problem: "looking up the load balancer nowhere.invalid"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("HTTP_PROXY", "http://192.0.2.1:3128")
			p := BalancerProbe{
				RedirectProbe: v1alpha1.RedirectProbe{
					Mode: tt.mode,
					Port: tt.port,
					Path: "/x",
				},
				Roots:   tt.roots,
				Timeout: 20 * time.Second, // a busy machine takes long for TLS
			}
			if tt.name == "silence" {
				p.Timeout = 500 * time.Millisecond
			}
			if tt.address == "" {
				tt.address = "127.0.0.1"
			}
			if tt.asked == "" {
				tt.asked = name
			}
			answers, err := p.AskAll(t.Context(), []string{tt.address}, tt.asked)
			if tt.problem == "" {
				if err != nil || answers[0].Status != tt.status {
					t.Errorf("got %+v, %v", answers, err)
				}
				return
			}
			var whole *Error
			if !errors.As(err, &whole) || whole.Hint == "" || !strings.Contains(err.Error(), tt.problem) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v", err)
			}
		})
	}
	if plainHTTP.asked.Load() != 3 {
		t.Errorf("asked %d times: a redirect was followed, or a proxy was in between", plainHTTP.asked.Load())
	}
}

// TestAskBoth: the target has to answer as the source does, at each of its addresses, if no status
// is wanted.
func TestAskBoth(t *testing.T) {
	const name = "shop.example.com"
	source := newBalancer(t, "127.0.0.1:0", name, 204, nil)
	at := func(host string) string { return net.JoinHostPort(host, strconv.Itoa(int(source.port()))) }
	first, second := newBalancer(t, at("127.0.0.2"), name, 204, nil), newBalancer(t, at("127.0.0.3"), name, 204, nil)
	p := BalancerProbe{RedirectProbe: v1alpha1.RedirectProbe{Mode: v1alpha1.ProbeHTTP, Port: source.port()}}
	ask := func() error {
		return p.AskBoth(t.Context(), []string{"127.0.0.1"}, []string{"127.0.0.2", "127.0.0.3"}, name)
	}
	fails := func(problem string) {
		t.Helper()
		var whole *Error
		if err := ask(); !errors.As(err, &whole) || whole.Hint == "" || !strings.Contains(err.Error(), problem) {
			t.Errorf("got %v, not %q", err, problem)
		}
	}
	if err := ask(); err != nil {
		t.Error(err)
	}
	second.status.Store(503)
	fails("127.0.0.3:" + strconv.Itoa(int(source.port())) + " answers GET / with 503, not 204")
	second.status.Store(204)
	source.status.Store(500)
	fails("where it leads now, answers GET / with 500, which says nothing")
	p.Status = 204
	if err := ask(); err != nil {
		t.Errorf("the source is asked though the status is known: %v", err)
	}
	p.Status = 0
	source.Close()
	fails("where it leads now: 127.0.0.1")
	p.Mode = v1alpha1.ProbeOff
	first.Close()
	if err := ask(); err != nil {
		t.Error(err)
	}
}
