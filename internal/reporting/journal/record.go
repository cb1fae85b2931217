// Package journal keeps what a migration's report is made of, in ConfigMaps that belong to it.
package journal

import (
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
)

// Run is one command that worked on a migration.
type Run struct {
	// ID is what other records name it by.
	ID string `json:"id"`
	// User and Host are who ran it, and where; Command is what, such as "replumb apply".
	User    string    `json:"user,omitempty"`
	Host    string    `json:"host,omitempty"`
	Command string    `json:"command"`
	Version string    `json:"version,omitempty"`
	Start   time.Time `json:"start"`
	// Cluster is the one that it worked on, as its kubeconfig calls it.
	Cluster engine.Identity `json:"cluster,omitzero"`
	// APIServer is its version, Kubelets how many nodes have which.
	APIServer string         `json:"apiServer,omitempty"`
	Kubelets  map[string]int `json:"kubelets,omitempty"`
	// Overrides are the flags by which the user went on in spite of a finding.
	Overrides []string `json:"overrides,omitempty"`
}

// Sample is what the requests of one probe met with, over all nodes, in a stretch of time.
type Sample struct {
	Probe  string `json:"p"`
	Start  int64  `json:"s"`
	End    int64  `json:"e"`
	Sent   int64  `json:"q"`
	Failed int64  `json:"f,omitempty"`
	// Late answers did not fail. NotMeasured requests come on top.
	Late        int64 `json:"l,omitempty"`
	NotMeasured int64 `json:"n,omitempty"`
	// P50, P99 and Max of successes, in microseconds. Merged samples have the mean P50, weighed by
	// requests, and the worst P99.
	P50 int64 `json:"m,omitempty"`
	P99 int64 `json:"t,omitempty"`
	Max int64 `json:"x,omitempty"`
}

// Move is one Service that has arrived at another address.
type Move struct {
	Service  string    `json:"service"`
	From     string    `json:"from"`
	To       string    `json:"to"`
	Strategy string    `json:"strategy,omitempty"`
	At       time.Time `json:"at"`
	// Seconds is how long it took, from the first write to the proof.
	Seconds float64 `json:"seconds,omitempty"`
}

// Straggler is a client of an old address, on a node.
type Straggler struct {
	Node string `json:"node"`

	v1alpha1.OldAddressClient `json:",inline"`
}

// Event is one of a run.
type Event struct {
	engine.Event

	Run string `json:"run"`
}

// Finding is one that did not pass, as a run saw it.
type Finding struct {
	findings.Finding

	Run string `json:"run"`
}

// record is one line: exactly one of the pointers is set.
type record struct {
	Run string `json:"r"`
	// Number counts the records of a run, from 1.
	Number int `json:"n"`

	Begin     *Run              `json:"run,omitempty"`
	Event     *engine.Event     `json:"event,omitempty"`
	Sample    *Sample           `json:"sample,omitempty"`
	Loss      *v1alpha1.Loss    `json:"loss,omitempty"`
	Move      *Move             `json:"move,omitempty"`
	Finding   *findings.Finding `json:"finding,omitempty"`
	Straggler *Straggler        `json:"straggler,omitempty"`
}

func (r *record) minor() bool { return r.Sample != nil || r.detail() }

// detail is a step that succeeded or retries: its phase tells as much.
func (r *record) detail() bool {
	if r.Event == nil || r.Event.Error != "" && r.Event.Kind != engine.StepRetried || r.Event.Guide != "" || r.Event.Note != "" {
		return false
	}
	return r.Event.Kind == engine.StepDone || r.Event.Kind == engine.StepRetried
}
