package engine

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/engine/fault"
)

// ErrInterrupted is a cancelled run, in which begun steps were finished or can be resumed.
var ErrInterrupted = errors.New("interrupted")

// ErrPaused is a run that ended for a pause, like ErrInterrupted.
var ErrPaused = errors.New("paused")

// ErrSuperseded is the cause of a run that is cancelled because something else is asked for by now.
var ErrSuperseded = errors.New("something else is asked for by now")

// StepError says which step stopped a run.
type StepError struct {
	Phase string
	Step  string
	Title string
	Err   error
}

func (e *StepError) Error() string { return fmt.Sprintf("step %s: %v", e.Step, e.Err) }
func (e *StepError) Unwrap() error { return e.Err }

// DeadlineError says that something was waited for in vain. Err is what was missing at the end.
type DeadlineError struct {
	After string
	Err   error
}

func (e *DeadlineError) Error() string { return fmt.Sprintf("%v (gave up after %s)", e.Err, e.After) }

func (e *DeadlineError) Advice() string {
	if text := fault.Advice(e.Err); text != "" {
		return text
	}
	return "when the cause is removed, run the same command again: it carries on"
}

func (e *DeadlineError) Unwrap() error { return e.Err }

type notYetError struct {
	err error
	// anew says that what was done does not stand.
	anew bool
}

func (e *notYetError) Error() string { return e.err.Error() }
func (e *notYetError) Unwrap() error { return e.err }

// NotYet makes an error that asks to look again later: not true yet, but it may become true.
func NotYet(format string, args ...any) error {
	return &notYetError{err: fmt.Errorf(format, args...)}
}

// Anew makes an error like NotYet after which the step begins with a fresh look, since what it had
// done does not stand.
func Anew(format string, args ...any) error {
	return &notYetError{err: fmt.Errorf(format, args...), anew: true}
}

// Retryable reports whether trying again can help: not true yet, a conflict, an expired list (410),
// or an API server that is busy, restarting or out of reach. A Revocation is never retried.
func Retryable(err error) bool {
	if Revoked(err) {
		return false
	}
	var later *notYetError
	if errors.As(err, &later) {
		return true
	}
	if answered, retry := retryableStatus(err); answered {
		return retry
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || brokeOff(err)
}

// brokeOff reports whether a connection ended within an answer. HTTP/2 errors have no exported
// type, but client-go names them (transformResponse in k8s.io/client-go rest/request.go).
func brokeOff(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return strings.Contains(text, "when reading response body") && strings.Contains(text, "Please retry")
}

func retryableStatus(err error) (answered, retry bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false, false
	}
	return true, status.Status().Code >= 500 || apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// vanished reports whether an API server has no object of a name, as opposed to no such kind.
func vanished(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name != ""
}
