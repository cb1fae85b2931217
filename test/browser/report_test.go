//go:build programs && long

package browser

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/testing/samplereport"
)

// openReport shows a report from a file.
func openReport(t *testing.T, in htmlreport.Input) *browser {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.html")
	var page bytes.Buffer
	if err := htmlreport.Build(in).HTML(&page); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, page.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return open(t, "file://"+file)
}

func script(text string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](text)
}

// quiet sees that the page has complained of nothing and asked for nothing but itself.
func (b *browser) quiet(t *testing.T) {
	t.Helper()
	b.silent(t)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) == 0 {
		t.Error("not even the file was asked for")
	}
	for _, url := range b.requests {
		if !strings.HasPrefix(url, "file:") && !strings.HasPrefix(url, "data:") {
			t.Errorf("asked for %s", url)
		}
	}
}

// shot keeps a picture, to be looked at: REPLUMB_REPORT_SHOTS names a directory.
func (b *browser) shot(t *testing.T, name string) {
	t.Helper()
	picture := get(t, b, chromedp.FullScreenshot(100))
	if len(picture) < 10_000 {
		t.Errorf("%s: a picture of %d bytes", name, len(picture))
	}
	keep(t, name+".png", picture)
}

func keep(t *testing.T, name string, body []byte) {
	t.Helper()
	dir := os.Getenv("REPLUMB_REPORT_SHOTS")
	if dir == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, name), body, 0o600); err != nil {
		t.Fatal(err)
	}
}

// inked counts the pixels of each canvas that are not empty, by the color given as r,g,b, or any.
const inked = `((want) => [...document.querySelectorAll("canvas")].map((c) => {
  const k = Object.assign(document.createElement("canvas"), {width: c.width, height: c.height});
  const copy = k.getContext("2d", {willReadFrequently: true});
  copy.drawImage(c, 0, 0);
  const d = copy.getImageData(0, 0, c.width, c.height).data;
  let n = 0;
  for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 0 && (!want || d[i] === want[0] && d[i + 1] === want[1] && d[i + 2] === want[2])) n++;
  return n;
}))`

func (b *browser) drawn(t *testing.T, charts int) {
	t.Helper()
	pixels := eval[[]int](t, b, inked+"()")
	if len(pixels) != charts {
		t.Fatalf("%d charts, want %d", len(pixels), charts)
	}
	for i, n := range pixels {
		if n < 1000 {
			t.Errorf("chart %d has %d pixels", i, n)
		}
	}
}

func TestReport(t *testing.T) {
	b := openReport(t, samplereport.New(143, true))
	b.media(t, "screen", "light")
	b.drawn(t, 3)
	b.shot(t, "light")
	light := eval[string](t, b, `getComputedStyle(document.body).backgroundColor`)
	lines := eval[[]int](t, b, inked+"([37, 99, 201])")
	if lines[2] < 200 {
		t.Errorf("the line of p50 has %d pixels", lines[2])
	}
	b.media(t, "screen", "dark")
	b.drawn(t, 3)
	b.shot(t, "dark")
	if dark := eval[string](t, b, `getComputedStyle(document.body).backgroundColor`); dark == light {
		t.Errorf("light and dark are both %s", dark)
	}
	if lines := eval[[]int](t, b, inked+"([116, 169, 255])"); lines[2] < 200 {
		t.Errorf("in the dark, the line of p50 has %d pixels", lines[2])
	}
	b.media(t, "screen", "light")

	t.Run("another probe and another time", func(t *testing.T) {
		names := eval[[]string](t, b, `[...document.querySelectorAll("#probe option, #range option")].map((o) => o.text)`)
		if len(names) != 14 || names[0] != "All probes" || names[1] != "host/name" {
			t.Errorf("to choose from: %q", names)
		}
		before := eval[string](t, b, `document.querySelectorAll("canvas")[2].toDataURL()`)
		choose := `((id, i) => { const s = document.getElementById(id); s.value = String(i); s.dispatchEvent(new Event("change")); })`
		b.do(t, script(choose+`("probe", 4)`), script(choose+`("range", 3)`))
		b.drawn(t, 3)
		if after := eval[string](t, b, `document.querySelectorAll("canvas")[2].toDataURL()`); after == before {
			t.Error("the chart is the same")
		}
	})
	t.Run("under the cursor", func(t *testing.T) {
		b.do(t, chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, 1, 1))
		x := eval[[]float64](t, b, `(() => { const o = document.querySelectorAll(".u-over")[2];
			o.scrollIntoView({block: "center", behavior: "instant"}); const r = o.getBoundingClientRect(); return [r.left + r.width / 3, r.top + 40]; })()`)
		b.do(t, chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x[0], x[1]), chromedp.Poll[chromedp.Void](
			`document.getElementById("readout").textContent.includes("p99")`, chromedp.WithPollingTimeout(20*time.Second)))
	})
	t.Run("tables", func(t *testing.T) {
		first := `document.querySelector("#services-table tbody tr:not([hidden])").cells[0].textContent`
		sort := `document.querySelectorAll("#services-table th button")[5].click()`
		b.do(t, script(sort), script(sort))
		if got := eval[string](t, b, first); got != samplereport.Service(142) {
			t.Errorf("the latest is %s", got)
		}
		b.do(t, script(`document.getElementById("search").value = "172.24.0.8"`),
			script(`document.getElementById("search").dispatchEvent(new Event("input"))`))
		if got := eval[string](t, b, `document.getElementById("found").textContent`); got != "11 of 144" {
			t.Errorf("found %s", got)
		}
	})
	if title := eval[string](t, b, "document.title"); title != "Migration services-to-172-24: report" {
		t.Errorf("the title is %q", title)
	}
	b.quiet(t)
}

func TestReportOnPaper(t *testing.T) {
	b := openReport(t, samplereport.New(143, false))
	// Who looks at it in the dark prints on white.
	b.media(t, "", "dark")
	paper := get(t, b, chromedp.PrintToPDF(chromedp.PDFPaper(chromedp.PaperA4), chromedp.PDFPreferCSSPageSize()))
	keep(t, "paper.pdf", paper)
	if pages := bytes.Count(paper, []byte("/Type /Page\n")); pages < 3 || pages > 12 {
		t.Errorf("%d pages", pages)
	}
	b.media(t, "print", "dark")
	b.drawn(t, 3)
	if got := eval[string](t, b, `getComputedStyle(document.body).backgroundColor`); got != "rgb(255, 255, 255)" {
		t.Errorf("paper is %s", got)
	}
	if lines := eval[[]int](t, b, inked+"([29, 79, 168])"); lines[2] < 200 {
		t.Errorf("on paper, the line of p50 has %d pixels", lines[2])
	}
	b.do(t, chromedp.EmulateViewport(680, 1000)) // about as wide as A4 within its margins
	wide := eval[[]string](t, b, `[...document.querySelectorAll("table, canvas")].filter((e) =>
		e.getBoundingClientRect().right > document.body.clientWidth + 1).map((e) => e.caption ? e.caption.textContent : e.localName)`)
	if len(wide) > 0 {
		t.Errorf("wider than paper: %q", wide)
	}
	b.media(t, "screen", "light")
	b.do(t, chromedp.EmulateViewport(360, 800))
	b.shot(t, "phone")
	b.quiet(t)
}

func TestReportOfManyServices(t *testing.T) {
	start := time.Now()
	in := samplereport.New(5000, false)
	b := openReport(t, in)
	b.drawn(t, 3)
	if rows := eval[int](t, b, `document.getElementById("services-table").tBodies[0].rows.length`); rows != 5001 {
		t.Errorf("%d rows", rows)
	}
	took := eval[float64](t, b, `(() => { const t = performance.now(); document.querySelectorAll("#services-table th button")[1].click();
		document.body.offsetHeight; return performance.now() - t; })()`)
	t.Logf("open after %s; sorted in %.0f ms", time.Since(start), took)
	b.shot(t, "many")
	b.quiet(t)
}

// TestReportWithoutHistory shows a report of a migration of another kind that nothing is known of.
func TestReportWithoutHistory(t *testing.T) {
	in := samplereport.New(0, false)
	in.History, in.Services = nil, nil
	b := openReport(t, in)
	b.drawn(t, 0)
	b.shot(t, "empty")
	b.quiet(t)
}
