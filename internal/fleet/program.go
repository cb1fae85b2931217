package fleet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/replumb/replumb/internal/engine/fault"
)

// Program starts this very program for each cluster, so that a crash is that cluster's alone. The
// Migration is passed on stdin: nothing is written to disk.
type Program struct {
	// Path of the program, and the name that it is called by.
	Path, Name string
	// Flags that all get, such as --as.
	Flags []string
	// More are those of an action alone, such as --late.
	More []string
	// Kubeconfig for clusters that have none of their own; empty for that of the environment.
	Kubeconfig string
	// OnLine is called for each line that a replumb prints while it acts.
	OnLine func(t *ClusterTarget, l OutputLine)
}

// OutputLine is one that a replumb printed.
type OutputLine struct {
	Text string
	// Event is true of lines on stdout, which are JSON.
	Event bool
}

func (p *Program) Status(ctx context.Context, t *ClusterTarget) ClusterState {
	printed, of := p.Ask(ctx, t, "status", t.Migration.Name, "--ignore-not-found", "-o", "json")
	if of.Code != fault.ExitDone {
		return Unknown(t, of)
	}
	s := ClusterState{Cluster: t.Name, Wave: t.Wave}
	if err := s.Read(printed); err != nil {
		return Unknown(t, Outcome{Code: fault.ExitError, Error: err.Error()})
	}
	return s
}

func (p *Program) Do(ctx context.Context, t *ClusterTarget, a ClusterAction) Outcome {
	args := []string{string(a), "-f", "-", "-o", "json"}
	if a != Apply {
		args = append(args, "--yes")
	}
	out := &lines{each: func(text string) { p.OnLine(t, OutputLine{Text: text, Event: true}) }}
	err := &lines{each: func(text string) { p.OnLine(t, OutputLine{Text: text}) }}
	return p.run(ctx, t, append(args, p.More...), out, err)
}

// Ask runs a command that only looks, and returns what it printed. The Migration is on its stdin.
func (p *Program) Ask(ctx context.Context, t *ClusterTarget, args ...string) ([]byte, Outcome) {
	var printed bytes.Buffer
	of := p.run(ctx, t, args, &printed, &lines{each: func(string) {}})
	return printed.Bytes(), of
}

func (p *Program) run(ctx context.Context, t *ClusterTarget, args []string, out io.Writer, said *lines) Outcome {
	args = append(args, "--context", t.Context)
	if file := first(t.Kubeconfig, p.Kubeconfig); file != "" {
		args = append(args, "--kubeconfig", file)
	}
	cmd := exec.CommandContext(ctx, p.Path, append(args, p.Flags...)...)
	cmd.Args[0] = p.Name
	cmd.Dir, cmd.Env = t.Dir, environment()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(t.Manifest), out, said
	// A second Ctrl-C would end it in the middle of a step: it gets one alone.
	cmd.Cancel = func() error { return interrupt(cmd) }
	apart(cmd)
	// The signal at the death of the parent (Pdeathsig) goes by the thread that started the
	// program.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	for _, w := range []io.Writer{out, said} {
		if l, ok := w.(*lines); ok {
			l.flush()
		}
	}
	var exit *exec.ExitError
	switch {
	case cmd.ProcessState == nil && ctx.Err() != nil:
		return Outcome{Code: fault.ExitInterrupted, Error: "interrupted"}
	case err == nil, cmd.ProcessState != nil && cmd.ProcessState.Success():
		return Outcome{}
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return Outcome{Code: exit.ExitCode(), Error: said.err()}
	}
	return Outcome{Code: fault.ExitError, Error: first(said.err(), err.Error())}
}

func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

// environment has absolute paths in KUBECONFIG: the program works in another folder.
func environment() []string {
	env := os.Environ()
	files := filepath.SplitList(os.Getenv("KUBECONFIG"))
	for i, file := range files {
		if whole, err := filepath.Abs(file); err == nil && file != "" {
			files[i] = whole
		}
	}
	if len(files) > 0 {
		env = append(env, "KUBECONFIG="+strings.Join(files, string(filepath.ListSeparator)))
	}
	return env
}

// lines passes what is written to it on line by line, and keeps the last error that is reported.
type lines struct {
	each func(string)

	mu    sync.Mutex
	begun []byte
	said  string
	goes  bool
}

// longest is the part of a line that is waited for.
const longest = 1 << 20

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = append(l.begun, b...)
	for {
		advance, line, _ := bufio.ScanLines(l.begun, len(l.begun) > longest)
		if advance == 0 {
			return len(b), nil
		}
		l.line(string(line))
		l.begun = l.begun[advance:]
	}
}

func (l *lines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.begun) > 0 {
		l.line(string(l.begun))
	}
	l.begun = nil
}

func (l *lines) line(text string) {
	if said, ok := strings.CutPrefix(text, "error: "); ok {
		l.said, l.goes = said, true
	} else if more, ok := strings.CutPrefix(text, "  "); ok && l.goes {
		l.said += " " + more
	} else {
		l.goes = false
	}
	l.each(text)
}

// err is the error that was reported, on one line.
func (l *lines) err() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said
}
