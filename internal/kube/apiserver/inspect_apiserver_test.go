//go:build apiserver && long

package apiserver

import (
	"errors"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/internal/testing/apitest"
)

var lazy = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

func TestInspectRealServer(t *testing.T) {
	api := lazy.Get(t)
	u, err := url.Parse(api.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	got := New(api.Config).Inspect(t.Context(), u.Host)
	if got.CertErr != nil || got.FlagsErr != nil {
		t.Fatal(got.CertErr, got.FlagsErr)
	}
	if !slices.Contains(got.SANs, netip.MustParseAddr("127.0.0.1")) || !slices.Contains(got.Names, "localhost") {
		t.Errorf("SANs = %v, names = %v", got.SANs, got.Names)
	}
	if !slices.Equal(got.Ranges, prefixes("10.96.0.0/16")) {
		t.Errorf("ranges = %v", got.Ranges)
	}

	stranger := rest.CopyConfig(api.Config)
	stranger.Impersonate.UserName = "stranger"
	if got := New(stranger).Inspect(t.Context(), u.Host); !errors.Is(got.FlagsErr, ErrFlagzForbidden) || got.CertErr != nil {
		t.Errorf("without rights: %v, %v", got.FlagsErr, got.CertErr)
	}
}

func TestRealServerSpeaksBothForms(t *testing.T) {
	api := lazy.Get(t)
	u, err := url.Parse(api.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{"text/plain", accept} {
		response, err := get(t.Context(), rest.CopyConfig(New(api.Config).config), u.Host, "/flagz", form)
		if err != nil {
			t.Fatal(err)
		}
		body := make([]byte, maxFlags)
		n := 0
		for err == nil {
			var more int
			more, err = response.Body.Read(body[n:])
			n += more
		}
		kind, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
		if want, _, _ := strings.Cut(form, ";"); kind != want {
			t.Errorf("%s answered with %s", form, kind)
		}
		got, err := parseFlagz(kind, body[:n])
		if err != nil || !slices.Equal(got, prefixes("10.96.0.0/16")) {
			t.Errorf("%s: %v, %v", form, got, err)
		}
		closeBody(response)
	}
}
