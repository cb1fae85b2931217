package terminal

import (
	"strings"
	"testing"
	"unicode"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
)

// hostile is what others can write into an object: it clears the screen, sets the clipboard, turns
// text around, colours it by a C1 control character, goes back in the line, and adds lines that
// look like replumb's.
const hostile = "\x1b[2J\x1b]52;c;ZXZpbA==\x07\u202egnorts\u2066\u009b31m\rok\x00\x7f\xff\n==> All is well\nhint: kubectl delete ns"

// raw are the characters of a text that a terminal would obey, but for those that Progress itself
// writes.
func raw(text string) (found []rune) {
	text = strings.ReplaceAll(text, "\r\x1b[K", "")
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			found = append(found, r)
		}
	}
	return found
}

// TestNothingCommandsTheTerminal: who can write a termination message or an Event could else
// command the operator's terminal.
func TestNothingCommandsTheTerminal(t *testing.T) {
	kinds := []engine.EventKind{
		engine.PhaseStarted, engine.StepStarted, engine.StepRetried, engine.StepWaiting, engine.StepFailed, engine.StepUnchanged,
		engine.StepDone, engine.PhaseDone,
	}
	var plain, drawn, table, list, painted, short, phases strings.Builder
	sink, progress := Plain(&plain), &ProgressLine{w: &drawn, width: func() int { return 1000 }}
	for _, k := range kinds {
		e := engine.Event{Kind: k, Phase: hostile, Message: hostile, Error: hostile, Guide: hostile, Note: hostile}
		sink(e)
		progress.Event(e)
	}
	if err := Table(&table, [][]string{{"A", "B"}, {hostile, "b"}}); err != nil {
		t.Fatal(err)
	}
	all := findings.Findings{
		{Code: "RP1", Claim: "c", Group: "g", Outcome: findings.Fail, Message: hostile, Fix: hostile},
		{Code: "RP2", Claim: "c", Group: "g", Outcome: findings.Skipped, Message: hostile},
	}
	Checklist{All: true}.Write(&list, all)
	Checklist{All: true, Color: true}.Write(&painted, all)
	colors := strings.NewReplacer("\x1b["+yellow+"m", "", "\x1b["+faint+"m", "", "\x1b[0m", "").Replace(painted.String())
	if colors != list.String() {
		t.Errorf("in colours it is\n%q\nwant\n%q", colors, list.String())
	}
	Attention(&short, all)
	Phases(
		&phases,
		[]PlanPhase{{Name: "move", Steps: []PlanStep{{Title: hostile, Changes: []engine.Change{{Verb: "do", Object: hostile}}}}}},
	)
	for name, b := range map[string]*strings.Builder{
		"plain": &plain, "progress": &drawn, "table": &table, "findings": &list, "attention": &short, "phases": &phases,
	} {
		if found := raw(b.String()); len(found) > 0 || b.Len() == 0 {
			t.Errorf("%s has %q:\n%q", name, found, b.String())
		}
		for line := range strings.Lines(b.String()) {
			if strings.HasPrefix(line, "hint:") || strings.HasPrefix(line, "==> All") {
				t.Errorf("%s has a line that is not replumb's: %q", name, line)
			}
		}
	}
}
