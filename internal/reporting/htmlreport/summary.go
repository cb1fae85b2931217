package htmlreport

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// work is what was done, and how long replumb took.
func (d *Document) work(in Input) string {
	what := d.what(in)
	if d.Effort != nil && d.Worked > 0 {
		what += " in " + journal.Took(d.Worked)
	}
	return what
}

func (d *Document) verdict() string {
	if d.Requests == nil {
		return "no requests were counted"
	}
	return fmt.Sprintf("%s of %s requests failed%s", humanize.Comma(d.Requests.Failed), humanize.Comma(d.Requests.Sent), d.Requests.beside())
}

// Tone is whether the verdict is good.
func (d *Document) Tone() string {
	switch {
	case d.Requests == nil && len(d.Losses) == 0:
		return "neutral"
	case len(d.Losses) > 0, d.Requests.Failed > 0:
		return "bad"
	case !d.Requests.Known():
		return "attention"
	}
	return "good"
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
	moved, total := d.Counts.Moved, d.Counts.Total
	switch {
	case back:
		return "Every Service is back at its old address" + d.away()
	case in.Words.Extended:
		return "The Service range was extended by " + strings.Join(d.To, ", ")
	case moved < total:
		return fmt.Sprintf("%d of %s moved", moved, english.Plural(total, "Service", "")) + d.ways()
	}
	return english.Plural(moved, "Service", "") + " moved" + d.ways()
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
