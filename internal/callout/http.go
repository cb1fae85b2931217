package callout

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"

	"golang.org/x/net/http/httpproxy"

	"github.com/replumb/replumb/api/v1alpha1"
)

// target is the URL of an action. Its errors never quote the URL.
func target(action v1alpha1.HTTPAction) (*url.URL, error) {
	text, where := action.URL, "the URL"
	if action.URLFromEnv != "" {
		text, where = os.Getenv(action.URLFromEnv), "the URL in the environment variable "+action.URLFromEnv
		if text == "" {
			return nil, fmt.Errorf("the environment variable %s is not set", action.URLFromEnv)
		}
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("%s is not one of http or https with a host", where)
	}
	if u.User != nil && u.Scheme != "https" {
		return nil, fmt.Errorf("%s has a user or password, which http:// sends for all to read: use https://", where)
	}
	return u, nil
}

// post avoids http.Client, which follows redirects and quotes the URL in errors.
func post(ctx context.Context, action v1alpha1.HTTPAction, body []byte) ([]byte, error) {
	return postTo(ctx, action, body, &tls.Config{MinVersion: tls.VersionTLS12})
}

func postTo(ctx context.Context, action v1alpha1.HTTPAction, body []byte, trust *tls.Config) ([]byte, error) {
	u, err := target(action)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the URL cannot be used")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "replumb")
	if u.User != nil {
		password, _ := u.User.Password()
		req.SetBasicAuth(u.User.Username(), password)
	}
	transport := &http.Transport{Proxy: proxy, TLSClientConfig: trust, DisableKeepAlives: true, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	// Nothing else of a failure is quoted: many servers repeat the path, which may be secret.
	status := fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	switch resp.StatusCode / 100 {
	case 2:
	case 3:
		return nil, fmt.Errorf("it answered %s, and redirects are not followed: give the URL they lead to", status)
	default:
		return nil, fmt.Errorf("it answered %s", status)
	}
	got, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	if len(got) > maxAnswer {
		return nil, errTooLong
	}
	return got, nil
}

// proxy hides net/http's error, which would quote a variable that may hold a password.
func proxy(req *http.Request) (*url.URL, error) {
	u, err := httpproxy.FromEnvironment().ProxyFunc()(req.URL)
	if err != nil {
		return nil, errors.New("the proxy of the environment is not a URL")
	}
	return u, nil
}
