package cli

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/replumb/replumb/internal/engine/printable"
)

// output is stdout for people: what is written to it cannot command a terminal. It remembers the first write that failed, so that
// commands need not ask after every line, and lets the others go: a migration must not stop half way because no one listens any more.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	if _, err := (printable.Writer{To: verbatim{o}}).Write(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// verbatim is stdout for programs: for documents, in forms that have their own way with such characters.
type verbatim struct{ *output }

func (v verbatim) Write(p []byte) (int, error) {
	o := v.output
	if o.err == nil {
		_, o.err = o.w.Write(p)
	}
	return len(p), nil
}

// failed is what went wrong with stdout. A reader that left early, such as head, had enough: that is no error.
func (o *output) failed() error {
	if o.err == nil || errors.Is(o.err, syscall.EPIPE) {
		return nil
	}
	return fmt.Errorf("writing the output: %w", o.err)
}
