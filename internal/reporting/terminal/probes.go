package terminal

import (
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/verify/probe"
)

// Probes tells people of losses and stalls while probing goes on, and on a terminal how far it is.
type Probes struct {
	mu    sync.Mutex
	w     io.Writer
	line  *ProgressLine // nil elsewhere than on a terminal
	begin time.Time
	lossy map[string]*openLoss

	sent, failed, late, notMeasured int

	second int64
}

type openLoss struct {
	first, last time.Time
	failed      int
}

// NewProbes tells on w, and redraws progress if that is not nil.
func NewProbes(w io.Writer, progress *ProgressLine) *Probes {
	return &Probes{w: w, line: progress, begin: time.Now(), lossy: map[string]*openLoss{}}
}

// Failure tells the first of a loss.
func (p *Probes) Failure(target string, scheduled time.Time, failure *probe.Failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if loss := p.lossy[target]; loss != nil {
		loss.last = later(loss.last, scheduled)
		return
	}
	p.lossy[target] = &openLoss{first: scheduled, last: scheduled}
	p.tell(scheduled, target, "lost: "+failure.Error())
}

// Window counts, and tells what is over.
func (p *Probes) Window(w probe.Interval) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent, p.failed = p.sent+w.Sent, p.failed+w.Failed
	p.late, p.notMeasured = p.late+w.Late, p.notMeasured+w.NotMeasured
	for _, stall := range w.Stalls {
		p.tell(stall.StartTime(), w.Target, "nothing answered for "+short(stall.Duration())+ownDelay(stall.BehindFor()))
	}
	loss := p.lossy[w.Target]
	switch {
	case loss == nil:
	case w.Failed > 0:
		loss.failed += w.Failed
	case w.OK > 0 && w.StartTime().After(loss.last): // others may have failed in seconds that are not over
		delete(p.lossy, w.Target)
		p.tell(w.StartTime(), w.Target, fmt.Sprintf("answers again; %d failed within %s", loss.failed, short(loss.last.Sub(loss.first))))
	}
	if p.line != nil && w.Start > p.second {
		p.second = w.Start
		since := time.Since(p.begin).Round(time.Second)
		p.line.draw(fmt.Sprintf("%s: %d sent, %d failed%s; Ctrl-C ends it", since, p.sent, p.failed, p.beside()))
	}
}

// beside counts what is neither lost nor as it should be; nothing, if there is none.
func (p *Probes) beside() (text string) {
	if p.late > 0 {
		text += fmt.Sprintf(", %d late", p.late)
	}
	if p.notMeasured > 0 {
		text += fmt.Sprintf(", %d not measured", p.notMeasured)
	}
	return text
}

// Close takes the progress away.
func (p *Probes) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line != nil {
		p.line.clear()
	}
}

func (p *Probes) tell(at time.Time, target, what string) {
	if p.line != nil {
		p.line.clear()
	}
	fmt.Fprintf(p.w, "%s %s: %s\n", clock(at), printable.Line(target), printable.Line(what))
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func clock(at time.Time) string { return at.Local().Format("15:04:05.000") }

func short(d time.Duration) string {
	if d >= 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// ownDelay says how much of something may be the fault of this machine, if it is much.
func ownDelay(behind time.Duration) string {
	if behind == 0 {
		return ""
	}
	return ", while this machine itself was behind for " + short(behind)
}

// shownStretches bounds the losses, and the stalls, printed of a target; JSON has more.
const shownStretches = 20

// ProbeSummary shows what probing has come to.
func ProbeSummary(w io.Writer, s probe.Summary) error {
	rows := [][]string{{"TARGET", "SENT", "FAILED", "LATE", "NOT MEASURED", "P50", "P90", "P99", "MAX", "LONGEST GAP", "LONGEST STALL"}}
	for _, t := range s.Targets {
		rows = append(rows, []string{
			t.Target, strconv.Itoa(t.Sent), strconv.Itoa(t.Failed), strconv.Itoa(t.Late), strconv.Itoa(t.NotMeasured),
			latency(t, t.P50), latency(t, t.P90), latency(t, t.P99), latency(t, t.Max),
			short(t.LongestGap.Duration()), none(t.LongestStall),
		})
	}
	if err := Table(w, rows); err != nil {
		return err
	}
	for _, t := range s.Targets {
		probeLosses(w, t)
		probeStalls(w, t)
	}
	return nil
}

func probeLosses(w io.Writer, t probe.TargetSummary) {
	shown := t.Losses[:min(shownStretches, len(t.Losses))]
	for _, l := range shown {
		fmt.Fprintf(w, "\nlost: %s\n  from %s to %s, %d requests: %s\n  %s\n",
			t.Target, clock(l.Start), clock(l.End), l.Failed, probe.FormatErrors(l.Errors), printable.Line(l.Error))
	}
	if more := len(t.Losses) - len(shown) + t.MoreLosses; more > 0 {
		fmt.Fprintf(w, "\nlost: %s\n  %d more times\n", t.Target, more)
	}
}

func probeStalls(w io.Writer, t probe.TargetSummary) {
	shown := t.Stalls[:min(shownStretches, len(t.Stalls))]
	if len(shown) > 0 {
		fmt.Fprintf(w, "\nstalled: %s\n", t.Target)
	}
	for _, l := range shown {
		fmt.Fprintf(w, "  from %s for %s%s\n", clock(l.Start), short(l.Length.Duration()), ownDelay(l.Behind.Duration()))
	}
	if more := len(t.Stalls) - len(shown) + t.MoreStalls; more > 0 {
		fmt.Fprintf(w, "  %d more times\n", more)
	}
}

func latency(t probe.TargetSummary, m probe.Milliseconds) string {
	if t.OK == 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(m), 'f', 1, 64) + "ms"
}

func none(m probe.Milliseconds) string {
	if m == 0 {
		return "-"
	}
	return short(m.Duration())
}
