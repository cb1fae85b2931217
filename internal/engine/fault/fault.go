// Package fault adds an exit code and advice to errors. An error type has these as methods, so that
// a new one needs no entry in a list elsewhere.
package fault

import "errors"

// The exit codes of commands, which scripts rely on.
const (
	// ExitDone says that the command did what it was asked to do, or that nothing was left to do.
	ExitDone = 0
	// ExitError says that the command failed. It is safe to run it again: it carries on.
	ExitError = 1
	// ExitUsage says that the command line or the Migration is not valid. Every error in the
	// Migration has a line.
	ExitUsage = 2
	// ExitBlocked says that the command refused to begin, or to go on with another round, and wrote
	// nothing from then on. The reasons are findings, overlapping ranges, missing rights, calls
	// that no one agreed to, a plan or a cluster that is another than the one given, and a choice
	// that rollback takes by --late.
	ExitBlocked = 3
	// ExitBudget says that more requests were lost than the budget allows, or more answers were
	// late than theirs. The same command goes on after repair.
	ExitBudget = 4
	// ExitLocked says that another replumb works on the cluster.
	ExitLocked = 5
	// ExitNotMeasured says that nothing can be said of losses: the machine that requests come from
	// is too busy or too slow. It is no loss, and the same command goes on once the machine can
	// measure.
	ExitNotMeasured = 6
	// ExitInterrupted says that the command was interrupted or paused. It is safe to run it again:
	// it carries on.
	ExitInterrupted = 130
)

// Coder is an error that ends a command with an exit code of its own.
type Coder interface {
	error
	ExitCode() int
}

// Adviser is an error with a line of advice; empty if there is none. (Hint is taken: most types
// have a field of that name.)
type Adviser interface {
	error
	Advice() string
}

// Confidant is an error with text for the operator's terminal alone, such as a program's output.
type Confidant interface {
	error
	Private() string
}

// Private is what the outermost Confidant of an error knows. Empty if there is none.
func Private(err error) string {
	var c Confidant
	if errors.As(err, &c) {
		return c.Private()
	}
	return ""
}

// ExitCode is the code of the outermost error that has one; ok is false if none has.
func ExitCode(err error) (code int, ok bool) {
	var c Coder
	if errors.As(err, &c) {
		return c.ExitCode(), true
	}
	return ExitError, false
}

// Advice is that of the outermost error with any, which knows most.
func Advice(err error) string {
	var a Adviser
	for errors.As(err, &a) {
		if text := a.Advice(); text != "" {
			return text
		}
		err = errors.Unwrap(a)
	}
	return ""
}

// Hinted gives an error advice.
type Hinted struct {
	Err  error
	Hint string
}

func (e *Hinted) Error() string  { return e.Err.Error() }
func (e *Hinted) Unwrap() error  { return e.Err }
func (e *Hinted) Advice() string { return e.Hint }
