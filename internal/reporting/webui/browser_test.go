//go:build programs && long

package webui

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a page in Chromium, and what it complained of.
type browser struct {
	context.Context

	mu      sync.Mutex
	console []string
}

func open(t *testing.T, url string) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v\nhint: make deps installs it", err)
	}
	dir, err := os.MkdirTemp("", "replumb-board-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	flags := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.UserDataDir(dir),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.WindowSize(1280, 900), chromedp.WSURLReadTimeout(time.Minute),
	)
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), flags...)
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewContext(ctx)
	t.Cleanup(stop)
	ctx, late := context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(late)
	b := &browser{Context: ctx}
	if err := chromedp.Listen(ctx, b.heard); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	b.do(t, chromedp.Navigate(url))
	return b
}

func (b *browser) heard(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		b.console = append(b.console, fmt.Sprintf("%s %v", e.Type, e.Args))
	case *runtime.EventExceptionThrown:
		b.console = append(b.console, e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		b.console = append(b.console, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	}
}

func (b *browser) do(t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(b, actions...); err != nil {
		t.Fatal(err)
	}
}

// until waits for something to hold on the page.
func (b *browser) until(t *testing.T, expression string) {
	t.Helper()
	if err := chromedp.Do(b, chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(time.Minute))); err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
}

func eval[T any](t *testing.T, b *browser, script string) T {
	t.Helper()
	out, err := chromedp.Run(b, chromedp.Evaluate[T](script))
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return out
}

func (b *browser) scheme(t *testing.T, name string) {
	t.Helper()
	_, err := chromedp.Call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// contrast is that of the text of an element against the page, as WCAG counts it.
const contrast = `((selector) => {
  const light = (c) => { const [r, g, b] = c.match(/[0-9.]+/g).map((n) => { n /= 255; return n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const a = light(getComputedStyle(document.querySelector(selector)).color), b = light(getComputedStyle(document.body).backgroundColor);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); })`

func TestInABrowser(t *testing.T) {
	p := waiting()
	b := open(t, serve(t, p).URL())
	b.until(t, `document.querySelector("iframe:not(.next)") !== null && document.querySelector("iframe").offsetHeight > 200`)
	for what, want := range map[string]string{
		`document.title`: "move",
		`document.querySelector(".gate h3").textContent`:                                  "Restart the API servers <b>now</b>",
		`document.querySelector("iframe").contentDocument.title`:                          "Migration move: report",
		`document.querySelector(".offer code").textContent`:                               "replumb.dev/api-servers=Repointed",
		`[...document.querySelectorAll("dt")].map((e) => e.textContent)[0]`:               "phase",
		`document.getElementById("bar").value + "/" + document.getElementById("bar").max`: "300/1000",
	} {
		if got := eval[string](t, b, what); got != want {
			t.Errorf("%s is %q, want %q", what, got, want)
		}
	}
	background := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(t, scheme)
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
	b.do(t, chromedp.EmulateViewport(1280, 900))

	t.Run("drawn again by itself", func(t *testing.T) {
		p.mu.Lock()
		p.view.Done = 400
		p.mu.Unlock()
		b.until(t, `document.getElementById("bar").value === 400`)
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
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.console) > 0 {
		t.Errorf("the console says:\n%s", strings.Join(b.console, "\n"))
	}
}
