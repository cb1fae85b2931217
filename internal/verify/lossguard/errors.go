package lossguard

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

// LossError says that losses, or late answers, exceed their budget. It is the cause of a cancelled
// run.
type LossError struct {
	Migration string
	// Failed counts failed requests and connects, Late late answers instead. Budget is the limit.
	Failed, Late int64
	Budget       int
	// Losses are the latest by node and probe; Lates instead, for late answers.
	Losses []v1alpha1.Loss
	Lates  []Late
}

func (e *LossError) OfLate() bool { return e.Late > 0 }

// namedLosses is how many losses an error names.
const namedLosses = 3

func (e *LossError) Error() string {
	if e.OfLate() {
		return fmt.Sprintf("%s, and spec.proof.lateBudget is %d; they are no losses: %s",
			english.Plural(int(e.Late), "answer was late", "answers were late"), e.Budget, describeLate(e.Lates))
	}
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

func (*LossError) ExitCode() int { return fault.ExitBudget }

func (e *LossError) Stalls() string {
	if e.OfLate() {
		return v1alpha1.ReasonLateBudgetExceeded
	}
	return v1alpha1.ReasonLossBudgetExceeded
}

func (e *LossError) Advice() string {
	if e.OfLate() {
		return "nothing else is begun; find what drops or delays packets there, or raise spec.proof.lateBudget if these targets are slow by nature, then " +
			"run the same command again, or replumb rollback " + e.Migration
	}
	return "nothing else is begun, and what has moved answers wherever its node does its part; repair what the probe met with, then run the same " +
		"command again, or replumb rollback " + e.Migration
}

// Describe a loss in words.
func Describe(l *v1alpha1.Loss) string {
	window := l.Start.UTC().Format(precise)
	if l.End.Sub(l.Start.Time) >= time.Millisecond {
		window += " to " + l.End.UTC().Format(precise)
	}
	return fmt.Sprintf("probe %s on node %s to %s lost %d at %s (%s)", l.Probe, l.Node, l.Address, l.Failed, window, l.Error)
}

const precise = "15:04:05.000Z"
