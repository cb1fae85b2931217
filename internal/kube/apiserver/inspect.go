// Package apiserver finds each API server's certificate and Service range from outside.
package apiserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/internal/engine"
)

const limit = 5 * time.Second

// ErrUnverified says that the kubeconfig verifies no certificates: nothing can be said of one, and
// credentials are not sent to addresses that the cluster names.
var ErrUnverified = errors.New(
	"the kubeconfig has no certificates verified (insecure-skip-tls-verify), and without that no credentials are sent to single API servers",
)

// APIServer is what one API server showed.
type APIServer struct {
	// Address is where it was asked, as host:port.
	Address string
	// SANs and Names are the addresses and DNS names in its certificate.
	SANs  []netip.Addr
	Names []string
	// Ranges is its --service-cluster-ip-range, the primary range first.
	Ranges []netip.Prefix
	// CertErr and FlagsErr are why certificate or ranges are unknown.
	CertErr, FlagsErr error
	// From names the nodes that it was seen from; empty, if it was seen from here. See Through.
	From string
}

// Inspector asks API servers one by one, whichever of them the kubeconfig leads to.
type Inspector struct {
	config *rest.Config
	// recorded answers in place of servers, if it is not nil.
	recorded recording
}

// New makes an Inspector that has the CA and the credentials of config.
func New(config *rest.Config) *Inspector {
	config = rest.CopyConfig(config)
	config.Timeout = limit
	if config.Proxy == nil {
		// The default, which is set explicitly to keep client-go from caching the transport
		// (tlsConfigKey in k8s.io/client-go transport/cache.go): an old connection would show an
		// old certificate.
		config.Proxy = http.ProxyFromEnvironment
	}
	return &Inspector{config: config}
}

func (i *Inspector) InspectAll(ctx context.Context, addresses []string) []APIServer {
	servers := make([]APIServer, len(addresses))
	var eg errgroup.Group
	eg.SetLimit(8)
	for n, address := range addresses {
		eg.Go(func() error {
			servers[n] = i.Inspect(ctx, address)
			return nil
		})
	}
	_ = eg.Wait() // what went wrong stands in each answer
	return servers
}

// Inspect asks the API server at address (host:port) for certificate and flags, within five
// seconds. The certificate must be of the cluster's CA but need not name address, which may be a
// forward.
func (i *Inspector) Inspect(ctx context.Context, address string) APIServer {
	if i.recorded != nil {
		return i.recorded.inspect(address)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s := APIServer{Address: address}
	leaf, err := i.certificate(ctx, address)
	if leaf != nil {
		s.Names = leaf.DNSNames
		for _, ip := range leaf.IPAddresses {
			if a, ok := netip.AddrFromSlice(ip); ok {
				s.SANs = append(s.SANs, a.Unmap())
			}
		}
	}
	if err != nil {
		s.CertErr = fmt.Errorf("certificate of API server %s: %w", address, err)
	}
	if err != nil {
		s.FlagsErr = fmt.Errorf("flags of API server %s were not asked for: %w", address, err)
		return s
	}
	if s.Ranges, err = i.ranges(ctx, address, leaf); err != nil {
		s.FlagsErr = fmt.Errorf("flags of API server %s: %w", address, err)
	}
	return s
}

// Answers fails unless the server at address (host:port) shows a certificate of the cluster's CA
// that is good for all names. It sends no credentials; no answer is an engine.NotYet.
func (i *Inspector) Answers(ctx context.Context, address string, names ...string) error {
	if i.recorded != nil {
		return ErrNotRecorded
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	leaf, err := i.certificate(ctx, address)
	switch {
	case err != nil && leaf == nil && !badCertificate(err):
		return engine.NotYet("the API server at %s does not answer: %w", address, err)
	case err != nil:
		return fmt.Errorf("the certificate of the API server at %s is not to be trusted: %w", address, err)
	}
	for _, name := range names {
		if err := leaf.VerifyHostname(name); err != nil {
			return fmt.Errorf("the certificate of the API server at %s is not good for %s: %w", address, name, err)
		}
	}
	return nil
}

func badCertificate(err error) bool {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	return errors.As(err, &unknown) || errors.As(err, &invalid)
}

// certificate is the one shown to clients of the bare address, such as pods, without credentials. A
// leaf with ErrUnverified is one that nothing vouches for.
func (i *Inspector) certificate(ctx context.Context, address string) (*x509.Certificate, error) {
	config := rest.AnonymousClientConfig(i.config)
	config.TLSClientConfig = rest.TLSClientConfig{Insecure: true} // verified below, but for the name
	response, err := get(ctx, config, address, "/version", "application/json")
	if err != nil {
		return nil, err
	}
	defer closeBody(response)
	return verify(response.TLS, i.config)
}

func verify(state *tls.ConnectionState, config *rest.Config) (*x509.Certificate, error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return nil, errors.New("none was shown")
	}
	leaf := state.PeerCertificates[0]
	if config.Insecure {
		return leaf, ErrUnverified
	}
	roots, err := authorities(config)
	if err != nil {
		return nil, err
	}
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		between.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between}); err != nil {
		return nil, err
	}
	return leaf, nil
}

// authorities are the CAs of the kubeconfig; nil for the system's.
func authorities(config *rest.Config) (*x509.CertPool, error) {
	bundle := config.CAData
	if len(bundle) == 0 && config.CAFile != "" {
		var err error
		if bundle, err = os.ReadFile(config.CAFile); err != nil {
			return nil, fmt.Errorf("reading the CA: %w", err)
		}
	}
	if len(bundle) == 0 {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, errors.New("the kubeconfig's CA has no certificate in it")
	}
	return pool, nil
}

// nameFor is a name to verify before credentials are sent: kubelets may have certificates of the
// same CA.
func nameFor(leaf *x509.Certificate, config *rest.Config, address string) (string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	names := []string{"kubernetes.default.svc", config.ServerName, host}
	if u, err := url.Parse(config.Host); err == nil {
		names = append(names, u.Hostname())
	}
	for _, name := range names {
		if name != "" && leaf.VerifyHostname(name) == nil {
			return name, nil
		}
	}
	return "", errors.New("its certificate is not that of an API server (no kubernetes.default.svc in it)")
}

// get sends one request over its own connection, without redirects: credentials are for the address
// alone.
func get(ctx context.Context, config *rest.Config, address, path, accept string) (*http.Response, error) {
	return send(ctx, config, address, http.MethodGet, path, http.Header{"Accept": {accept}}, http.NoBody)
}

func post(ctx context.Context, config *rest.Config, address, path string, body []byte) (*http.Response, error) {
	const kind = "application/json"
	return send(ctx, config, address, http.MethodPost, path, http.Header{"Accept": {kind}, "Content-Type": {kind}}, bytes.NewReader(body))
}

func send(
	ctx context.Context, config *rest.Config, address, method, path string, header http.Header, body io.Reader,
) (*http.Response, error) {
	config.Host = "https://" + address
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	request, err := http.NewRequestWithContext(ctx, method, config.Host+path, body)
	if err != nil {
		return nil, err
	}
	request.Header = header
	response, err := client.Do(request)
	if err != nil {
		utilnet.CloseIdleConnectionsFor(client.Transport)
		return nil, cause(err)
	}
	response.Body = &lastBody{ReadCloser: response.Body, transport: client.Transport}
	return response, nil
}

func cause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
