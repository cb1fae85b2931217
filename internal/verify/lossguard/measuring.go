package lossguard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/verify/probe"
)

// lately is the time whose requests decide whether an agent can measure: neither a hiccup nor days.
const lately = time.Minute

type measuring struct {
	// open is what its latest report brought, recent what those brought that came lately.
	open   measured
	recent []measured
	// total is since its losses count, sum is of recent.
	total, sum measured
	// able is when a report last came and the agent could measure, by our clock.
	able time.Time
}

type measured struct {
	at                time.Time
	sent, notMeasured int64
}

func (m *measured) add(o measured) {
	m.sent, m.notMeasured = m.sent+o.sent, m.notMeasured+o.notMeasured
}

func (m *measuring) take(fresh counter) {
	m.open.add(measured{sent: fresh.sent, notMeasured: fresh.notMeasured})
}

// close ends a report that came at a time.
func (m *measuring) close(at time.Time, armed bool) {
	if armed {
		m.total.add(m.open)
	}
	if m.open.at = at; m.open.sent+m.open.notMeasured > 0 {
		// With many nodes a report may be older than that: the latest one counts.
		m.recent = append(slices.DeleteFunc(m.recent, func(r measured) bool { return at.Sub(r.at) >= lately }), m.open)
	}
	m.open, m.sum = measured{}, measured{}
	for _, r := range m.recent {
		m.sum.add(r)
	}
	if m.well() {
		m.able = at
	}
}

// well reports whether the agent can measure.
func (m *measuring) well() bool {
	return probe.Measured(int(m.sum.sent), int(m.sum.notMeasured)) == nil
}

// Unmeasuring names agents that cannot measure what is lost.
func (t *Tally) Unmeasuring(agents []Agent) []string {
	var all []string
	for _, a := range agents {
		if s := t.agents[speaker{a, t.latest[a]}]; s != nil && !s.measuring.well() {
			all = append(all, fmt.Sprintf("node %s: its agent in the network of %ss could not measure %s of %s lately", a.Node,
				strings.ToLower(string(a.Origin)), humanize.Comma(s.measuring.sum.notMeasured), requests(s.measuring.sum)))
		}
	}
	return all
}

func requests(m measured) string {
	n := m.sent + m.notMeasured
	return humanize.Comma(n) + " " + english.PluralWord(int(n), "request", "")
}

// Unable is for how long a reporting agent could not measure, at least since a time.
func (t *Tally) Unable(a Agent, since, now time.Time) time.Duration {
	s := t.agents[speaker{a, t.latest[a]}]
	if s == nil || s.measuring.well() {
		return 0
	}
	if s.measuring.able.After(since) {
		since = s.measuring.able
	}
	return now.Sub(since)
}

// unmeasured says what is not known of a node's requests, if it is too much.
func (t *Tally) unmeasured(node string) string {
	var sum measured
	for k, s := range t.agents {
		if of := s.measuring.total; k.Node == node && probe.Measured(int(of.sent), int(of.notMeasured)) != nil {
			sum.add(of)
		}
	}
	if sum.notMeasured == 0 {
		return ""
	}
	return fmt.Sprintf("%s of %s could not be measured there, so that nothing can be said of what was lost",
		humanize.Comma(sum.notMeasured), requests(sum))
}

// NotMeasuredError says that agents cannot measure what is lost. It is no loss.
type NotMeasuredError struct {
	// Agents in words, with what each could not measure.
	Agents []string
	// For is how long the run has waited for them. Zero means that a step waits.
	For time.Duration
}

func (e *NotMeasuredError) Error() string {
	text := "agents cannot measure what is lost, since their nodes are too busy or too slow"
	if e.For > 0 {
		text += fmt.Sprintf(", for %s now", e.For.Round(time.Second))
	}
	text += ": " + strings.Join(e.Agents[:min(len(e.Agents), namedLosses)], "; ")
	if more := len(e.Agents) - namedLosses; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

func (*NotMeasuredError) ExitCode() int { return fault.ExitNotMeasured }

func (*NotMeasuredError) Advice() string {
	return "nothing was begun meanwhile; find what takes the processors of these nodes (kubectl top node), or lower spec.proof.rate, then run the same " +
		"command again"
}

// Hold lets no group of steps begin while agents cannot measure.
func (w *Watch) Hold(context.Context) error {
	if w.Lenient || !w.nodes.expected() {
		return nil
	}
	return w.measuring()
}

// HoldLimit implements migration.Guard: measure ends the run before.
func (w *Watch) HoldLimit() time.Duration { return w.Patience + lately + 5*lookEvery }

func (w *Watch) measuring() error {
	var all []string
	w.seen().read(func(t *Tally) { all = t.Unmeasuring(w.nodes.due()) })
	if len(all) == 0 {
		return nil
	}
	return engine.NotYet("%w", &NotMeasuredError{Agents: all})
}

// measure ends the run when an agent could not measure for patience and a while.
func (w *Watch) measure(cancel context.CancelCauseFunc) {
	var all []string
	var unable time.Duration
	w.seen().read(func(t *Tally) {
		var a Agent
		if a, unable = w.nodes.unable(t, w.now(), w.Patience+lately); unable > 0 {
			all = t.Unmeasuring([]Agent{a})
		}
	})
	if unable > 0 && !w.Lenient {
		cancel(&NotMeasuredError{Agents: all, For: unable})
	}
}

// unable is the first agent that could not measure for longer than patience.
func (w *watchedNodes) unable(t *Tally, now time.Time, patience time.Duration) (a Agent, unable time.Duration) {
	due := w.due()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range due {
		if since, expected := w.since[a]; expected {
			if unable := t.Unable(a, since, now); unable > patience {
				return a, unable
			}
		}
	}
	return a, 0
}
