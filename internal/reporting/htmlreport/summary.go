package htmlreport

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
)

func (d *Document) summarize(in Input) string {
	what := d.what(in)
	if took := d.took(); took > 0 {
		what += " in " + Took(took.Seconds())
	}
	if d.Requests == nil {
		return what + "; no requests were counted"
	}
	return fmt.Sprintf(
		"%s; %s of %s requests failed%s",
		what,
		humanize.Comma(d.Requests.Failed),
		humanize.Comma(d.Requests.Sent),
		d.Requests.beside(),
	)
}

func (d *Document) what(in Input) string {
	over := d.Phase == v1alpha1.PhaseMoved || d.Phase == v1alpha1.PhaseFinishing || d.Phase == v1alpha1.PhaseFinished
	back := d.Phase == v1alpha1.PhaseRolledBack
	if in.Words.Counts {
		return d.counted(in, back)
	}
	return state(in.Words.Subject, in.Words.Did, over, back) + d.ways()
}

// state is a sentence about what is over, was taken back, or goes on.
func state(what, did string, over, back bool) string {
	switch {
	case over:
		return what + " " + did
	case back:
		return what + " " + did + " and everything was taken back,"
	}
	return what + " " + did + " in part"
}

func (d *Document) counted(in Input, back bool) string {
	moved := 0
	for _, s := range d.Services {
		if s.State == stateMoved {
			moved++
		}
	}
	moved = max(moved, in.Migration.Status.Counts.Moved)
	services := english.Plural(moved, "Service", "")
	total := in.Migration.Status.Counts.Total
	switch {
	case back:
		return "Every Service is back at its old address" + d.away()
	case in.Words.Extended:
		return "The Service range was extended by " + strings.Join(d.To, ", ")
	case moved < total:
		return fmt.Sprintf("%d of %s moved", moved, english.Plural(total, "Service", "")) + d.ways()
	}
	return services + " moved" + d.ways()
}

func (d *Document) away() string {
	if len(d.From) == 0 {
		return ""
	}
	return " in " + strings.Join(d.From, ", ")
}

// ways is from where to where.
func (d *Document) ways() string {
	text := ""
	if len(d.From) > 0 {
		text += " from " + strings.Join(d.From, ", ")
	}
	if len(d.To) > 0 {
		text += " to " + strings.Join(d.To, ", ")
	}
	return text
}

// took is how long it took: of Services from the first move to the last, of everything else how
// long runs worked on it.
func (d *Document) took() time.Duration {
	var first, last time.Time
	for _, s := range d.Services {
		if s.At == nil {
			continue
		}
		start := s.At.Add(-time.Duration(s.Seconds * float64(time.Second)))
		if first.IsZero() || start.Before(first) {
			first = start
		}
		if s.At.After(last) {
			last = *s.At
		}
	}
	if !first.IsZero() {
		return last.Sub(first)
	}
	var sum time.Duration
	for _, r := range d.Runs {
		sum += r.End.Sub(r.Start)
	}
	return sum
}

// Took is a length of time for people: 340 ms, 4.2 s, 12 min, 3 h 5 min.
func Took(seconds float64) string {
	length := time.Duration(seconds * float64(time.Second))
	minutes := int(length.Round(time.Minute) / time.Minute)
	switch {
	case length < time.Second:
		return fmt.Sprintf("%d ms", length.Milliseconds())
	case length < 10*time.Second:
		return fmt.Sprintf("%.1f s", seconds)
	case length < 2*time.Minute:
		return fmt.Sprintf("%.0f s", seconds)
	case minutes < 120:
		return fmt.Sprintf("%d min", minutes)
	case minutes%60 == 0 || minutes >= 48*60:
		return fmt.Sprintf("%d h", (minutes+30)/60)
	}
	return fmt.Sprintf("%d h %d min", minutes/60, minutes%60)
}
