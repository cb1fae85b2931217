package controller

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

const (
	// firstPause follows the first failure, and doubles up to longestPause. A new fingerprint ends
	// it.
	firstPause, longestPause = 10 * time.Second, 5 * time.Minute
	lockPause                = 5 * time.Second
	// patience is how many runs in a row may fail before a person is called.
	patience = 3
	// mostFindings is how many findings a condition spells out.
	mostFindings = 10
)

// Outcome is how a run ended that did not get to its end.
type Outcome struct {
	Of string
	At time.Time
	// Failures are how many there were in a row.
	Failures int
	Verdict  Verdict
}

// Verdict is what an error means for a Migration.
type Verdict struct {
	Standing        migration.Condition
	Reason, Message string
	After           time.Duration
}

// Ended reports whether a run ended by request, or since others may be at work.
func Ended(err error) bool {
	if errors.As(err, new(*lossguard.LossError)) || errors.As(err, new(*lossguard.NotMeasuredError)) {
		return false
	}
	return errors.Is(err, engine.ErrPaused) || errors.Is(err, engine.ErrInterrupted) || engine.Revoked(err)
}

// judge says what an error means that ended a run, the failures-th in a row.
func judge(err error, failures int) Verdict {
	var held *lease.HeldError
	if errors.As(err, &held) {
		return Verdict{migration.UnderWay, v1alpha1.ReasonWaitingForLock, "waits for the lock: " + held.Error(), lockPause}
	}
	pause := backoff(failures)
	if reason := refusal(err); reason != "" {
		return Verdict{migration.Stalled, reason, described(err), pause}
	}
	message := fmt.Sprintf("%s\nthe next run begins in %s", described(err), pause)
	if failures < patience {
		return Verdict{migration.UnderWay, v1alpha1.ReasonRetrying, message, pause}
	}
	reason := v1alpha1.ReasonFailed
	if errors.As(err, new(*lossguard.NotMeasuredError)) {
		reason = v1alpha1.ReasonNotMeasured
	}
	return Verdict{migration.Stalled, reason, fmt.Sprintf("%d runs in a row have failed: %s", failures, message), pause}
}

func backoff(failures int) time.Duration {
	pause := firstPause
	for range failures - 1 {
		if pause = 2 * pause; pause >= longestPause {
			return longestPause
		}
	}
	return pause
}

// refusal is the reason of an error that running again does not resolve; empty if it may.
func refusal(err error) string {
	var (
		stalls   migration.Stalling
		blocked  *findings.BlockedError
		denied   *access.DeniedError
		foreign  *migration.OtherClusterError
		calls    *migration.ForeignCallsError
		field    *spec.Error
		approval *migration.ApprovalError
		state    *migration.StateError
		changed  *migration.ChangedPlanError
		newer    *cluster.NewerError
	)
	switch {
	case errors.As(err, &stalls):
		return stalls.Stalls()
	case errors.As(err, &blocked), errors.As(err, &denied):
		return v1alpha1.ReasonBlocked
	case errors.As(err, &foreign):
		return v1alpha1.ReasonForeignCluster
	case errors.As(err, &calls):
		return v1alpha1.ReasonCallsNotAllowed
	case errors.As(err, &field), errors.As(err, &approval):
		return v1alpha1.ReasonInvalid
	case errors.As(err, &changed):
		return v1alpha1.ReasonPlanChanged
	case errors.As(err, &newer):
		return v1alpha1.ReasonVersionMismatch
	case errors.As(err, &state):
		return v1alpha1.ReasonNotPossible
	}
	return ""
}

// described is an error for a condition, with its findings or its advice.
func described(err error) string {
	var blocked *findings.BlockedError
	if !errors.As(err, &blocked) {
		return withAdvice(err)
	}
	var lines []string
	for i, f := range blocked.Findings {
		if i == mostFindings {
			lines = append(lines, fmt.Sprintf("and %d more; replumb check shows all", len(blocked.Findings)-i))
			break
		}
		text := f.Message
		if text == "" {
			text = f.Claim
		}
		lines = append(lines, f.Code+": "+text)
		if f.Fix != "" {
			lines = append(lines, "fix: "+f.Fix)
		}
	}
	return strings.Join(lines, "\n")
}
