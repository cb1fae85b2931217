package dnscutover

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

const (
	// defaultTimeout is for one question, from the look-up to the answer's head.
	defaultTimeout = 5 * time.Second
	// maxNames is how many names of a certificate an error quotes.
	maxNames = 5
)

// BalancerProbe asks a load balancer for a name that need not lead there.
type BalancerProbe struct {
	v1alpha1.RedirectProbe
	// Roots that certificates are verified with. Default: what the machine trusts.
	Roots *x509.CertPool
	// Timeout of one question. Default: 5s.
	Timeout time.Duration
	// Resolver looks up load balancers that are names. Default: that of the machine.
	Resolver *net.Resolver
}

// Answer is what a load balancer said.
type Answer struct {
	// At is host:port of who said it.
	At string
	// Status of HTTP. Zero, if it was only asked for a connection.
	Status int
	Took   time.Duration
}

// Error says why a name is not served as it should be.
type Error struct {
	// Name that was asked for.
	Name    string
	Problem string
	Hint    string
	// Err is the cause, if there is one. It is part of the problem already.
	Err error
}

func (e *Error) Error() string  { return e.Name + ": " + e.Problem }
func (e *Error) Advice() string { return e.Hint }
func (e *Error) Unwrap() error  { return e.Err }

// AskBoth asks each load balancer in to for the wanted status, or that of the ones in from.
func (p BalancerProbe) AskBoth(ctx context.Context, from, to []string, name string) error {
	if p.Mode == v1alpha1.ProbeOff {
		return nil
	}
	want := int(p.Status)
	if want == 0 && p.Mode != v1alpha1.ProbeTCP {
		var err error
		if want, err = p.usual(ctx, from, name); err != nil {
			return err
		}
	}
	answers, err := p.AskAll(ctx, to, name)
	if err != nil {
		return err
	}
	for _, a := range answers {
		if want != 0 && a.Status != want {
			return &Error{
				Name: name, Problem: fmt.Sprintf("%s answers GET %s with %d, not %d", a.At, p.path(), a.Status, want),
				Hint: "see what its Ingress or route leads to there; write probe.path and probe.status if another answer is the right one",
			}
		}
	}
	return nil
}

func (p BalancerProbe) usual(ctx context.Context, from []string, name string) (int, error) {
	const hint = "write probe.status if it need not answer there, or choose another probe.path"
	answers, err := p.AskAll(ctx, from, name)
	if err != nil {
		return 0, &Error{Name: name, Problem: "where it leads now: " + problemOf(err), Hint: hint, Err: err}
	}
	for _, a := range answers {
		if a.Status != answers[0].Status {
			return 0, &Error{
				Name: name, Hint: hint, Problem: fmt.Sprintf("where it leads now, %s answers GET %s with %d and %s with %d",
					answers[0].At, p.path(), answers[0].Status, a.At, a.Status),
			}
		}
		if a.Status >= http.StatusInternalServerError {
			return 0, &Error{
				Name: name, Hint: hint,
				Problem: fmt.Sprintf("%s, where it leads now, answers GET %s with %d, which says nothing", a.At, p.path(), a.Status),
			}
		}
	}
	return answers[0].Status, nil
}

func problemOf(err error) string {
	var whole *Error
	if errors.As(err, &whole) {
		return whole.Problem
	}
	return err.Error()
}

// AskAll asks each of the load balancers, at each address of those that are names.
func (p BalancerProbe) AskAll(ctx context.Context, balancers []string, name string) ([]Answer, error) {
	if len(balancers) == 0 {
		return nil, &Error{Name: name, Problem: "there is no load balancer to ask", Hint: hintWrite}
	}
	var all []Answer
	for _, b := range balancers {
		answers, err := p.askEach(ctx, b, name)
		if err != nil {
			return nil, err
		}
		all = append(all, answers...)
	}
	return all, nil
}

// askEach ignores unroutable addresses if another one of the load balancer answers.
func (p BalancerProbe) askEach(ctx context.Context, balancer, name string) ([]Answer, error) {
	addresses, err := p.resolve(ctx, balancer)
	if err != nil {
		return nil, &Error{
			Name: name, Err: err, Problem: fmt.Sprintf("looking up the load balancer %s: %v", balancer, err),
			Hint: "is there such a load balancer, and does this machine know its name?",
		}
	}
	var all []Answer
	var unreachable error
	for _, a := range addresses {
		answer, err := p.Ask(ctx, a.String(), name)
		switch {
		case errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EADDRNOTAVAIL):
			unreachable = err
		case err != nil:
			return nil, err
		default:
			all = append(all, answer)
		}
	}
	if len(all) == 0 {
		return nil, unreachable
	}
	return all, nil
}

func (p BalancerProbe) resolve(ctx context.Context, balancer string) ([]netip.Addr, error) {
	balancer = dnsrecords.Host(balancer)
	if a, err := netip.ParseAddr(balancer); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout())
	defer cancel()
	resolver := p.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	all, err := resolver.LookupNetIP(ctx, "ip", balancer)
	if err == nil && len(all) == 0 {
		err = errors.New("it has no address")
	}
	for i := range all {
		all[i] = all[i].Unmap()
	}
	return all, err
}

// Ask asks one address for a name, without redirects and proxies. Errors are of type *Error, on one
// line.
func (p BalancerProbe) Ask(ctx context.Context, address, name string) (Answer, error) {
	at := net.JoinHostPort(address, strconv.Itoa(p.port()))
	ctx, cancel := context.WithTimeout(ctx, p.timeout())
	defer cancel()
	start := time.Now()
	status, err := p.ask(ctx, at, name)
	if err != nil {
		return Answer{}, p.explain(at, name, err)
	}
	return Answer{At: at, Status: status, Took: time.Since(start)}, nil
}

func (p BalancerProbe) ask(ctx context.Context, at, name string) (int, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", at)
	}
	if p.Mode == v1alpha1.ProbeTCP {
		c, err := dial(ctx, "", "")
		if err != nil {
			return 0, err
		}
		return 0, c.Close()
	}
	scheme := "http"
	if p.Mode == v1alpha1.ProbeHTTPS {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+p.authority(name)+p.path(), http.NoBody)
	if err != nil {
		return 0, err
	}
	req.Header.Set("User-Agent", "replumb")
	// Its own transport, and no http.Client: that would follow redirects.
	t := &http.Transport{
		DialContext: dial, DisableKeepAlives: true, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{ServerName: name, RootCAs: p.Roots, MinVersion: tls.VersionTLS12},
	}
	defer t.CloseIdleConnections()
	resp, err := t.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 1<<16)
	return resp.StatusCode, resp.Body.Close()
}

// authority is the Host header: the name, and an unusual port.
func (p BalancerProbe) authority(name string) string {
	if p.Port == 0 || int(p.Port) == usualPort(p.Mode) {
		return name
	}
	return net.JoinHostPort(name, strconv.Itoa(int(p.Port)))
}

func usualPort(mode v1alpha1.ProbeMode) int {
	if mode == v1alpha1.ProbeHTTPS {
		return 443
	}
	return 80
}

func (p BalancerProbe) port() int {
	if p.Port > 0 {
		return int(p.Port)
	}
	return usualPort(p.Mode)
}

func (p BalancerProbe) path() string {
	if !strings.HasPrefix(p.Path, "/") {
		return "/" + p.Path
	}
	return p.Path
}

func (p BalancerProbe) timeout() time.Duration {
	if p.Timeout > 0 {
		return p.Timeout
	}
	return defaultTimeout
}

func (p BalancerProbe) explain(at, name string, err error) error {
	e := &Error{Name: name, Err: err, Problem: fmt.Sprintf("%s does not answer: %s", at, plain(err))}
	var bad *tls.CertificateVerificationError
	var host x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &host):
		e.Problem = fmt.Sprintf("%s has a certificate for %s, not for this name", at, names(host.Certificate))
		e.Hint = "has the Certificate or the Secret that its Ingress or gateway names been copied, and is it ready?"
	case errors.As(err, &unknown):
		e.Problem = fmt.Sprintf("%s has a certificate of an authority that is not trusted (%s)", at, issuer(bad, err))
		e.Hint = "write probe.caSecret if the authority is your own"
	case errors.As(err, &bad):
		e.Problem = fmt.Sprintf("%s has a certificate that is not good: %s", at, plain(bad.Err))
		e.Hint = "renew it there"
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		e.Problem = at + " does not speak TLS"
		e.Hint = "write probe.mode: HTTP, or probe.port, if that is how it should be"
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Problem = at + " refuses connections"
		e.Hint = "is the load balancer up, and does it listen at that port? write probe.port if it is another one"
	case errors.Is(err, context.DeadlineExceeded):
		e.Problem = fmt.Sprintf("%s does not answer within %s", at, p.timeout())
		e.Hint = "can this machine reach the load balancer? write probe.mode: Off if it cannot, and try by hand"
	default:
		e.Hint = "see what the load balancer, and the Ingress or route behind it, say"
	}
	return e
}

func issuer(bad *tls.CertificateVerificationError, err error) string {
	if !errors.As(err, &bad) || len(bad.UnverifiedCertificates) == 0 {
		return "unknown"
	}
	c := bad.UnverifiedCertificates[0]
	return "issued by " + c.Issuer.String() + " for " + names(c)
}

func names(c *x509.Certificate) string {
	all := slices.Concat(c.DNSNames, lists.Strings(c.IPAddresses))
	if len(all) == 0 {
		return "no one"
	}
	return lists.FirstN(all, maxNames)
}

func plain(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
