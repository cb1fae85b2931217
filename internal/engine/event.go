package engine

import "time"

// EventKind is what an event tells.
type EventKind string

// The kinds of events, in the order in which they occur.
const (
	RunStarted     EventKind = "RunStarted"
	PhaseStarted   EventKind = "PhaseStarted"
	StepStarted    EventKind = "StepStarted"
	StepRetried    EventKind = "StepRetried"
	StepWaiting    EventKind = "StepWaiting"
	StepUnchanged  EventKind = "StepUnchanged"
	StepDone       EventKind = "StepDone"
	StepFailed     EventKind = "StepFailed"
	PhaseDone      EventKind = "PhaseDone"
	RunDone        EventKind = "RunDone"
	RunFailed      EventKind = "RunFailed"
	RunInterrupted EventKind = "RunInterrupted"
)

// Ahead is a phase that a run is to come to.
type Ahead struct {
	Name  string `json:"name"`
	Title string `json:"title"`
}

// Event is one thing that happened. Renderers, status and reports all feed on events.
type Event struct {
	Time    time.Time `json:"time"`
	Kind    EventKind `json:"kind"`
	Plan    string    `json:"plan"`
	Phase   string    `json:"phase,omitempty"`
	Group   string    `json:"group,omitempty"`
	Step    string    `json:"step,omitempty"`
	Role    StepRole  `json:"role,omitempty"`
	Message string    `json:"message,omitempty"`
	Error   string    `json:"error,omitempty"`
	// Interrupted marks a StepFailed by cancellation, which can be resumed.
	Interrupted bool `json:"interrupted,omitempty"`
	// Note is a done step's remark, such as a failure that stopped nothing.
	Note string `json:"note,omitempty"`
	// Private is for the operator's terminal alone: it is in no JSON.
	Private string `json:"-"`
	// Guide tells people what to do, when a step waits for them.
	Guide string `json:"guide,omitempty"`
	// Done and Total count the steps of the phase, for events of a phase or step.
	Done  int `json:"done"`
	Total int `json:"total"`
	// Ahead are the phases of the plan that have steps, on RunStarted.
	Ahead []Ahead `json:"ahead,omitempty"`
	// Seconds is how long the step, phase or run took, on the events that end one.
	Seconds float64 `json:"seconds,omitempty"`
}
