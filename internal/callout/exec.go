package callout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/replumb/replumb/internal/engine/printable"
)

const (
	// grace limits the time between SIGTERM and SIGKILL, and for orphans to keep the output open.
	grace = 2 * time.Second

	// maxTail bounds the kept end of stderr, in characters.
	maxTail = 500
)

var (
	errNoCommand = errors.New("the command is empty")
	errRelative  = errors.New("its path depends on where replumb is started: write the whole path, or give the file of the Migration by -f")
)

func lookPath(command []string) error {
	if len(command) == 0 {
		return errNoCommand
	}
	if strings.ContainsRune(command[0], '/') && !filepath.IsAbs(command[0]) {
		return errRelative
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return fmt.Errorf("it cannot be run: %w", err)
	}
	return nil
}

func run(ctx context.Context, command, environ []string, stdin []byte) (stdout []byte, said string, err error) {
	if err := lookPath(command); err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := &capture{full: cancel}
	last := &tail{}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), out, last
	cmd.Env = environ
	cmd.WaitDelay = grace
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	err = cmd.Wait()
	if ctx.Err() != nil || errors.Is(err, exec.ErrWaitDelay) {
		killGroup(cmd) // the program has ended or was killed; not necessarily what it has started
	}
	switch {
	case out.over:
		return nil, "", errTooLong
	case errors.Is(err, exec.ErrWaitDelay):
		err = fmt.Errorf("it left a process behind that kept its output open: %w", err)
	}
	return out.buf.Bytes(), last.String(), err
}

// capture keeps up to maxAnswer bytes; more calls full.
type capture struct {
	buf  bytes.Buffer
	over bool
	full func()
}

func (c *capture) Write(p []byte) (int, error) {
	if c.buf.Len()+len(p) > maxAnswer {
		c.over = true
		c.full()
		return 0, errTooLong
	}
	return c.buf.Write(p)
}

type tail struct{ buf []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 4 * maxTail // a character has up to four bytes
	t.buf = append(t.buf, p[max(0, len(p)-most):]...)
	t.buf = t.buf[max(0, len(t.buf)-most):]
	return len(p), nil
}

func (t *tail) String() string {
	clean := strings.Join(strings.Fields(printable.Line(strings.ToValidUTF8(string(t.buf), ""))), " ")
	if all := []rune(clean); len(all) > maxTail {
		return "..." + string(all[len(all)-maxTail+3:])
	}
	return clean
}
