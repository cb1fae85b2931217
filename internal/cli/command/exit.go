package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/safety/freeze"
)

// UsageError is a command line that cannot be meant.
type UsageError struct {
	Problem string
	Hint    string
}

func (e *UsageError) Error() string { return e.Problem }

func (e *UsageError) Advice() string { return e.Hint }

func (*UsageError) ExitCode() int { return fault.ExitUsage }

// Failure is an error with a hint and an exit code that nothing asks more of.
type Failure struct {
	Problem, Hint string
	Code          int
}

func (e *Failure) Error() string { return e.Problem }

func (e *Failure) Advice() string { return e.Hint }

func (e *Failure) ExitCode() int { return e.Code }

// ToldError is an error whose text the command has printed itself, as its result.
type ToldError struct{ Err error }

func (e *ToldError) Error() string { return e.Err.Error() }

func (e *ToldError) Unwrap() error { return e.Err }

// Told has Report leave out an error; nil stays nil.
func Told(err error) error {
	if err == nil {
		return nil
	}
	return &ToldError{Err: err}
}

// ExitCode of an error: its own, else that of a run that ended early, if it is one.
func ExitCode(err error) int {
	if err == nil {
		return fault.ExitDone
	}
	if code, ok := fault.ExitCode(err); ok {
		return code
	}
	if cancelled(err) || errors.Is(err, engine.ErrPaused) {
		return fault.ExitInterrupted
	}
	return fault.ExitError
}

// cancelled reports whether a run ended early.
func cancelled(err error) bool {
	return errors.Is(err, engine.ErrInterrupted) || errors.Is(err, context.Canceled)
}

// Report writes an error, and what to do about it, for people who call replumb by a name.
func Report(w io.Writer, command string, err error) {
	if err == nil || errors.As(err, new(*ToldError)) {
		return
	}
	fmt.Fprintf(w, "error: %s\n", printable.Indented(Spoken(command, err.Error()), "  "))
	if said := fault.Private(err); said != "" {
		fmt.Fprintf(w, "output: %s\n", printable.Indented(said, "  "))
	}
	if hint := HintOf(err); hint != "" {
		fmt.Fprintf(w, "hint: %s\n", printable.Indented(Spoken(command, hint), "  "))
	}
}

// HintOf is the advice of an error, or that of any error of its class.
func HintOf(err error) string {
	if hint := fault.Advice(err); hint != "" {
		return hint
	}
	switch {
	case errors.Is(err, engine.ErrPaused):
		return "replumb resume NAME carries on"
	case cancelled(err):
		return "it is safe to run the same command again: it carries on"
	case freeze.Refused(err):
		return "this is no lack of rights: a migration that is under way keeps the object as it is; the message says how to change it all the same"
	case lacksRights(err):
		return bind("-f FILE")
	case admission.Advice(err) != "":
		return admission.Advice(err)
	case errors.As(err, new(*engine.StepError)):
		return "repair what the message names, and run the same command again: it carries on; replumb status shows where everything stands"
	}
	return ""
}

// lacksRights reports whether the user may not do what was asked for.
func lacksRights(err error) bool {
	var denied *access.DeniedError
	return errors.As(err, &denied) || apierrors.IsForbidden(err) && !freeze.Refused(err) && admission.Advice(err) == ""
}

// WithRights says how to get the rights that a kind of migration needs, if the user lacks some.
func WithRights(err error, kind string) error {
	return hinted(err, bind(kind))
}

// Administrative is an error of a command for administrators: no role of replumb has its rights.
func Administrative(err error) error {
	return hinted(err, "it takes an administrator of the cluster (the role cluster-admin); no role of replumb is enough")
}

func hinted(err error, hint string) error {
	if !lacksRights(err) || cancelled(err) || fault.Advice(err) != "" {
		return err
	}
	return &fault.Hinted{Err: err, Hint: hint}
}

func bind(of string) string {
	return "have an administrator bind the roles: replumb rbac " + of + " --user NAME | kubectl apply -f -"
}
