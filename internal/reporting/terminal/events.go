// Package terminal renders events, plans, findings and status as text and JSON. Data goes to
// stdout, progress to stderr.
package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/printable"
)

// JSONLines writes one event a line.
func JSONLines(w io.Writer) func(engine.Event) {
	enc := json.NewEncoder(w)
	return func(e engine.Event) {
		_ = enc.Encode(e) // a reader that went away must not stop a migration half way
	}
}

// Plain writes a line for each event but beginnings, repeated attempts and idle phases.
func Plain(w io.Writer) func(engine.Event) {
	p := &plain{w: w}
	return p.event
}

// plain holds back the head of a phase and its idle steps until one does something.
type plain struct {
	w    io.Writer
	held []string
}

func (p *plain) event(e engine.Event) {
	line := plainLine(e)
	switch {
	case e.Kind == engine.PhaseStarted:
		p.held = []string{line}
		return
	case e.Kind == engine.StepUnchanged && len(p.held) > 0:
		p.held = append(p.held, line)
		return
	case line == "":
		return
	}
	for _, held := range append(p.held, line) {
		fmt.Fprintln(p.w, held)
	}
	p.held = nil
}

// indent is where the further lines of what is said of a step begin.
const indent = "        "

// cleaned is an event whose texts cannot command a terminal, nor pass for lines of their own.
func cleaned(e engine.Event) engine.Event {
	e.Phase, e.Message = printable.Line(e.Phase), printable.Line(e.Message)
	e.Error, e.Note = printable.Indented(e.Error, indent), printable.Indented(e.Note, indent)
	e.Guide = strings.ReplaceAll(printable.Text(e.Guide), "\n", "\n"+indent)
	return e
}

func plainLine(e engine.Event) string {
	e = cleaned(e)
	switch e.Kind {
	case engine.PhaseStarted:
		return fmt.Sprintf("==> %s", e.Message)
	case engine.StepDone:
		if e.Note != "" {
			return fmt.Sprintf("    %s: done (%s), but: %s", e.Message, seconds(e.Seconds), e.Note) + private(e)
		}
		return fmt.Sprintf("    %s: done (%s)", e.Message, seconds(e.Seconds))
	case engine.StepUnchanged:
		return fmt.Sprintf("    %s: nothing to do", e.Message)
	case engine.StepRetried:
		return fmt.Sprintf("    %s: trying again: %s", e.Message, e.Error)
	case engine.StepWaiting:
		return fmt.Sprintf("    %s: waiting: %s", e.Message, e.Error) + guide(e)
	case engine.StepFailed:
		if e.Interrupted {
			return fmt.Sprintf("    %s: %s", e.Message, e.Error)
		}
		return fmt.Sprintf("    %s: failed: %s", e.Message, e.Error)
	}
	return ""
}

// guide is what people have to do, indented below what is waited for.
func guide(e engine.Event) string {
	if e.Guide == "" {
		return ""
	}
	return "\n" + indent + e.Guide
}

// private is what the operator alone is to see, below what everyone sees.
func private(e engine.Event) string {
	if e.Private == "" {
		return ""
	}
	return "\n        " + e.Private
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(10 * time.Millisecond).String()
}

// ProgressLine redraws one line, on a terminal. Phases that did something, and failures, stay above
// it.
type ProgressLine struct {
	w     io.Writer
	width func() int
	mu    sync.Mutex
	drawn bool
	did   bool
}

// NewProgress is a Progress on a terminal of the given file descriptor.
func NewProgress(w io.Writer, fd int) *ProgressLine {
	return &ProgressLine{w: w, width: func() int {
		width, _, err := term.GetSize(fd)
		if err != nil || width < 20 {
			return 80
		}
		return width
	}}
}

// Event draws.
func (p *ProgressLine) Event(e engine.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Kind {
	case engine.PhaseStarted, engine.StepStarted, engine.StepUnchanged, engine.StepDone:
		p.did = e.Kind != engine.PhaseStarted && (p.did || e.Kind == engine.StepDone)
		if e.Kind == engine.StepDone && e.Note != "" { // it went on, but people should know
			p.clear()
			fmt.Fprintln(p.w, plainLine(e))
		}
		p.draw(fmt.Sprintf("%s [%s] %s", e.Phase, bar(e.Done, e.Total), e.Message))
	case engine.StepWaiting, engine.StepRetried:
		if e.Guide != "" { // it stays above the line, to be read
			p.clear()
			fmt.Fprintln(p.w, plainLine(e))
		}
		p.draw(fmt.Sprintf("%s [%s] %s: %s", e.Phase, bar(e.Done, e.Total), e.Message, e.Error))
	case engine.StepFailed:
		p.clear()
		fmt.Fprintln(p.w, plainLine(e))
	case engine.PhaseDone:
		p.clear()
		if p.did {
			fmt.Fprintf(p.w, "✓ %s (%s)\n", printable.Line(e.Message), seconds(e.Seconds))
		}
	case engine.RunDone, engine.RunFailed, engine.RunInterrupted:
		p.clear()
	}
}

// draw keeps to one line that does not wrap: only that can be cleared again.
func (p *ProgressLine) draw(line string) {
	line = printable.Line(line)
	if runes := []rune(line); len(runes) >= p.width() {
		line = string(runes[:p.width()-1])
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", line)
	p.drawn = true
}

func (p *ProgressLine) clear() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}

func bar(done, total int) string {
	const cells = 20
	if total == 0 {
		total = 1
	}
	full := min(cells, done*cells/total)
	out := make([]byte, cells)
	for i := range out {
		out[i] = ' '
		if i < full {
			out[i] = '='
		}
	}
	return fmt.Sprintf("%s %d/%d", out, done, total)
}
