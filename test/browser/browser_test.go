//go:build programs && long

// Package browser shows in Chromium what replumb draws for people: the report, and the page of replumb ui.
package browser

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
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a page in Chromium, with its complaints and requests.
type browser struct {
	context.Context

	mu       sync.Mutex
	console  []string
	requests []string
}

func open(t *testing.T, url string) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v\nhint: make deps installs it", err)
	}
	flags := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.UserDataDir(dataDir(t)),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true), chromedp.WindowSize(1280, 900),
		chromedp.WSURLReadTimeout(time.Minute), // a busy machine needs more than the usual 20 s
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
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
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
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
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

func get[T any](t *testing.T, b *browser, action chromedp.Action[T]) T {
	t.Helper()
	out, err := chromedp.Run(b, action)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func eval[T any](t *testing.T, b *browser, script string) T {
	t.Helper()
	return get(t, b, chromedp.Evaluate[T](script))
}

// dataDir is a new profile. Chromium may still write to it when it is asked to end, so t.TempDir would complain.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "replumb-report-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// silent sees that the page has complained of nothing.
func (b *browser) silent(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.console) > 0 {
		t.Errorf("the console says:\n%s", strings.Join(b.console, "\n"))
	}
}

// media has the page think that its reader prefers light or dark, and that it is on a screen or on paper.
func (b *browser) media(t *testing.T, media, scheme string) {
	t.Helper()
	_, err := chromedp.Call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Media: media, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		t.Fatal(err)
	}
}
