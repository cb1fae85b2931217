// Package command holds what the commands of replumb share: their streams, the name they are called
// by, the connection to a cluster, and the forms in which they print.
//
// The rules of output:
//
//   - stdout has results and stderr has the rest: progress, warnings, hints, questions, errors.
//   - Text for people passes through printable: what others wrote cannot command a terminal.
//   - Documents for programs (Output.Verbatim) are written as they are.
//   - With -o json a command that runs writes one event a line to stdout, and no prose.
//   - --quiet leaves out progress and hints, never results, warnings, questions or errors.
//   - Questions are asked on a terminal alone; elsewhere --yes answers, or the command is refused.
//   - An error is one line in lower case; a line "hint: " says what to do about it.
//   - Commands in texts are spelled as the user calls replumb: "kubectl replumb" as a plugin.
//   - A reader of stdout that goes away ends no migration, and is no error.
package command

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/replumb/replumb/internal/engine/printable"
)

// Output is stdout for people. It keeps the first write error, and a migration goes on after it.
type Output struct {
	To  io.Writer
	err error
}

func (o *Output) Write(p []byte) (int, error) {
	if _, err := (printable.Writer{To: o.Verbatim()}).Write(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Verbatim is stdout for documents, whose forms escape such characters themselves.
func (o *Output) Verbatim() io.Writer { return verbatim{o} }

type verbatim struct{ *Output }

func (v verbatim) Write(p []byte) (int, error) {
	o := v.Output
	if o.err == nil {
		_, o.err = o.To.Write(p)
	}
	return len(p), nil
}

// Broken is the first write error.
func (o *Output) Broken() error { return o.err }

// Failed is the error that stdout ends a command with. A reader that left early, such as head, is
// none.
func (o *Output) Failed() error {
	if o.err == nil || errors.Is(o.err, syscall.EPIPE) {
		return nil
	}
	return fmt.Errorf("writing the output: %w", o.err)
}
