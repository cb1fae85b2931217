package terminal

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/replumb/replumb/internal/engine"
)

// script is a run with everything in it that is shown differently.
func script() []engine.Event {
	return []engine.Event{
		{Kind: engine.RunStarted},
		{Kind: engine.PhaseStarted, Phase: "tidy", Message: "Nothing here"},
		{Kind: engine.PhaseDone, Phase: "tidy", Message: "Nothing here"},
		{Kind: engine.PhaseStarted, Phase: "move", Message: "Move Services", Total: 4},
		{Kind: engine.StepStarted, Phase: "move", Step: "hop/shop/cart", Message: "Move shop/cart", Total: 4},
		{Kind: engine.StepWaiting, Phase: "move", Message: "Move shop/cart", Error: "node b has not answered", Total: 4},
		{Kind: engine.StepRetried, Phase: "move", Message: "Move shop/cart", Error: "conflict", Total: 4},
		{Kind: engine.StepDone, Phase: "move", Message: "Move shop/cart", Seconds: 1.234, Done: 1, Total: 4},
		{Kind: engine.StepUnchanged, Phase: "move", Message: "Move shop/pay", Done: 2, Total: 4},
		{Kind: engine.StepFailed, Phase: "move", Message: "Move shop/web", Error: "forbidden", Done: 2, Total: 4},
		{Kind: engine.RunFailed, Error: "forbidden"},
	}
}

func TestPlainTellsWhatIsWorthTelling(t *testing.T) {
	var b strings.Builder
	sink := Plain(&b)
	for _, e := range script() {
		sink(e)
	}
	const want = `==> Move Services
    Move shop/cart: waiting: node b has not answered
    Move shop/cart: trying again: conflict
    Move shop/cart: done (1.23s)
    Move shop/pay: nothing to do
    Move shop/web: failed: forbidden
`
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

// TestPhasesWithNothingToDoAreNotTold: a run looks again when it is done, and most looks find
// nothing.
func TestPhasesWithNothingToDoAreNotTold(t *testing.T) {
	phase := func(name string, steps ...engine.EventKind) []engine.Event {
		events := []engine.Event{{Kind: engine.PhaseStarted, Phase: name, Message: name, Total: len(steps)}}
		for i, k := range steps {
			events = append(events, engine.Event{Kind: k, Phase: name, Message: string(rune('a' + i)), Done: i + 1, Total: len(steps)})
		}
		return append(events, engine.Event{Kind: engine.PhaseDone, Phase: name, Message: name, Total: len(steps)})
	}
	var plain, drawn strings.Builder
	sink, p := Plain(&plain), &ProgressLine{w: &drawn, width: func() int { return 80 }}
	for _, e := range slices.Concat(
		phase("idle", engine.StepUnchanged, engine.StepUnchanged),
		phase("busy", engine.StepUnchanged, engine.StepDone, engine.StepUnchanged),
		phase("idle again", engine.StepUnchanged),
	) {
		sink(e)
		p.Event(e)
	}
	if want := "==> busy\n    a: nothing to do\n    b: done (0s)\n    c: nothing to do\n"; plain.String() != want {
		t.Errorf("plain:\n%s\nwant:\n%s", plain.String(), want)
	}
	if above, _ := screen(drawn.String()); len(above) != 1 || above[0] != "✓ busy (0s)" {
		t.Errorf("drawn: %q", above)
	}
}

func TestJSONLinesAreOneEventEach(t *testing.T) {
	var b bytes.Buffer
	sink := JSONLines(&b)
	for _, e := range script() {
		sink(e)
	}
	lines := bytes.Split(bytes.TrimSpace(b.Bytes()), []byte("\n"))
	if len(lines) != len(script()) {
		t.Fatalf("%d lines for %d events", len(lines), len(script()))
	}
	for i, line := range lines {
		var e engine.Event
		if err := json.Unmarshal(line, &e); err != nil || !reflect.DeepEqual(e, script()[i]) {
			t.Errorf("line %d is %s (%v)", i, line, err)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no reader") }

func TestJSONLinesGoOnWithoutAListener(*testing.T) {
	sink := JSONLines(broken{})
	for _, e := range script() {
		sink(e)
	}
}

// screen plays as much of a terminal as Progress needs: carriage return, clear to the end of the
// line, newline.
func screen(out string) (above []string, line string) {
	for _, part := range strings.SplitAfter(out, "\n") {
		text, ended := strings.CutSuffix(part, "\n")
		if i := strings.LastIndex(text, "\r\x1b[K"); i >= 0 {
			line = text[i+len("\r\x1b[K"):]
		} else {
			line += text
		}
		if ended {
			above, line = append(above, line), ""
		}
	}
	return above, line
}

func TestProgressRedrawsOneLine(t *testing.T) {
	var b strings.Builder
	p := &ProgressLine{w: &b, width: func() int { return 200 }}
	for _, e := range script()[:9] {
		p.Event(e)
	}
	above, line := screen(b.String())
	if want := "move [==========           2/4] Move shop/pay"; line != want || len(above) != 0 {
		t.Errorf("the line is %q, want %q; above it %q", line, want, above)
	}
	p.Event(script()[9])
	p.Event(script()[10])
	above, line = screen(b.String())
	if want := "    Move shop/web: failed: forbidden"; len(above) != 1 || above[0] != want || line != "" {
		t.Errorf("above the line %q, want %q; the line is %q, and should be cleared", above, want, line)
	}
}

func TestProgressKeepsDonePhasesAbove(t *testing.T) {
	var b strings.Builder
	p := &ProgressLine{w: &b, width: func() int { return 80 }}
	p.Event(engine.Event{Kind: engine.StepDone, Phase: "move", Message: "Move shop/cart", Done: 1, Total: 1})
	p.Event(engine.Event{Kind: engine.PhaseDone, Phase: "move", Message: "Move Services", Seconds: 2, Done: 1, Total: 1})
	p.Event(engine.Event{Kind: engine.RunDone})
	above, line := screen(b.String())
	if len(above) != 1 || above[0] != "✓ Move Services (2s)" || line != "" {
		t.Errorf("above %q, line %q", above, line)
	}
}

// TestProgressNeverWraps: a line as wide as the terminal would wrap, and could not be cleared any
// more.
func TestProgressNeverWraps(t *testing.T) {
	for _, width := range []int{20, 41, 80} {
		var b strings.Builder
		p := &ProgressLine{w: &b, width: func() int { return width }}
		p.Event(engine.Event{
			Kind: engine.StepWaiting, Phase: "move", Message: strings.Repeat("é", 50), Error: "first\nsecond\tthird", Total: 3,
		})
		above, line := screen(b.String())
		if len(above) > 0 || !utf8.ValidString(line) || utf8.RuneCountInString(line) != width-1 {
			t.Errorf("width %d: above %q, line of %d: %q", width, above, utf8.RuneCountInString(line), line)
		}
	}
	var b strings.Builder
	p := &ProgressLine{w: &b, width: func() int { return 80 }}
	p.Event(engine.Event{Kind: engine.StepWaiting, Message: "m", Error: "first\nsecond\tthird"})
	if above, line := screen(b.String()); len(above) > 0 || strings.ContainsAny(line, "\t\n") {
		t.Errorf("an error of two lines is drawn as %q, %q", above, line)
	}
}

func TestNewProgressOnWhatIsNoTerminalIsEightyWide(t *testing.T) {
	if got := NewProgress(&strings.Builder{}, -1).width(); got != 80 {
		t.Errorf("got %d", got)
	}
}
