package report

import (
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

//go:embed assets
var assets embed.FS //nolint:gochecknoglobals // that is how files are embedded

// HTML writes the report as one file that needs no other.
func (d *Document) HTML(w io.Writer) error {
	t, err := template.New("report.html").Funcs(template.FuncMap{
		"comma": humanize.Comma, "took": Took, "micros": micros, "percent": shown, "stamp": stamp, "clock": clock, "trend": trend,
		"list": func(all []string) string { return strings.Join(all, ", ") },
	}).ParseFS(assets, "assets/report.html")
	if err != nil {
		return fmt.Errorf("the report's template: %w", err)
	}
	p := page{Document: d, Chart: chartOf(d)}
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

	Chart               chart
	LibraryStyle, Style template.CSS
	Library, Script     template.JS
	License             string
}

// Availability of all probes, in percent.
func (p page) Availability() float64 { return percent(p.Requests.Sent, p.Requests.Failed) }

// Phases are the spans of that level.
func (p page) Phases() []Span {
	return slices.DeleteFunc(slices.Clone(p.Timeline), func(s Span) bool { return s.Level != LevelPhase })
}

// Moved is how many Services are at another address.
func (p page) Moved() int {
	n := 0
	for _, s := range p.Services {
		if s.State == stateMoved {
			n++
		}
	}
	return n
}

// Length is the time in which runs worked, in seconds.
func (p page) Length() float64 {
	sum := 0.0
	for _, r := range p.Runs {
		sum += r.Seconds
	}
	return sum
}

// Status is a word for how it stands, and Tone whether that is good.
func (p page) Status() string { return cmp.Or(string(p.Phase), "Not begun") }

// Tone of the status: good, bad or neutral.
func (p page) Tone() string {
	switch {
	case p.Requests != nil && p.Requests.Failed > 0, len(p.Losses) > 0, p.Problem != "":
		return "bad"
	case p.Requests != nil:
		return "good"
	}
	return "neutral"
}

// chart is the data of the charts. Times are seconds since the Unix epoch, latencies milliseconds.
type chart struct {
	// Slot is how many seconds one point covers.
	Slot   int64         `json:"slot"`
	Ranges []chartRange  `json:"ranges"`
	Spans  []chartSpan   `json:"spans"`
	Losses []chartLoss   `json:"losses"`
	Probes []chartSeries `json:"probes"`
}

type chartRange struct {
	Name  string `json:"name"`
	Start int64  `json:"start"`
	End   int64  `json:"end"`
}

type chartSpan struct {
	Level   Level   `json:"level"`
	Name    string  `json:"name"`
	Start   float64 `json:"start"`
	End     float64 `json:"end"`
	Outcome Outcome `json:"outcome"`
}

type chartLoss struct {
	Start float64 `json:"start"`
	End   float64 `json:"end"`
	Text  string  `json:"text"`
	Probe string  `json:"probe"`
}

type chartSeries struct {
	Name string    `json:"name"`
	X    []int64   `json:"x"`
	OK   []float64 `json:"ok"`
	// P50 and P99 are nothing where no request succeeded.
	P50 []*float64 `json:"p50"`
	P99 []*float64 `json:"p99"`
}

// points is how many a chart shows at most: about as many as there are pixels.
const points = 1500

// everything is the name of all probes together, and of the whole time.
const everything = "All"

func chartOf(d *Document) chart {
	c := chart{Slot: slot(d), Ranges: ranges(d), Spans: []chartSpan{}, Losses: []chartLoss{}, Probes: []chartSeries{}}
	for _, s := range d.Timeline {
		c.Spans = append(c.Spans, chartSpan{Level: s.Level, Name: s.Name, Start: unix(s.Start), End: unix(s.End), Outcome: s.Outcome})
	}
	for _, l := range d.Losses {
		c.Losses = append(c.Losses, chartLoss{
			Start: unix(l.Start), End: unix(l.End), Probe: l.Probe,
			Text: fmt.Sprintf("%d failed: %s on %s, %s", l.Failed, l.Probe, l.Node, l.Error),
		})
	}
	var all []Point
	for _, p := range d.Probes {
		all = append(all, p.Samples...)
	}
	if len(all) > 0 {
		c.Probes = append(c.Probes, series(everything+" probes", coarse(all, c.Slot)))
	}
	for _, p := range d.Probes {
		c.Probes = append(c.Probes, series(p.Name, coarse(p.Samples, c.Slot)))
	}
	return c
}

// slot is how many seconds a point covers: ten, unless there would be too many points.
func slot(d *Document) int64 {
	covered := int64(0)
	for _, p := range d.Probes {
		of := int64(0)
		for _, s := range p.Samples {
			of += s.End - s.Start
		}
		covered = max(covered, of)
	}
	return max(10, (covered/points+9)/10*10)
}

// pause is how long nothing may happen between runs that are looked at together.
const pause = 15 * 60

// ranges are the stretches of time that can be looked at: the whole, runs that followed each other closely, and each run by itself.
// The first is the one to begin with: the whole, unless most of it lies between runs; then the longest stretch.
func ranges(d *Document) []chartRange {
	var each, close []chartRange
	first, worked := 0, int64(0)
	for i, r := range d.Runs {
		start, end := r.Start.Unix(), max(r.End.Unix()+1, r.Start.Unix()+10)
		each = append(each, chartRange{Name: fmt.Sprintf("%d: %s", i+1, strings.TrimPrefix(r.Command, "replumb ")), Start: start, End: end})
		worked += end - start
		if n := len(close); n > 0 && start-close[n-1].End <= pause {
			close[n-1].Name, close[n-1].End = fmt.Sprintf("runs %d to %d", first, i+1), max(end, close[n-1].End)
			continue
		}
		first = i + 1
		close = append(close, each[i])
	}
	whole, ok := wholeOf(d, each)
	if !ok {
		return []chartRange{}
	}
	out := []chartRange{whole}
	if len(close) > 1 {
		longest := slices.MaxFunc(close, func(a, b chartRange) int { return cmp.Compare(a.End-a.Start, b.End-b.Start) })
		if out = append(out, longest); whole.End-whole.Start > 2*worked {
			slices.Reverse(out)
		}
	}
	for _, r := range slices.Concat(close, each) {
		if len(each) > 1 && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// wholeOf is all the time in which something was done or measured, if there is any.
func wholeOf(d *Document, each []chartRange) (chartRange, bool) {
	whole := chartRange{Name: "Whole migration", Start: math.MaxInt64}
	for _, r := range each {
		whole.Start, whole.End = min(whole.Start, r.Start), max(whole.End, r.End)
	}
	for _, p := range d.Probes {
		whole.Start, whole.End = min(whole.Start, p.Samples[0].Start), max(whole.End, p.Samples[len(p.Samples)-1].End)
	}
	return whole, whole.End > 0
}

func series(name string, all []Point) chartSeries {
	s := chartSeries{Name: name}
	for _, p := range all {
		s.X = append(s.X, p.Start)
		s.OK = append(s.OK, percent(p.Sent, p.Failed))
		var p50, p99 *float64
		if p.Sent > p.Failed {
			p50, p99 = millis(p.P50), millis(p.P99)
		}
		s.P50, s.P99 = append(s.P50, p50), append(s.P99, p99)
	}
	return s
}

func millis(micros int64) *float64 {
	ms := float64(micros) / 1000
	return &ms
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// micros is a latency for people.
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
