package journal

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
)

// Effort is when a migration was worked on, for how long, and at whose command.
type Effort struct {
	// Start of the first run, and End of the last.
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	// Worked is the length of all runs together, in seconds, and Commands how many there were.
	Worked   float64  `json:"worked"`
	Commands int      `json:"commands"`
	By       []string `json:"by"`
}

// By is user and host, as far as they are known.
func (r Run) By() string {
	if r.User == "" || r.Host == "" {
		return cmp.Or(r.User, r.Host)
	}
	return r.User + "@" + r.Host
}

// End of a run. One that was killed, or goes on, ends with the last that was heard of it.
func (h *History) End(r Run) time.Time {
	end := r.Start
	for _, e := range h.Events {
		if e.Run == r.ID && e.Time.After(end) {
			end = e.Time
		}
	}
	return end
}

// Effort of all runs; nil if there were none.
func (h *History) Effort() *Effort {
	if len(h.Runs) == 0 {
		return nil
	}
	e := &Effort{Start: h.Runs[0].Start.UTC(), Commands: len(h.Runs), By: []string{}}
	for _, r := range h.Runs {
		end := h.End(r).UTC()
		e.Worked += end.Sub(r.Start).Seconds()
		if end.After(e.End) {
			e.End = end
		}
		if by := r.By(); by != "" && !slices.Contains(e.By, by) {
			e.By = append(e.By, by)
		}
	}
	return e
}

// Line is all of it in words.
func (e *Effort) Line() string {
	const day, minute = "2 Jan 2006", "15:04"
	begin, end := e.Start.Format(day+", "+minute), e.End.Format(day+", "+minute)
	when := begin
	if end != begin {
		when += " to " + strings.TrimPrefix(end, e.Start.Format(day)+", ")
	}
	text := fmt.Sprintf("%s UTC, %s that took %s", when, english.Plural(e.Commands, "run", ""), Took(e.Worked))
	if len(e.By) > 0 {
		text += ", by " + strings.Join(e.By, ", ")
	}
	return text
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
