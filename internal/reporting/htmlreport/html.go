package htmlreport

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/replumb/replumb/internal/reporting/journal"
)

//go:embed assets
var assets embed.FS

// HTML writes the report as one file that needs no other.
func (d *Document) HTML(w io.Writer) error { return d.write(w, false) }

// Framed writes it for a page that has a head and counts of its own.
func (d *Document) Framed(w io.Writer) error { return d.write(w, true) }

// Style is that of the report, for pages around it.
func Style() (string, error) {
	css, err := assets.ReadFile("assets/report.css")
	return string(css), err
}

func (d *Document) write(w io.Writer, framed bool) error {
	t, err := template.New("report.html").Funcs(template.FuncMap{
		"comma": humanize.Comma, "took": journal.Took, "micros": micros, "percent": shown, "stamp": stamp, "clock": clock, "trend": trend,
		"list": func(all []string) string { return strings.Join(all, ", ") },
	}).ParseFS(assets, "assets/report.html")
	if err != nil {
		return fmt.Errorf("the report's template: %w", err)
	}
	p := page{Document: d, Framed: framed, Chart: chartOf(d)}
	for file, to := range map[string]func(string){
		"uPlot.min.css":     func(s string) { p.LibraryStyle = template.CSS(s) }, //nolint:gosec // ours, and embedded
		"uPlot.iife.min.js": func(s string) { p.Library = template.JS(s) },       //nolint:gosec // ours, and embedded
		"report.css":        func(s string) { p.Style = template.CSS(s) },        //nolint:gosec // ours, and embedded
		"report.js":         func(s string) { p.Script = template.JS(s) },        //nolint:gosec // ours, and embedded
		"uPlot.LICENSE":     func(s string) { p.License = strings.TrimSpace(s) },
	} {
		body, err := assets.ReadFile("assets/" + file)
		if err != nil {
			return err
		}
		to(string(body))
	}
	if err := t.Execute(w, p); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// page is what the template gets.
type page struct {
	*Document

	Framed              bool
	Chart               chart
	LibraryStyle, Style template.CSS
	Library, Script     template.JS
	License             string
}

// Policy has a browser run and apply replumb's own parts of the page, by hash, and nothing of the
// data.
func (p page) Policy() string {
	return "default-src 'none'; base-uri 'none'; form-action 'none'" +
		"; style-src " + hashOf(string(p.LibraryStyle)) + " " + hashOf(string(p.Style)) +
		"; script-src " + hashOf(string(p.Library)) + " " + hashOf(string(p.Script))
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func (p page) Availability() float64 { return percent(p.Requests.Sent, p.Requests.Failed) }

func (p page) Phases() []Span {
	return slices.DeleteFunc(slices.Clone(p.Timeline), func(s Span) bool { return s.Level != LevelPhase })
}

// Status is a word for how far it got.
func (p page) Status() string { return cmp.Or(string(p.Phase), "Not begun") }

// Programs are the versions of replumb that took part.
func (p page) Programs() string {
	var all []string
	for _, v := range p.Versions {
		if v.Of == "replumb" {
			all = append(all, v.Version)
		}
	}
	return strings.Join(all, ", ")
}

func micros(n int64) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d µs", n)
	case n < 10_000:
		return fmt.Sprintf("%.1f ms", float64(n)/1000)
	case n < 1_000_000:
		return fmt.Sprintf("%.0f ms", float64(n)/1000)
	}
	return fmt.Sprintf("%.1f s", float64(n)/1e6)
}

// shown is a percentage that is 100 only if nothing is missing.
func shown(p float64) string {
	if p == 100 {
		return "100 %"
	}
	return fmt.Sprintf("%.4f %%", math.Floor(p*1e4)/1e4)
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

// trendLine is a small picture of a probe over time: its p99, and where requests failed.
type trendLine struct {
	Points string
	Failed []float64
}

// trend has as many points as there is room for. Time between runs is left out.
func trend(p Probe) trendLine {
	const width, height, most = 160.0, 28.0, 80
	all := p.Samples
	size := (len(all) + most - 1) / most
	t := trendLine{}
	top := float64(max(p.P99, 1))
	var b strings.Builder
	n := 0.0
	for part := range slices.Chunk(all, max(size, 1)) {
		worst, failed := int64(0), int64(0)
		for _, s := range part {
			worst, failed = max(worst, s.P99), failed+s.Failed
		}
		x := 1 + n*(width-2)/math.Max(1, math.Ceil(float64(len(all))/float64(size))-1)
		fmt.Fprintf(&b, "%.1f,%.1f ", x, height-2-float64(worst)/top*(height-6))
		if failed > 0 {
			t.Failed = append(t.Failed, math.Round(x*10)/10)
		}
		n++
	}
	t.Points = strings.TrimSpace(b.String())
	return t
}
