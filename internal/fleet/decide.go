package fleet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

// ClusterAction is what is done to each cluster.
type ClusterAction string

// The actions.
const (
	Apply    ClusterAction = "apply"
	Rollback ClusterAction = "rollback"
	Finish   ClusterAction = "finish"
)

// Order is the one in which waves follow one another.
func (a ClusterAction) Order(waves []Wave) []Wave {
	all := slices.Clone(waves)
	if a == Rollback {
		slices.Reverse(all)
	}
	return all
}

// Spared says why there is nothing to do for a cluster; empty if there may be something. A replumb
// of the cluster finds out the rest.
func (a ClusterAction) Spared(s ClusterState) string {
	switch {
	case s.Error != "":
		return ""
	case a == Apply && s.Phase == v1alpha1.PhaseFinished:
		return "it is finished"
	case a == Finish && s.Phase == v1alpha1.PhaseFinished:
		return "it is finished already"
	case a == Rollback && s.Phase == "":
		return "it has not begun"
	case a == Rollback && s.Phase == v1alpha1.PhaseRolledBack:
		return "it is rolled back already"
	}
	return ""
}

// RefusedError says that an action on a fleet did not begin.
type RefusedError struct {
	Action ClusterAction
	// Clusters with the reason of each.
	Clusters []string
	Hint     string
	Code     int
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s does not begin in any cluster: %s", e.Action, strings.Join(e.Clusters, ", "))
}

func (e *RefusedError) Advice() string { return e.Hint }

func (e *RefusedError) ExitCode() int { return e.Code }

// Refusal is why an action must not begin in any cluster. Apply asks its clusters when it comes to
// them.
func (a ClusterAction) Refusal(states []ClusterState) error {
	var unknown, unfit []string
	code := fault.ExitDone
	for _, s := range states {
		switch {
		case a == Apply:
		case s.Error != "":
			unknown = append(unknown, fmt.Sprintf("%s is not known (%s)", s.Cluster, strings.ReplaceAll(s.Error, "\n", " ")))
			code = Worse(code, s.ExitCode)
		case a == Finish && !s.through():
			unfit = append(unfit, fmt.Sprintf("%s is %s", s.Cluster, s.PhaseText()))
		case a == Rollback && s.Final:
			unfit = append(unfit, s.Cluster+" has passed the point of no return")
		}
	}
	const apart = "--wave and --cluster leave clusters out; nothing was changed"
	switch {
	case len(unknown) > 0:
		return &RefusedError{Action: a, Clusters: unknown, Hint: apart, Code: Worse(code, fault.ExitError)}
	case len(unfit) > 0 && a == Finish:
		return &RefusedError{Action: a, Clusters: unfit, Hint: "replumb fleet apply -f FILE first; " + apart, Code: fault.ExitBlocked}
	case len(unfit) > 0:
		return &RefusedError{Action: a, Clusters: unfit, Hint: apart, Code: fault.ExitBlocked}
	}
	return nil
}

// PhaseText is the phase, for people.
func (s *ClusterState) PhaseText() string {
	text := string(s.Phase)
	if s.Phase == "" {
		text = "not begun"
	}
	if s.Stage != "" {
		text += " (" + s.Stage + ")"
	}
	if s.Paused {
		text += ", paused"
	}
	return text
}

// Worse is the exit code that a script has to know of first. Foreign ones, as of a killed process,
// count as errors.
func Worse(a, b int) int {
	ranks := []int{
		fault.ExitDone, fault.ExitInterrupted, fault.ExitUsage, fault.ExitLocked, fault.ExitBlocked, fault.ExitError,
		fault.ExitNotMeasured, fault.ExitBudget,
	}
	known := func(code int) int {
		if slices.Contains(ranks, code) {
			return code
		}
		return fault.ExitError
	}
	a, b = known(a), known(b)
	if slices.Index(ranks, a) < slices.Index(ranks, b) {
		return b
	}
	return a
}

// Result is how an action ended in a cluster.
type Result struct {
	Cluster string
	Outcome
}

// HaltedError says that a fleet stopped in a wave.
type HaltedError struct {
	Fleet, Wave string
	Action      ClusterAction
	// Ended are the clusters in which the action did not get through.
	Ended []Result
	// Left are those in which it did not begin.
	Left []string
	// Health is why the health action failed, if it did.
	Health error
}

func (e *HaltedError) Error() string {
	var why []string
	for _, r := range e.Ended {
		text := fmt.Sprintf("%s ended with exit code %d", r.Cluster, r.Code)
		if r.Error != "" {
			text += ": " + r.Error
		}
		why = append(why, text)
	}
	if e.Health != nil {
		why = append(why, fmt.Sprintf("it is not healthy: %v", e.Health))
	}
	text := fmt.Sprintf("fleet %s halted in wave %s; %s", e.Fleet, e.Wave, strings.Join(why, "; "))
	if len(e.Left) > 0 {
		text += fmt.Sprintf("; %s did not begin: %s", english.Plural(len(e.Left), "cluster", ""), strings.Join(e.Left, ", "))
	}
	return text
}

func (e *HaltedError) Unwrap() error { return e.Health }

// ExitCode is the worst of them.
func (e *HaltedError) ExitCode() int {
	code := fault.ExitDone
	if e.Health != nil {
		code = fault.ExitError
	}
	for _, r := range e.Ended {
		code = Worse(code, r.Code)
	}
	return code
}

func (e *HaltedError) Advice() string {
	return fmt.Sprintf(
		"replumb fleet status -f FILE shows every cluster; after repair, replumb fleet %s -f FILE goes on where it was", e.Action)
}
