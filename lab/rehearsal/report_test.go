package rehearsal

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
)

func reported() *Report {
	c := &Command{Command: apply, Gates: []Gate{{Step: "gate/kubelets", Answer: "played"}}}
	r := &Report{
		Kind:      "Rehearsal",
		Outcome:   Done,
		Migration: "move",
		Commands:  []*Command{c, {Command: finish}},
		Played:    played(),
		NotProven: notProven(false),
	}
	for _, e := range []engine.Event{
		{Kind: engine.RunStarted},
		{Kind: engine.PhaseStarted, Phase: "move"},
		{Kind: engine.StepDone, Phase: "move", Step: "hop/a"},
		{Kind: engine.StepRetried, Phase: "move", Step: "hop/b"},
		{Kind: engine.StepDone, Phase: "move", Step: "hop/b"},
		{Kind: engine.StepUnchanged, Phase: "move", Step: "gate/certificates", Role: engine.RoleGate},
		{Kind: engine.PhaseDone, Phase: "move", Seconds: 2},
		{Kind: engine.StepDone, Phase: "kubelets", Step: "gate/kubelets", Role: engine.RoleGate, Seconds: 3},
		{Kind: engine.PhaseDone, Phase: "kubelets", Seconds: 4},
		{Kind: engine.PhaseStarted, Phase: "move"}, // of a second run
		{Kind: engine.StepUnchanged, Phase: "move", Step: "hop/a"},
		{Kind: engine.PhaseDone, Phase: "move", Seconds: 1},
	} {
		c.hear(e)
	}
	return r
}

func TestHear(t *testing.T) {
	c := reported().Commands[0]
	want := []Phase{{Name: "move", Seconds: 3, Done: 2, Unchanged: 2, Retried: 1}, {Name: "kubelets", Seconds: 4, Done: 1}}
	if !slices.Equal(c.Phases, want) {
		t.Errorf("%+v", c.Phases)
	}
	if len(c.Gates) != 2 || !c.Gates[0].Passed || c.Gates[0].Seconds != 3 || c.Gates[1].Step != "gate/certificates" || !c.Gates[1].Passed {
		t.Errorf("%+v", c.Gates)
	}
}

// TestTells: no report is without what was played, and what it does not prove.
func TestTells(t *testing.T) {
	r := reported()
	r.Risks = findings.Findings{{Code: "RP1001", Severity: findings.Warning, Outcome: findings.Fail, Message: "a\nb"}}
	for range shown + 5 {
		r.Restarts = append(r.Restarts, "Restart Deployment shop/web")
	}
	var text, doc bytes.Buffer
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	if err := r.JSON(&doc); err != nil {
		t.Fatal(err)
	}
	for _, said := range []string{
		"rehearsal of move: Done", "PLAYED", "NOT PROVEN", "no packet was sent", "RESTARTS PLANNED: 25", "and 5 more",
		"RP1001 warning fail: a; b", "gate/kubelets", "APPLY", "FINISH",
	} {
		if !strings.Contains(text.String(), said) {
			t.Errorf("%q is missing in:\n%s", said, &text)
		}
	}
	back := &Report{}
	if err := json.Unmarshal(doc.Bytes(), back); err != nil || len(back.Restarts) != shown+5 || len(back.NotProven) == 0 {
		t.Errorf("%+v, %v", back, err)
	}
}

func TestBeside(t *testing.T) {
	f := func(code, object string, o findings.Outcome) findings.Finding {
		return findings.Finding{Code: code, Object: object, Outcome: o}
	}
	got := beside(
		findings.Findings{f("A", "x", findings.Fail), f("A", "y", findings.Fail), f("B", "", findings.Pass), f("C", "", findings.Unknown)},
		findings.Findings{f("A", "x", findings.Fail)},
	)
	if len(got) != 2 || got[0].Object != "y" || got[1].Code != "C" {
		t.Errorf("%+v", got)
	}
}

func TestComplaint(t *testing.T) {
	for said, want := range map[string]string{
		"warning: w\nerror: it broke\nhint: repair it": "it broke\nhint: repair it",
		"1\n2\n3\n4\n5\n6\n":                           "2\n3\n4\n5\n6",
		"":                                             "",
	} {
		if got := complaint([]byte(said)); got != want {
			t.Errorf("%q: %q", said, got)
		}
	}
}
