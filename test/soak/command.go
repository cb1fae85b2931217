package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

const (
	// Each command is killed up to maxKills times, after as many as killedBy events of a run at most.
	maxKills, killedBy = 3, 150
	// maxStumbles is how many runs in a row may end by themselves before they are done: an API server was away for longer than a step, or
	// the lock, outlasts; or a check says that a node is not ready, which has just ended; or agents stood still with the machine.
	maxStumbles = 6
	// runWithin bounds one run. One that takes longer is asked where it hangs.
	runWithin = 25 * time.Minute
)

// Exit codes of replumb.
const (
	exitError       = 1
	exitBlocked     = 3
	exitNotMeasured = 6
	exitInterrupted = 130
)

// command is one of replumb that is run again and again until it is done.
type command struct {
	program string
	args    []string
	random  *rand.Rand
	// act does what a gate waits for.
	act func(ctx context.Context, gate string) error
	// look is for how long the operator looks at what a run said that ended by itself before it was done.
	look time.Duration
	// amend, if set, does what such a run may have asked for.
	amend func(context.Context) error
	// say reports what happens, heard each event.
	say   func(format string, args ...any)
	heard func(engine.Event)

	kills, stumbles int
}

// outcome of one run.
type outcome struct {
	code   int
	killed bool
	events int
	// last are the ends of what it said: its last events, and standard error.
	last string
}

// run brings the command to its end.
func (c *command) run(ctx context.Context) error {
	stumbled := 0
	for left := c.random.IntN(maxKills + 1); ; {
		killAfter := 0
		if left > 0 {
			killAfter = 1 + c.random.IntN(killedBy)
		}
		o, err := c.once(ctx, killAfter)
		if err != nil {
			return err
		}
		if again, err := c.judge(o, &stumbled); err != nil || !again {
			return err
		}
		if o.killed {
			left--
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(c.look):
		}
		if c.amend == nil {
			continue
		}
		if err := c.amend(ctx); err != nil {
			return err
		}
	}
}

// judge says whether to run the command again.
func (c *command) judge(o outcome, stumbled *int) (again bool, err error) {
	what := "replumb " + strings.Join(c.args, " ")
	switch {
	case o.killed:
		c.kills++
		*stumbled = 0
		c.say("%s: killed after %d events", what, o.events)
		return true, nil
	case o.code == 0:
		return false, nil
	case !slices.Contains([]int{exitError, exitBlocked, exitNotMeasured, exitInterrupted}, o.code):
		return false, fmt.Errorf("%s: exit code %d\n%s", what, o.code, o.last)
	}
	c.stumbles++
	if *stumbled++; *stumbled > maxStumbles {
		return false, fmt.Errorf("%s: ended %d times in a row before it was done, with exit code %d\n%s", what, *stumbled, o.code, o.last)
	}
	c.say("%s: exit code %d after %d events; again\n%s", what, o.code, o.events, o.last)
	return true, nil
}

// once runs the command, attends its gates, and kills it with SIGKILL after some events, unless that is zero.
func (c *command) once(ctx context.Context, killAfter int) (o outcome, err error) {
	within, cancel := context.WithTimeout(ctx, runWithin)
	defer cancel()
	cmd := exec.CommandContext(within, c.program, c.args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // which has it say where it hangs
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return o, err
	}
	if err := cmd.Start(); err != nil {
		return o, err
	}
	attending := &attendant{act: c.act, visited: map[string]bool{}}
	var events []engine.Event
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var e engine.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			_ = cmd.Process.Kill()
			return o, errors.Join(fmt.Errorf("%w in %q", err, lines.Text()), cmd.Wait())
		}
		events = append(events, e)
		c.heard(e)
		if len(events) == killAfter {
			o.killed = cmd.Process.Kill() == nil
			break
		}
		attending.see(ctx, e, func() { _ = cmd.Process.Kill() })
	}
	_ = cmd.Wait() // what it has to say is the exit code
	if err := attending.done(); err != nil {
		return o, err
	}
	o.code, o.events, o.last = cmd.ProcessState.ExitCode(), len(events), tail(events, stderr.String())
	// It may have ended by itself just before.
	o.killed = o.killed && o.code < 0
	return o, ctx.Err()
}

// tail is the end of what a run said.
func tail(events []engine.Event, stderr string) string {
	var text strings.Builder
	for _, e := range events[max(0, len(events)-8):] {
		fmt.Fprintf(&text, "  %s %s %s %s %s %s\n", clock(e.Time), e.Kind, e.Phase, e.Step, e.Message, e.Error)
	}
	const most = 4000
	text.WriteString("  " + stderr[max(0, len(stderr)-most):])
	return text.String()
}
