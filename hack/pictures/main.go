// Command pictures draws pictures for the documentation from what was recorded: the result of a demo, with what clients met with second by
// second beside the naive way, and the file of a report. It has no numbers of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// The size of a picture of a report: the summary, and the charts below it.
const (
	reportWidth  = 1280
	reportHeight = 1130
)

func main() {
	result := flag.String("result", "", "`file` that a demo wrote: build/demo/result.json")
	report := flag.String("report", "", "`file` that replumb report wrote")
	out := flag.String("o", "docs/pictures", "`folder` to write to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := draw(ctx, *result, *report, *out)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// draw makes the pictures of what there is.
func draw(ctx context.Context, result, report, out string) error {
	if result == "" && report == "" {
		return errors.New("there is nothing to draw\n" +
			"hint: make demo records a result; make pictures RESULT=build/demo/result.json REPORT=report.html")
	}
	if err := os.MkdirAll(out, 0o750); err != nil {
		return err
	}
	ctx, cancel, err := browser(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if result != "" {
		if err := drawMove(ctx, result, out); err != nil {
			return fmt.Errorf("%s: %w", result, err)
		}
	}
	if report != "" {
		if err := drawReport(ctx, report, out); err != nil {
			return fmt.Errorf("%s: %w", report, err)
		}
	}
	return nil
}

// browser is Chromium without a network.
func browser(ctx context.Context) (context.Context, context.CancelFunc, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, nil, fmt.Errorf("%w\nhint: make deps installs it", err)
	}
	flags := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.WSURLReadTimeout(time.Minute),
	)
	ctx, late := context.WithTimeout(ctx, 3*time.Minute)
	ctx, end := chromedp.NewExecAllocator(ctx, flags...)
	ctx, stop := chromedp.NewContext(ctx)
	return ctx, func() { stop(); end(); late() }, nil
}

// drawMove draws the two sides of a demo, one above the other.
func drawMove(ctx context.Context, result, out string) error {
	text, err := os.ReadFile(result)
	if err != nil {
		return err
	}
	html, err := movePage(text)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "replumb-pictures-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "move.html")
	if err := os.WriteFile(file, html, 0o600); err != nil { //nolint:gosec // a folder of its own
		return err
	}
	if err := open(ctx, file, moveWidth, 100); err != nil {
		return err
	}
	picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		return err
	}
	return write(filepath.Join(out, "move.png"), picture)
}

// drawReport draws the top of a report.
func drawReport(ctx context.Context, report, out string) error {
	if _, err := os.Stat(report); err != nil {
		return err
	}
	if err := open(ctx, report, reportWidth, reportHeight); err != nil {
		return err
	}
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		return err
	}
	return write(filepath.Join(out, "report.png"), picture)
}

// open shows a file to readers who prefer light.
func open(ctx context.Context, file string, width, height int64) error {
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, height)); err != nil {
		return err
	}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Media: "screen", Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "light"}},
	}); err != nil {
		return err
	}
	return chromedp.Do(ctx, chromedp.Navigate("file://"+path))
}

func write(file string, picture []byte) error {
	if err := os.WriteFile(file, picture, 0o644); err != nil { //nolint:gosec // a file of the repository
		return err
	}
	fmt.Println(file)
	return nil
}
