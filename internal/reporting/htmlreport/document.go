// Package htmlreport says what happened in a migration, as a document and as one file of HTML that
// opens without a network.
package htmlreport

import (
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/reporting/journal"
	"github.com/replumb/replumb/internal/verify/probe"
)

// Document is the report of one migration.
type Document struct {
	Migration string          `json:"migration"`
	Cluster   engine.Identity `json:"cluster"`
	// Kind is Services, Pods, Nodes, Mirror, Network or kube-proxy.
	Kind string `json:"kind"`
	// Work is what was done, and Verdict how requests fared meanwhile; Summary is both in one
	// sentence.
	Work    string         `json:"work"`
	Verdict string         `json:"verdict"`
	Summary string         `json:"summary"`
	Phase   v1alpha1.Phase `json:"phase,omitempty"`
	Problem string         `json:"problem,omitempty"`
	Made    time.Time      `json:"made"`
	From    []string       `json:"from,omitempty"`
	To      []string       `json:"to,omitempty"`
	// Effort is nil if nothing is known of any run.
	*journal.Effort
	Counts   v1alpha1.Counts `json:"counts"`
	Requests *Requests       `json:"requests,omitempty"`

	Runs     []Run              `json:"runs"`
	Timeline []Span             `json:"timeline"`
	Probes   []Probe            `json:"probes"`
	Losses   []Loss             `json:"losses"`
	Services []Service          `json:"services,omitempty"`
	Gates    []Gate             `json:"gates"`
	Confirms []Confirm          `json:"confirmations"`
	Findings []Finding          `json:"findings"`
	Users    []OldAddressClient `json:"stragglers"`
	Versions []Version          `json:"versions"`
	Notes    []string           `json:"notes"`
	Nodes    []NodeLine         `json:"nodes,omitempty"`
}

// Requests are those of all probes, in all runs.
type Requests struct {
	Sent   int64 `json:"sent"`
	Failed int64 `json:"failed"`
	// Late answers did not fail. NotMeasured requests come on top.
	Late        int64 `json:"late"`
	NotMeasured int64 `json:"notMeasured"`
	// Unlisted are those of Failed that are in no entry of Losses.
	Unlisted int64 `json:"unlisted,omitempty"`
}

// Known reports whether enough was measured for anything to be said of what was lost.
func (r *Requests) Known() bool { return probe.Measured(int(r.Sent), int(r.NotMeasured)) == nil }

// beside says what is neither lost nor as it should be; nothing, if there is none.
func (r *Requests) beside() (text string) {
	if r.Late > 0 {
		text += fmt.Sprintf(", %s answered late", humanize.Comma(r.Late))
	}
	if r.NotMeasured > 0 {
		text += fmt.Sprintf(", %s more not measured", humanize.Comma(r.NotMeasured))
	}
	return text
}

// Outcome is how a run or a part of one ended.
type Outcome string

// The outcomes. A killed run says nothing of its end; a refused one never began.
const (
	Refused     Outcome = "refused"
	Done        Outcome = "done"
	Failed      Outcome = "failed"
	Interrupted Outcome = "interrupted"
	Open        Outcome = "no end recorded"
)

// Run is one command that worked on the migration.
type Run struct {
	journal.Run

	End     time.Time `json:"end"`
	Seconds float64   `json:"seconds"`
	Outcome Outcome   `json:"outcome"`
	Error   string    `json:"error,omitempty"`
}

// Level is what a span is one of.
type Level string

// The levels, from the widest to the narrowest.
const (
	LevelRun   Level = "run"
	LevelPhase Level = "phase"
	LevelTier  Level = "tier"
	LevelBatch Level = "batch"
)

// Span is a stretch of time in which something was done.
type Span struct {
	Level   Level     `json:"level"`
	Name    string    `json:"name"`
	Title   string    `json:"title,omitempty"`
	Run     string    `json:"run,omitempty"`
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	Outcome Outcome   `json:"outcome"`
	// Steps is how many did something.
	Steps int `json:"steps,omitempty"`
}

// Seconds it took.
func (s Span) Seconds() float64 { return s.End.Sub(s.Start).Seconds() }

// Probe sums one probe up. Latencies are in microseconds: P50 is the mean of the medians, P99 that
// of the worst stretch.
type Probe struct {
	Name   string `json:"name"`
	Sent   int64  `json:"sent"`
	Failed int64  `json:"failed"`
	// Late and NotMeasured are those of Requests.
	Late        int64 `json:"late"`
	NotMeasured int64 `json:"notMeasured"`
	P50         int64 `json:"p50"`
	P99         int64 `json:"p99"`
	Max         int64 `json:"max"`
	// Samples, oldest first.
	Samples []Point `json:"samples"`
}

// Availability in percent.
func (p Probe) Availability() float64 { return percent(p.Sent, p.Failed) }

// Point is a stretch of time of a probe; Start and End in seconds since the Unix epoch.
type Point struct {
	Start  int64 `json:"start"`
	End    int64 `json:"end"`
	Sent   int64 `json:"sent"`
	Failed int64 `json:"failed"`
	// Late and NotMeasured are those of Requests.
	Late        int64 `json:"late,omitempty"`
	NotMeasured int64 `json:"notMeasured,omitempty"`
	P50         int64 `json:"p50"`
	P99         int64 `json:"p99"`
}

// Loss is a stretch in which one node's requests of one probe failed.
type Loss struct {
	Node    string    `json:"node"`
	Probe   string    `json:"probe"`
	Address string    `json:"address"`
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	Failed  int       `json:"failed"`
	Error   string    `json:"error"`
}

// Service is one that the migration is about.
type Service struct {
	Name     string `json:"name"`
	From     string `json:"from,omitempty"`
	To       string `json:"to,omitempty"`
	State    string `json:"state,omitempty"`
	Strategy string `json:"strategy,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// At is when it arrived, Seconds how long that took.
	At      *time.Time `json:"at,omitempty"`
	Seconds float64    `json:"seconds,omitempty"`
}

// Gate is a step that waited for people.
type Gate struct {
	Step  string    `json:"step"`
	Title string    `json:"title"`
	Guide string    `json:"guide"`
	Since time.Time `json:"since"`
	// Passed is when it was seen to be done; nil if it was not in that run. By is who had the run.
	Passed  *time.Time `json:"passed,omitempty"`
	By      string     `json:"by,omitempty"`
	Seconds float64    `json:"seconds,omitempty"`
}

// Confirm is what the operator confirmed by an annotation of the Migration.
type Confirm struct {
	Annotation string `json:"annotation"`
	Value      string `json:"value"`
	// Manager is the program that wrote it, as the API server knows it.
	Manager string     `json:"manager,omitempty"`
	At      *time.Time `json:"at,omitempty"`
}

// Finding is a check that did not pass, or a flag by which the user went on.
type Finding struct {
	Code     string `json:"code"`
	Severity string `json:"severity"`
	Outcome  string `json:"outcome"`
	Claim    string `json:"claim,omitempty"`
	Object   string `json:"object,omitempty"`
	Message  string `json:"message,omitempty"`
	// By is who had the run, if the finding was overridden.
	By string `json:"by,omitempty"`
}

// OldAddressClient was seen to use an old address.
type OldAddressClient struct {
	Node     string    `json:"node"`
	Client   string    `json:"client"`
	Service  string    `json:"service"`
	Address  string    `json:"address"`
	Protocol string    `json:"protocol"`
	Seen     time.Time `json:"seen"`
	Open     int       `json:"open,omitempty"`
}

// Version of something, and on how many nodes.
type Version struct {
	Of      string `json:"of"`
	Version string `json:"version"`
	Nodes   int    `json:"nodes,omitempty"`
}

// NodeLine is a node that leaves.
type NodeLine struct {
	Name      string   `json:"name"`
	Role      string   `json:"role"`
	Addresses []string `json:"addresses,omitempty"`
	State     string   `json:"state"`
}

// Thinned is the report with samples of at least so many seconds: all for zero, none for less.
func (d *Document) Thinned(seconds int64) *Document {
	if seconds == 0 {
		return d
	}
	out := *d
	out.Probes = make([]Probe, len(d.Probes))
	for i, p := range d.Probes {
		if p.Samples = coarse(p.Samples, max(seconds, 1)); seconds < 0 {
			p.Samples = []Point{}
		}
		out.Probes[i] = p
	}
	out.Notes = append(slices.Clone(d.Notes), "there was no room to keep all samples of this report: some are put together, or left out")
	return &out
}
