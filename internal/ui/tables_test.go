package ui

import (
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/engine"
)

func TestFindingsTellTheClaimAndTheFixOnce(t *testing.T) {
	var b strings.Builder
	Findings(&b, check.Findings{
		{Code: "A", Severity: check.Blocking, Outcome: check.Pass, Claim: "all is well", Fix: ""},
		{Code: "B", Severity: check.Blocking, Outcome: check.Fail, Claim: "names are free", Message: "one is taken", Fix: "rename it"},
		{Code: "B", Severity: check.Blocking, Outcome: check.Fail, Claim: "names are free", Message: "two is taken", Fix: "rename it"},
		{Code: "C", Severity: check.Warning, Outcome: check.Fail, Claim: "nodes are ready", Message: "a is not"},
		{Code: "D", Severity: check.Warning, Outcome: check.Unknown, Claim: "kubelets answer", Message: "a did not"},
	})
	const want = `ok      A all is well
BLOCKED B names are free
    one is taken
    fix: rename it
    two is taken
warning C nodes are ready
    a is not
unknown D kubelets answer
    a did not
`
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

type step struct {
	engine.Step
	id string
}

func (s step) ID() string    { return s.id }
func (s step) Title() string { return "Do " + s.id }
func (s step) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "create", Object: "Service " + s.id}}, nil
}

func TestPhasesLeaveOutEmptyOnes(t *testing.T) {
	phases, err := PlanPhases(&engine.Plan{Phases: []engine.Phase{
		{Name: "none", Title: "Nothing", Groups: []engine.Group{{}}},
		{
			Name:   "some",
			Title:  "Something",
			Groups: []engine.Group{{Steps: []engine.Step{step{id: "a"}}}, {Steps: []engine.Step{step{id: "b"}}}},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	Phases(&b, phases)
	const want = "some: Something\n  Do a\n    create Service a\n  Do b\n    create Service b\n"
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestDocument(t *testing.T) {
	for format, want := range map[string]string{"json": "{\n  \"a\": 1\n}\n", "yaml": "a: 1\n"} {
		var b strings.Builder
		if err := Document(&b, format, map[string]int{"a": 1}); err != nil || b.String() != want {
			t.Errorf("%s: got %q, %v", format, b.String(), err)
		}
	}
	if Document(broken{}, "yaml", 1) == nil || Document(broken{}, "json", 1) == nil || Table(broken{}, [][]string{{"a"}}) == nil {
		t.Error("an error of the writer is lost")
	}
}
