//go:build programs && long

package browser

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/reporting/progress"
	"github.com/replumb/replumb/internal/reporting/webui"
)

const command = "kubectl annotate migrations.replumb.dev move --overwrite "

// played is a migration that waits for people.
type played struct {
	mu        sync.Mutex
	view      progress.View
	offers    []webui.Offer
	confirmed []webui.Offer
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
		Next:      "replumb resume move",
		Proof:     &v1alpha1.ProofStatus{Nodes: 3, Sent: 52_640},
		Gates: []progress.Gate{{
			ID: "gate/api-servers", Title: "Restart the API servers <b>now</b>", Since: time.Date(2026, 11, 23, 11, 50, 0, 0, time.UTC),
			Guide: "Do it, then confirm it: " + command + "replumb.dev/api-servers=Repointed",
		}},
	}
	m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "move"}}
	return &played{view: v, offers: webui.Offers(m, v)}
}

func (p *played) Look(context.Context) (progress.View, []webui.Offer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.view, slices.Clone(p.offers), nil
}

func (p *played) Report(context.Context) (*htmlreport.Document, error) {
	m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "move"}}
	m.Spec.ServiceCIDR = &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}}
	return htmlreport.Build(htmlreport.Input{Migration: m, Now: time.Unix(1_800_000_000, 0)}), nil
}

func (p *played) Confirm(_ context.Context, o webui.Offer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.confirmed, p.offers, p.view.Gates = append(p.confirmed, o), nil, nil
	return nil
}

func (p *played) said() []webui.Offer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.confirmed)
}

// serve serves a migration until the test ends, and returns its URL.
func serve(t *testing.T, p *played) string {
	t.Helper()
	s, err := webui.Listen(t.Context(), 0, p)
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
	return s.URL()
}

// contrast is that of the text of an element against the page, as WCAG counts it.
const contrast = `((selector) => {
  const light = (c) => { const [r, g, b] = c.match(/[0-9.]+/g).map((n) => { n /= 255; return n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const a = light(getComputedStyle(document.querySelector(selector)).color), b = light(getComputedStyle(document.body).backgroundColor);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); })`

func TestPage(t *testing.T) {
	p := waiting()
	b := open(t, serve(t, p))
	b.until(t, `document.querySelector("iframe:not(.next)") !== null && document.querySelector("iframe").offsetHeight > 200`)
	for what, want := range map[string]string{
		`document.title`: "move: waits for you",
		`document.querySelector(".gate h3").textContent`:                                  "Restart the API servers <b>now</b>",
		`document.querySelector("iframe").contentDocument.title`:                          "Migration move: report",
		`document.querySelector(".offer code").textContent`:                               "replumb.dev/api-servers=Repointed",
		`[...document.querySelectorAll("dt")].map((e) => e.textContent)[0]`:               "phase",
		`document.getElementById("bar").value + "/" + document.getElementById("bar").max`: "12/40",
	} {
		if got := eval[string](t, b, what); got != want {
			t.Errorf("%s is %q, want %q", what, got, want)
		}
	}
	background := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		b.media(t, "screen", scheme)
		b.shot(t, "ui-"+scheme)
		background[scheme] = eval[string](t, b, `getComputedStyle(document.body).backgroundColor`)
		for _, selector := range []string{"body", "dt", ".good", ".attention"} {
			if got := eval[float64](t, b, contrast+`("`+selector+`")`); got < 4.5 {
				t.Errorf("%s in %s has a contrast of %.1f", selector, scheme, got)
			}
		}
	}
	if background["light"] == background["dark"] {
		t.Errorf("light and dark are both %s", background["light"])
	}
	b.do(t, chromedp.EmulateViewport(360, 800))
	if wide := eval[int](t, b, `document.documentElement.scrollWidth`); wide > 360 {
		t.Errorf("on a narrow screen it is %d wide", wide)
	}
	b.shot(t, "ui-phone")
	b.do(t, chromedp.EmulateViewport(1280, 900))

	t.Run("drawn again by itself", func(t *testing.T) {
		p.mu.Lock()
		p.view.Done = 400
		p.mu.Unlock()
		b.until(t, `document.getElementById("bar").value === 16`)
	})
	t.Run("confirmed with the keyboard alone", func(t *testing.T) {
		press := func(key string) { b.do(t, chromedp.KeyEvent(key)) }
		b.do(t, chromedp.Evaluate[chromedp.Void](`document.activeElement.blur()`))
		for range 10 {
			press("\t")
			if eval[string](t, b, `document.activeElement.textContent`) != "To the report" {
				break
			}
		}
		if got := eval[string](t, b, `document.activeElement.textContent`); !strings.HasPrefix(got, "Confirm: Restart") {
			t.Fatalf("the first to press is %q", got)
		}
		press("\r")
		b.until(t, `document.activeElement.textContent === "Yes, confirm"`)
		if len(p.said()) != 0 {
			t.Error("confirmed by one press")
		}
		press("\r")
		b.until(t, `document.getElementById("waiting").hidden`)
		if said := p.said(); len(said) != 1 || said[0].Value != "Repointed" {
			t.Errorf("confirmed %v", said)
		}
	})
	b.silent(t)
}
