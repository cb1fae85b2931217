package rehearsal

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// program is replumb.
type program struct {
	file string
	// dir is a folder for what it keeps.
	dir string
}

// said is what a command of replumb came to.
type said struct {
	code           int
	stdout, stderr []byte
}

func (p program) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.file, args...)
	cmd.Dir = p.dir
	// No kubeconfig of the user's is read.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+os.DevNull, "XDG_CONFIG_HOME="+p.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it gives its lock back
	cmd.WaitDelay = time.Minute
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is passed on once
	return cmd
}

// run runs a command to its end. An exit code is no error.
func (p program) run(ctx context.Context, args ...string) (*said, error) {
	cmd := p.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ended := new(exec.ExitError); err != nil && !errors.As(err, &ended) {
		return nil, fmt.Errorf("running %s: %w", p.file, err)
	}
	return &said{code: cmd.ProcessState.ExitCode(), stdout: stdout.Bytes(), stderr: stderr.Bytes()}, ctx.Err()
}

// events runs a command that tells of events, and hands each of them on. stop interrupts the command.
func (p program) events(ctx context.Context, hear func(e engine.Event, stop func()), args ...string) (*said, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := p.command(ctx, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("running %s: %w", p.file, err)
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e engine.Event
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Kind != "" {
			hear(e, cancel)
		}
	}
	_, _ = io.Copy(io.Discard, out) // a line that is too long ends the scan, and not the command
	err = cmd.Wait()
	if ended := new(exec.ExitError); err != nil && !errors.As(err, &ended) && !errors.Is(err, context.Canceled) {
		return nil, fmt.Errorf("running %s: %w", p.file, err)
	}
	return &said{code: cmd.ProcessState.ExitCode(), stderr: stderr.Bytes()}, nil
}

// complaint is what a command says went wrong: its lines of errors and hints, or else its last ones.
func complaint(stderr []byte) string {
	lines := strings.Split(strings.TrimSpace(string(stderr)), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "error:") {
			return strings.TrimPrefix(strings.Join(lines[i:], "\n"), "error: ")
		}
	}
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}
