package callout

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

const secret = "T0P53CRET"

// server answers, and says at which URL with a secret in each of its parts.
func server(t *testing.T, h http.HandlerFunc) v1alpha1.Action {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	url := s.URL + "/" + secret + "?token=" + secret + "#" + secret
	return v1alpha1.Action{HTTP: &v1alpha1.HTTPAction{URL: url}, Timeout: &metav1.Duration{Duration: 10 * time.Second}}
}

func TestHTTPAnswers(t *testing.T) {
	action := server(t, func(w http.ResponseWriter, r *http.Request) {
		asked := map[string]string{}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || r.Method != http.MethodPost {
			t.Errorf("%s: %v", r.Method, err)
		}
		if r.Header.Get("Content-Type") != "application/json" || r.URL.Path != "/"+secret {
			t.Errorf("%s: %v", r.URL, r.Header)
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintf(w, `{"hello":%q}`, asked["name"])
	})
	got := map[string]string{}
	if err := Call(t.Context(), action, map[string]string{"name": "cart"}, &got); err != nil || got["hello"] != "cart" {
		t.Errorf("got %v, %v", got, err)
	}
	t.Setenv("CALLOUT_URL", action.HTTP.URL)
	fromEnv := v1alpha1.Action{HTTP: &v1alpha1.HTTPAction{URLFromEnv: "CALLOUT_URL"}}
	if err := Call(t.Context(), fromEnv, map[string]string{"name": "cart"}, nil); err != nil {
		t.Error(err)
	}
}

// TestHTTPAuthenticates sends user and password to a server with a certificate that the machine
// trusts.
func TestHTTPAuthenticates(t *testing.T) {
	got := make(chan string, 1)
	s := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		got <- user + ":" + password
	}))
	defer s.Close()
	u := strings.Replace(s.URL, "://", "://user:"+secret+"@", 1)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	if _, err := postTo(
		t.Context(),
		v1alpha1.HTTPAction{URL: u},
		nil,
		&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	); err != nil {
		t.Fatal(err)
	}
	if auth := <-got; auth != "user:"+secret {
		t.Errorf("got %q", auth)
	}
}

func TestHTTPFailsWithoutTellingTheURL(t *testing.T) {
	var other atomic.Int32
	elsewhere := server(t, func(http.ResponseWriter, *http.Request) { other.Add(1) })
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"status", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no "+r.URL.Path, http.StatusNotFound) }, "it answered 404 Not Found"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.HTTP.URL, http.StatusTemporaryRedirect)
		}, "it answered 307 Temporary Redirect, and redirects are not followed"},
		{"bad redirect", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://%zz/"+r.URL.Path)
			w.WriteHeader(http.StatusFound)
		}, "it answered 302 Found"},
		{"garbage", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, "not the JSON that was expected"},
		{"goes on", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{} {}") }, "goes on after the JSON"},
		{"empty", func(http.ResponseWriter, *http.Request) {}, "did not answer"},
		{"too much", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, io.LimitReader(zeros{}, maxAnswer+1))
		}, "longer than 16 MiB"},
		{"hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			action := server(t, tt.handler)
			err := Call(t.Context(), action, nothing{}, &map[string]any{})
			var call *Error
			if !errors.As(err, &call) || call.TimedOut || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if err != nil && (strings.Contains(err.Error(), secret) || !strings.HasPrefix(err.Error(), "calling http://127.0.0.1:")) {
				t.Errorf("got %v", err)
			}
		})
	}
	if n := other.Load(); n != 0 {
		t.Errorf("the redirect was followed %d times", n)
	}
}

type nothing struct{}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

func TestHTTPTimesOut(t *testing.T) {
	action := server(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	action.Timeout.Duration = 50 * time.Millisecond
	err := Call(t.Context(), action, nothing{}, nil)
	var call *Error
	if !errors.As(err, &call) || !call.TimedOut || !strings.HasSuffix(err.Error(), "no answer within 50ms") ||
		strings.Contains(err.Error(), secret) {
		t.Errorf("got %v", err)
	}
}

func TestHTTPWithoutServerDoesNotTellTheURL(t *testing.T) {
	s := httptest.NewServer(nil)
	s.Close()
	t.Setenv("CALLOUT_BAD", "http://exa mple/"+secret)
	for _, tt := range []struct {
		name   string
		action v1alpha1.HTTPAction
		want   string
		early  bool
	}{
		{"nothing there", v1alpha1.HTTPAction{URL: s.URL + "/" + secret}, "connection refused", false},
		{"not a URL", v1alpha1.HTTPAction{URL: "http://a b/" + secret}, "the URL is not one of http or https", true},
		{"bad port", v1alpha1.HTTPAction{URL: "http://a:" + secret + "/"}, "the URL is not one of http or https", true},
		{"another scheme", v1alpha1.HTTPAction{URL: "file:///" + secret}, "the URL is not one of http or https", true},
		{"password in the clear", v1alpha1.HTTPAction{URL: "http://user:" + secret + "@127.0.0.1/"}, "use https://", true},
		{"user in the clear", v1alpha1.HTTPAction{URL: "http://" + secret + "@127.0.0.1/"}, "use https://", true},
		{"no host", v1alpha1.HTTPAction{URL: "http:///" + secret}, "the URL is not one of http or https", true},
		{"unset", v1alpha1.HTTPAction{URLFromEnv: "CALLOUT_UNSET"}, "variable CALLOUT_UNSET is not set", true},
		{"bad in the environment", v1alpha1.HTTPAction{URLFromEnv: "CALLOUT_BAD"}, "CALLOUT_BAD is not one of http", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			action := v1alpha1.Action{HTTP: &tt.action}
			err := Call(t.Context(), action, nothing{}, nil)
			var call *Error
			if !errors.As(err, &call) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), secret) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if early := Check(action); (early != nil) != tt.early || early != nil && strings.Contains(early.Error(), secret) {
				t.Errorf("Check: %v", early)
			}
		})
	}
}

func TestHTTPGoesThroughTheProxyOfTheEnvironment(t *testing.T) {
	proxy := server(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%q", r.URL.Host) })
	t.Setenv("HTTP_PROXY", proxy.HTTP.URL)
	t.Setenv("NO_PROXY", "")
	var host string
	action := v1alpha1.Action{HTTP: &v1alpha1.HTTPAction{URL: "http://hooks.example.com/x"}}
	if err := Call(t.Context(), action, nothing{}, &host); err != nil || host != "hooks.example.com" {
		t.Errorf("got %q, %v", host, err)
	}
	t.Setenv("HTTP_PROXY", "http://%zz"+secret)
	if err := Call(t.Context(), action, nothing{}, nil); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("got %v", err)
	}
}

func TestCallNeedsExactlyOneAction(t *testing.T) {
	for _, action := range []v1alpha1.Action{{}, {Exec: &v1alpha1.ExecAction{Command: []string{"true"}}, HTTP: &v1alpha1.HTTPAction{URL: "http://a"}}} {
		var call *Error
		if err := Call(t.Context(), action, nothing{}, nil); !errors.As(err, &call) {
			t.Errorf("Call: got %v", err)
		}
		if err := Check(action); !errors.As(err, &call) {
			t.Errorf("Check: got %v", err)
		}
	}
}
