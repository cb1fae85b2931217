package tier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
)

// table is a lookup that knows some Services, and remembers what it was asked.
type table struct {
	v1alpha1.TierLookup
	mu    sync.Mutex
	asked [][]string
	body  Request
}

func lookupServer(t *testing.T, known map[string]string) *table {
	t.Helper()
	tab := &table{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tab.mu.Lock()
		defer tab.mu.Unlock()
		tab.body = Request{}
		if err := json.NewDecoder(r.Body).Decode(&tab.body); err != nil {
			t.Error(err)
		}
		var asked []string
		for _, q := range tab.body.Services {
			asked = append(asked, q.Namespace+"/"+q.Name)
		}
		tab.asked = append(tab.asked, asked)
		if err := json.NewEncoder(w).Encode(Answer{Tiers: known}); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	tab.HTTP = &v1alpha1.HTTPAction{URL: s.URL}
	return tab
}

func TestLookupAsksOnceForAll(t *testing.T) {
	tab := lookupServer(t, map[string]string{"shop/a": "web", "shop/c": "", "else/where": "core"})
	services := []*corev1.Service{
		service("shop/b"), service("shop/c"),
		service("shop/a", label("app", "a"), annotation("team", "x"), annotation("replumb.dev/moved-at", "now"),
			annotation("kubectl.kubernetes.io/last-applied-configuration", "{}")),
	}
	got, err := Lookup(t.Context(), tab.TierLookup, services, []string{"web", "core"})
	if want := map[types.NamespacedName]string{key("shop/a"): "web"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	text, err := json.Marshal(tab.body)
	want := `{"apiVersion":"replumb.dev/v1alpha1","kind":"TierLookupRequest","tiers":["web","core"],"services":[` +
		`{"namespace":"shop","name":"a","labels":{"app":"a"},"annotations":{"team":"x"}},` +
		`{"namespace":"shop","name":"b","labels":{},"annotations":{}},{"namespace":"shop","name":"c","labels":{},"annotations":{}}]}`
	if err != nil || string(text) != want {
		t.Errorf("asked %s\nwant  %s", text, want)
	}
	if _, err := Lookup(t.Context(), tab.TierLookup, nil, nil); err != nil || len(tab.asked) != 1 {
		t.Errorf("asked for nothing: %v, %v", tab.asked, err)
	}
}

func TestLookupByAProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tiers")
	for _, tt := range []struct{ script, want string }{
		{`grep -q '"name":"cart"' && echo '{"tiers":{"shop/cart":"web"}}'`, ""},
		{`echo '{"tier":{"shop/cart":"web"}}'`, `has no "tiers"`},
		{`echo '{"tiers":{"cart":"web"}}'`, `"cart", which is not namespace/name`},
		{`exit 3`, "exit status 3"},
	} {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+tt.script), 0o700); err != nil {
			t.Fatal(err)
		}
		action := v1alpha1.TierLookup{Action: v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: []string{path}}}}
		got, err := Lookup(t.Context(), action, []*corev1.Service{service("shop/cart")}, []string{"web"})
		switch {
		case tt.want == "" && (err != nil || got[key("shop/cart")] != "web"):
			t.Errorf("%s: got %v, %v", tt.script, got, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path)):
			t.Errorf("%s: got %v", tt.script, err)
		}
	}
}

func TestCacheAsksOnlyForWhatItDoesNotKnow(t *testing.T) {
	tab := lookupServer(t, map[string]string{"shop/a": "web", "shop/b": "core"})
	now := time.Unix(0, 0)
	c := NewCache(func() time.Time { return now })
	ask := func(services ...*corev1.Service) map[types.NamespacedName]string {
		t.Helper()
		got, err := c.Lookup(t.Context(), tab.TierLookup, services, []string{"web"})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	ask(service("shop/a"), service("shop/x"))
	got := ask(service("shop/a"), service("shop/b"), service("shop/x"))
	if want := map[types.NamespacedName]string{key("shop/a"): "web", key("shop/b"): "core"}; !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	ask(service("shop/a"), service("shop/b"))
	ask(service("shop/a", annotation("replumb.dev/moved-at", "now")))
	ask(service("shop/a", label("app", "new")))
	now = now.Add(time.Hour - 1)
	ask(service("shop/a"))
	now = now.Add(1)
	ask(service("shop/a"))
	want := [][]string{{"shop/a", "shop/x"}, {"shop/b", "shop/x"}, {"shop/a"}, {"shop/a"}}
	if !slices.EqualFunc(tab.asked, want, slices.Equal) {
		t.Errorf("asked %v, want %v", tab.asked, want)
	}
}

func TestCacheIsSharedByGoroutines(t *testing.T) {
	tab := lookupServer(t, map[string]string{"shop/a": "web"})
	c := NewCache(nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			got, err := c.Lookup(t.Context(), tab.TierLookup, []*corev1.Service{service("shop/a")}, nil)
			if err != nil || got[key("shop/a")] != "web" {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	wg.Wait()
	if len(tab.asked) != 1 {
		t.Errorf("asked %v", tab.asked)
	}
}

func TestCacheDoesNotRememberFailures(t *testing.T) {
	fail := true
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if fail {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprint(w, `{"tiers":{"shop/a":"web"}}`)
	}))
	defer s.Close()
	action := v1alpha1.TierLookup{Action: v1alpha1.Action{HTTP: &v1alpha1.HTTPAction{URL: s.URL}}}
	c := NewCache(nil)
	services := []*corev1.Service{service("shop/a")}
	var call *callout.Error
	if _, err := c.Lookup(t.Context(), action, services, nil); !errors.As(err, &call) {
		t.Errorf("got %v", err)
	}
	fail = false
	if got, err := c.Lookup(t.Context(), action, services, nil); err != nil || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	c.turn <- struct{}{} // another caller is asking
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Lookup(ctx, action, services, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
