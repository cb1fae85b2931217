package webui

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/reporting/progress"
)

const command = "kubectl annotate migrations.replumb.dev move --overwrite "

// played is a migration that waits for people.
type played struct {
	mu        sync.Mutex
	view      progress.View
	offers    []Offer
	confirmed []Offer
	away      error
}

// waiting is one that stands at a gate.
func waiting() *played {
	v := progress.View{
		Migration: "move",
		Cluster:   "prod-eu",
		At:        time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC),
		Phase:     v1alpha1.PhaseApplying,
		Stage:     "repoint",
		Unit:      "Services",
		Done:      300,
		Total:     1000,
		Holder:    "root@host",
		Next:      "replumb apply -f FILE",
		Proof:     &v1alpha1.ProofStatus{Nodes: 3, Sent: 52_640},
		Gates: []progress.Gate{{
			ID: "gate/api-servers", Title: "Restart the API servers <b>now</b>", Since: time.Date(2026, 11, 23, 11, 50, 0, 0, time.UTC),
			Guide: "Do it, then confirm it: " + command + "replumb.dev/api-servers=Repointed",
		}},
	}
	m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "move"}}
	return &played{view: v, offers: Offers(m, v)}
}

func (p *played) Look(context.Context) (progress.View, []Offer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.view, slices.Clone(p.offers), p.away
}

func (p *played) Report(context.Context) (*htmlreport.Document, error) {
	m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "move"}}
	m.Spec.ServiceCIDR = &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}}
	return htmlreport.Build(htmlreport.Input{Migration: m, Words: migrations.All().Of(m).Report(m), Now: time.Unix(1_800_000_000, 0)}), nil
}

func (p *played) Confirm(_ context.Context, o Offer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.confirmed, p.offers, p.view.Gates = append(p.confirmed, o), nil, nil
	return nil
}

func (p *played) said() []Offer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.confirmed)
}

// serve serves a migration until the test ends.
func serve(t *testing.T, p *played) *Server {
	t.Helper()
	s, err := Listen(t.Context(), 0, p)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("served until %v", err)
		}
	})
	return s
}

// send sends a request with changes to it, and returns the answer.
func send(t *testing.T, method, url, body string, changes ...func(*http.Request)) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		change(r)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text), answer.Header
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// TestOnlyWithTheToken: without it, or by another name of this machine, there is nothing to be
// seen.
func TestOnlyWithTheToken(t *testing.T) {
	s := serve(t, waiting())
	base := "http://" + s.host
	for name, tt := range map[string]struct {
		url    string
		change func(*http.Request)
		code   int
	}{
		"the page":        {s.URL(), nil, http.StatusOK},
		"the state":       {s.URL() + "state", nil, http.StatusOK},
		"the report":      {s.URL() + "report", nil, http.StatusOK},
		"nothing":         {base + "/", nil, http.StatusNotFound},
		"no token":        {base + "/state", nil, http.StatusNotFound},
		"another token":   {base + "/" + strings.Repeat("A", len(s.token)) + "/state", nil, http.StatusNotFound},
		"another name":    {s.URL() + "state", func(r *http.Request) { r.Host = "evil.example:80" }, http.StatusNotFound},
		"something else":  {s.URL() + "etc/passwd", nil, http.StatusNotFound},
		"a half a secret": {base + "/" + s.token[:20] + "/state", nil, http.StatusNotFound},
	} {
		change := tt.change
		if change == nil {
			change = func(*http.Request) {}
		}
		code, body, head := send(t, http.MethodGet, tt.url, "", change)
		if code != tt.code || head.Get("Cache-Control") != "no-store" || head.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: %d, %v", name, code, head)
		}
		if code != http.StatusOK && strings.Contains(body, "move") {
			t.Errorf("%s: tells %q", name, body)
		}
	}
	if other := serve(t, waiting()); other.token == s.token || len(s.token) < 40 {
		t.Errorf("tokens %q and %q", s.token, other.token)
	}
	if !strings.HasPrefix(s.URL(), "http://127.0.0.1:") {
		t.Errorf("serves at %s", s.URL())
	}
}

// TestConfirm: only the page itself confirms, and only what it was shown.
func TestConfirm(t *testing.T) {
	p := waiting()
	s := serve(t, p)
	offer := p.offers[0]
	ask := `{"id":"` + offer.ID + `"}`
	own := []func(*http.Request){
		header("Origin", "http://"+s.host), header("Content-Type", "application/json"), header("X-Replumb-Token", s.token),
	}
	for name, tt := range map[string]struct {
		body    string
		changes []func(*http.Request)
		code    int
	}{
		"another page":         {ask, []func(*http.Request){header("Origin", "http://evil.example")}, http.StatusForbidden},
		"no page":              {ask, []func(*http.Request){func(r *http.Request) { r.Header.Del("Origin") }}, http.StatusForbidden},
		"a form":               {ask, []func(*http.Request){header("Content-Type", "text/plain")}, http.StatusForbidden},
		"from another site":    {ask, []func(*http.Request){header("Sec-Fetch-Site", "cross-site")}, http.StatusForbidden},
		"without the token":    {ask, []func(*http.Request){header("X-Replumb-Token", "")}, http.StatusForbidden},
		"what was not offered": {`{"id":"0000"}`, nil, http.StatusConflict},
		"what is no JSON":      {"finish", nil, http.StatusBadRequest},
		"too much":             {`{"id":"` + strings.Repeat("0", bodyLimit) + `"}`, nil, http.StatusBadRequest},
	} {
		code, body, _ := send(t, http.MethodPost, s.URL()+"confirm", tt.body, append(slices.Clone(own), tt.changes...)...)
		if code != tt.code || !strings.Contains(body, "problem") || len(p.said()) != 0 {
			t.Errorf("%s: %d, %s; confirmed %v", name, code, body, p.said())
		}
	}
	if code, _, _ := send(t, http.MethodGet, s.URL()+"confirm", "", own...); code != http.StatusMethodNotAllowed {
		t.Errorf("asked for by GET: %d", code)
	}
	code, body, _ := send(t, http.MethodPost, s.URL()+"confirm", ask, own...)
	if said := p.said(); code != http.StatusOK || len(said) != 1 || said[0] != offer {
		t.Errorf("%d, %s; confirmed %v", code, body, said)
	}
	if code, _, _ := send(t, http.MethodPost, s.URL()+"confirm", ask, own...); code != http.StatusConflict {
		t.Errorf("confirmed twice: %d", code)
	}
}

// TestState has what the page draws, and says what is wrong.
func TestState(t *testing.T) {
	p := waiting()
	s := serve(t, p)
	code, body, _ := send(t, http.MethodGet, s.URL()+"state", "")
	var m moment
	if err := json.Unmarshal([]byte(body), &m); err != nil || code != http.StatusOK {
		t.Fatalf("%d, %v, %s", code, err, body)
	}
	if len(m.Gates) != 1 || len(m.Offers) != 1 || m.Losses == nil || m.Filled != 12 || m.Phase != "Applying" || m.Standing != "waits for you" || m.Facts[0].Label != "phase" {
		t.Errorf("%+v", m)
	}
	p.mu.Lock()
	p.away = errors.New("the API server is away")
	p.mu.Unlock()
	if code, body, _ := send(t, http.MethodGet, s.URL()+"state", ""); code != http.StatusBadGateway || !strings.Contains(body, "is away") {
		t.Errorf("%d, %s", code, body)
	}
}

// TestOffers takes from gates and conditions what they ask to be confirmed, and nothing else.
func TestOffers(t *testing.T) {
	m := &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "move", Annotations: map[string]string{"replumb.dev/kubelets": "172.24.0.10"}},
	}
	m.Status.Conditions = []metav1.Condition{
		{Reason: "ApprovalNeeded", Message: "is to be approved\nhint: " + command + "replumb.dev/approve=plan:abc,finish"},
		{Reason: "Again", Message: command + "replumb.dev/approve=plan:abc,finish"},
	}
	v := progress.View{Gates: []progress.Gate{
		{Title: "A", Guide: "kubectl annotate migrations.replumb.dev other --overwrite replumb.dev/approve=finish"},
		{Title: "B", Guide: command + "replumb.dev/cluster=forged"},
		{Title: "C", Guide: command + "replumb.dev/kubelets=172.24.0.10"},
		{
			Title: "D",
			Guide: command + "replumb.dev/controller-managers=Paused\nand " + command + "replumb.dev/api-servers=Repointed; rm -rf",
		},
	}}
	var got []string
	for _, o := range Offers(m, v) {
		got = append(got, o.For+" "+o.Annotation+"="+o.Value)
	}
	want := []string{
		"D replumb.dev/controller-managers=Paused",
		"D replumb.dev/api-servers=Repointed",
		"ApprovalNeeded replumb.dev/approve=plan:abc,finish",
	}
	if !slices.Equal(got, want) {
		t.Errorf("offers %q, want %q", got, want)
	}
}
