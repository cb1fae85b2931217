package lossguard

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

// LossError says that more was lost than the budget allows. It is the cause with which a Watch cancels a run.
type LossError struct {
	Migration string
	// Failed is how many requests and connects failed since the run began, Budget how many may.
	Failed int64
	Budget int
	// Losses are the latest, one for each node and probe at most.
	Losses []v1alpha1.Loss
}

// namedLosses is how many losses an error names.
const namedLosses = 3

func (e *LossError) Error() string {
	var parts []string
	for i := range e.Losses {
		if i == namedLosses {
			parts = append(parts, fmt.Sprintf("and %d more", len(e.Losses)-i))
			break
		}
		parts = append(parts, Describe(&e.Losses[i]))
	}
	text := fmt.Sprintf("%s failed", english.Plural(int(e.Failed), "request", ""))
	if e.Budget > 0 {
		text += fmt.Sprintf(", and the budget is %d", e.Budget)
	}
	return text + ": " + strings.Join(parts, "; ")
}

// ExitCode implements fault.Coder.
func (*LossError) ExitCode() int { return fault.ExitBudget }

// Stalls implements migration.Stalling.
func (*LossError) Stalls() string { return v1alpha1.ReasonLossBudgetExceeded }

// Advice is what to do about it.
func (e *LossError) Advice() string {
	return "nothing else is begun, and what has moved answers wherever its node does its part; repair what the probe met with, then run the same " +
		"command again, or replumb rollback " + e.Migration
}

// Describe a loss in words: which probe, on which node, in which window.
func Describe(l *v1alpha1.Loss) string {
	window := l.Start.UTC().Format(precise)
	if l.End.Sub(l.Start.Time) >= time.Millisecond {
		window += " to " + l.End.UTC().Format(precise)
	}
	return fmt.Sprintf("probe %s on node %s to %s lost %d at %s (%s)", l.Probe, l.Node, l.Address, l.Failed, window, l.Error)
}

const precise = "15:04:05.000Z"
