package cli

import (
	"errors"
	"fmt"
	"io"
	"syscall"
)

// output is stdout. It remembers the first write that failed, so that commands need not ask after every line, and lets
// the others go: a migration must not stop half way because no one listens any more.
type output struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
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
