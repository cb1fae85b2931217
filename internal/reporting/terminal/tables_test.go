package terminal

import (
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
)

func TestFindingsTellTheClaimAndTheFixOnce(t *testing.T) {
	var b strings.Builder
	Findings(&b, findings.Findings{
		{Code: "A", Severity: findings.Blocking, Outcome: findings.Pass, Claim: "all is well", Fix: ""},
		{
			Code:     "B",
			Severity: findings.Blocking,
			Outcome:  findings.Fail,
			Claim:    "names are free",
			Message:  "one is taken",
			Fix:      "rename it",
		},
		{
			Code:     "B",
			Severity: findings.Blocking,
			Outcome:  findings.Fail,
			Claim:    "names are free",
			Message:  "two is taken",
			Fix:      "rename it",
		},
		{Code: "C", Severity: findings.Warning, Outcome: findings.Fail, Claim: "nodes are ready", Message: "a is not"},
		{Code: "D", Severity: findings.Warning, Outcome: findings.Unknown, Claim: "kubelets answer", Message: "a did not"},
	})
	const want = `ok      A all is well
BLOCKED B names are free
    one is taken
    two is taken
    fix: rename it
warning C nodes are ready
    a is not
unknown D kubelets answer
    a did not
`
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestFindingsAreGroupedAndBounded(t *testing.T) {
	var all findings.Findings
	all = append(all, findings.Finding{Code: "A", Group: "One", Outcome: findings.Pass, Claim: "all is well"})
	all = append(
		all,
		findings.Finding{
			Code:     "B",
			Group:    "One",
			Severity: findings.Warning,
			Outcome:  findings.Unknown,
			Claim:    "none is there",
			Message:  "hidden",
		},
	)
	for range 46 {
		all = append(all, findings.Finding{
			Code:     "B",
			Group:    "One",
			Severity: findings.Warning,
			Outcome:  findings.Fail,
			Claim:    "none is there",
			Message:  "here is one",
			Fix:      "look",
		})
	}
	for range 11 {
		all = append(
			all,
			findings.Finding{Code: "C", Group: "Two", Severity: findings.Blocking, Outcome: findings.Fail, Claim: "few", Message: "eleven"},
		)
	}
	all[1].Fix = "look"
	var b strings.Builder
	Findings(&b, all)
	want := "One\nok      A all is well\nwarning B none is there\n    hidden\n" + strings.Repeat("    here is one\n", 9) +
		"    and 37 more (-o json has all)\n    fix: look\n" +
		"\nTwo\nBLOCKED C few\n" + strings.Repeat("    eleven\n", 11) // one more line says as much as "and 1 more"
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestAttentionLeavesOutWhatPassed(t *testing.T) {
	all := findings.Findings{
		{Code: "A", Severity: findings.Blocking, Outcome: findings.Pass, Claim: "all is well"},
		{Code: "B", Severity: findings.Warning, Outcome: findings.Unknown, Message: "hidden"},
	}
	for range 12 {
		all = append(all, findings.Finding{Code: "C", Severity: findings.Blocking, Outcome: findings.Fail, Message: "taken"})
	}
	var b strings.Builder
	Attention(&b, all)
	want := "B hidden (warning)\n" + strings.Repeat("C taken (blocking)\n", 10) + "C and 2 more (check -o json has all)\n"
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
