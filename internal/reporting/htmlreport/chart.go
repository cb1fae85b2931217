package htmlreport

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

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

// ranges are the stretches of time that can be looked at: the whole, runs that followed each other
// closely, and each run. The first one shown is the whole, unless most of it lies between runs.
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
