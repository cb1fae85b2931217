package progress

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/internal/verify/lossguard"
	"github.com/replumb/replumb/internal/verify/probe"
)

// Tone is whether a fact is good news.
type Tone string

// The tones.
const (
	Plain     Tone = ""
	Strong    Tone = "strong"
	Good      Tone = "good"
	Bad       Tone = "bad"
	Attention Tone = "attention"
)

// The labels of facts.
const (
	labelPhase, labelMoved, labelTiers, labelLost, labelLock = "phase", "moved", "tiers", "lost", "lock"
	labelWaits, labelError, labelNext                        = "waits", "error", "next"
)

// Fact is one thing to know of a moment, in words. Without a label it goes on from the one before.
type Fact struct {
	Label string `json:"label"`
	Text  string `json:"text"`
	Tone  Tone   `json:"tone"`
}

// Facts are for people, beside gates. Their text is of others, in part.
func (v View) Facts() (all []Fact) {
	for _, f := range []Fact{
		v.where(), v.progress(), v.forecast(), v.tiers(), v.proof(),
		{labelLock, v.Holder, Plain},
		{labelWaits, v.Waits, Attention},
		v.problem(),
		{labelNext, v.Next, Strong},
	} {
		if f.Text != "" {
			all = append(all, f)
		}
	}
	return all
}

// Title says what it is about, where and when.
func (v View) Title() string {
	text := "migration " + v.Migration
	if v.Cluster != "" {
		text += " on " + v.Cluster
	}
	return text + ", " + v.At.UTC().Format("15:04:05 UTC")
}

func (v View) where() Fact {
	text := string(v.Phase)
	if text == "" {
		text = "not begun"
	}
	if v.Stage != "" {
		text += ": " + v.Stage
	}
	if v.Group != "" && v.Group != v.Stage {
		text += ", " + v.Group
	}
	standing, tone := v.Standing()
	if tone == Attention || tone == Bad {
		text += "; " + standing
	}
	return Fact{labelPhase, text, tone}
}

// Standing is how it goes, whatever the phase and whatever was lost.
func (v View) Standing() (text string, tone Tone) {
	switch {
	case v.problem().Text != "":
		return "stopped", Bad
	case v.Paused:
		return "paused", Attention
	case v.Over:
		return "over", Good
	case v.Holder == "" && !v.Unseen:
		return "no one works on it", Attention
	case len(v.Gates) > 0:
		return "waits for you", Attention
	}
	return "under way", Plain
}

func (v View) progress() Fact {
	if v.Total == 0 {
		return Fact{}
	}
	text := fmt.Sprintf("%s %s of %s %s", v.bar(), humanize.Comma(int64(v.Done)), humanize.Comma(int64(v.Total)), v.Unit)
	if v.Rate > 0 {
		text += fmt.Sprintf(", %s a minute", pace(v.Rate))
	}
	return Fact{labelMoved, text, Plain}
}

func (v View) forecast() Fact {
	if !v.Known {
		return Fact{}
	}
	by := v.At.Add(v.Left).UTC()
	layout := "15:04 UTC"
	if by.YearDay() != v.At.UTC().YearDay() || by.Year() != v.At.UTC().Year() {
		layout = "Mon 2 Jan 15:04 UTC"
	}
	return Fact{Text: fmt.Sprintf(
		"all moved in about %s, by %s, without what gates, windows and restarts take", rough(v.Left), by.Format(layout))}
}

func pace(rate float64) string {
	if rate < 10 {
		return fmt.Sprintf("%.1f", rate)
	}
	return fmt.Sprintf("%.0f", rate)
}

func rough(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(5, 5*int((d+2500*time.Millisecond)/(5*time.Second))))
	case d < 100*time.Minute:
		return fmt.Sprintf("%d min", int(d.Round(time.Minute)/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

func (v View) bar() string {
	const cells = 30
	full := v.Filled(cells)
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", cells-full) + "]"
}

// Filled is how many cells of a bar are. All of them are only once the migration is over: phases
// may follow when everything has moved, and fail.
func (v View) Filled(cells int) int {
	full := min(cells, cells*v.Done/max(1, v.Total))
	if _, tone := v.Standing(); tone != Good {
		full = min(full, cells-1)
	}
	return full
}

func (v View) tiers() Fact {
	if len(v.Tiers) < 2 {
		return Fact{}
	}
	var all []string
	for _, t := range v.Tiers {
		all = append(all, fmt.Sprintf("%s %s/%s", t.Name, humanize.Comma(int64(t.Moved)), humanize.Comma(int64(t.Total))))
	}
	return Fact{labelTiers, strings.Join(all, ", "), Plain}
}

func (v View) proof() Fact {
	p := v.Proof
	if p == nil {
		return Fact{}
	}
	lost, tone := "nothing", Good
	if p.Failed > 0 {
		lost, tone = humanize.Comma(p.Failed), Bad
	}
	if unmeasured := probe.Measured(int(p.Sent), int(p.NotMeasured)) != nil; unmeasured && p.Failed == 0 {
		lost, tone = "not known", Attention
	}
	text := fmt.Sprintf("%s of %s requests in the latest run, from %d nodes", lost, humanize.Comma(p.Sent), p.Nodes)
	if p.Late > 0 {
		text += fmt.Sprintf("; %s late", humanize.Comma(p.Late))
	}
	if p.NotMeasured > 0 {
		text += fmt.Sprintf("; %s not measured", humanize.Comma(p.NotMeasured))
	}
	if len(p.Silent) > 0 {
		text += "; " + english.Plural(len(p.Silent), "node is", "nodes are") + " not probed, or not measured"
	}
	return Fact{labelLost, text, tone}
}

func (v View) problem() Fact {
	if v.Holder != "" {
		return Fact{}
	}
	return Fact{labelError, v.Problem, Bad}
}

// Losses are the latest ones in words, the last first.
func (v View) Losses() (all []string) {
	if v.Proof == nil {
		return nil
	}
	for i := len(v.Proof.Losses) - 1; i >= 0; i-- {
		all = append(all, lossguard.Describe(&v.Proof.Losses[i]))
	}
	return all
}
