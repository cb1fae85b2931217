package terminal

import (
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
)

func sampleFindings() findings.Findings {
	return findings.Findings{
		{Code: "A", Severity: findings.Blocking, Outcome: findings.Pass, Claim: "all is well"},
		{Code: "B", Severity: findings.Warning, Outcome: findings.Fail, Claim: "nodes are ready", Message: "a is not"},
		{Code: "C", Severity: findings.Warning, Outcome: findings.Unknown, Claim: "kubelets answer", Message: "a did not"},
		{Code: "D", Severity: findings.Blocking, Outcome: findings.Fail, Claim: "names are free", Message: "one is taken", Fix: "rename it"},
		{Code: "E", Severity: findings.Blocking, Outcome: findings.Skipped, Claim: "etcd answers", Message: "none is named"},
		{Code: "D", Severity: findings.Blocking, Outcome: findings.Fail, Claim: "names are free", Message: "two is taken", Fix: "rename it"},
		{Code: "F", Severity: findings.Isolating, Outcome: findings.Fail, Claim: "notes agree", Message: "cart's does not"},
		{Code: "G", Severity: findings.Blocking, Outcome: findings.Unknown, Claim: "quotas have room", Message: "none was read", Fix: "read them"},
	}
}

// TestChecklist: what is to be done is told, the worst first, each claim and fix once. All of it is
// told with All.
func TestChecklist(t *testing.T) {
	const open = `BLOCKED D names are free
    one is taken
    two is taken
    fix: rename it
BLOCKED G quotas have room
    not known: none was read
    fix: read them
LEFT OUT F notes agree
    cart's does not
warning B nodes are ready
    a is not
unknown C kubelets answer
    a did not
`
	const rest = `ok      A all is well
-       E not applicable: none is named
`
	for _, all := range []bool{false, true} {
		want := open
		if all {
			want += rest
		}
		var b strings.Builder
		Checklist{All: all}.Write(&b, sampleFindings())
		if b.String() != want {
			t.Errorf("all %t, got:\n%s\nwant:\n%s", all, b.String(), want)
		}
	}
}

// TestVerdict counts the same findings, in one line.
func TestVerdict(t *testing.T) {
	for _, tt := range []struct {
		list Checklist
		of   findings.Findings
		want string
	}{
		{Checklist{}, sampleFindings(), "not ready: 2 blocking, 1 left out, 1 warning, 1 unknown, 1 ok, 1 not applicable (7 checks)\n"},
		{Checklist{}, sampleFindings()[:3], "ready: 1 warning, 1 unknown, 1 ok (3 checks)\n"},
		{Checklist{Color: true}, sampleFindings()[:1], "\x1b[32mready: 1 ok (1 check)\x1b[0m\n"},
		{Checklist{}, nil, "ready: nothing was looked at\n"},
	} {
		var b strings.Builder
		tt.list.Verdict(&b, tt.of.Score())
		if b.String() != tt.want {
			t.Errorf("got %q, want %q", b.String(), tt.want)
		}
	}
}

func TestChecklistIsWide(t *testing.T) {
	for all, want := range map[bool]int{false: 7, true: 9} { // with the heading
		var b strings.Builder
		if err := (Checklist{All: all}).Wide(&b, sampleFindings()); err != nil || strings.Count(b.String(), "\n") != want {
			t.Errorf("all %t: %v\n%s", all, err, b.String())
		}
	}
}

func TestChecklistIsBounded(t *testing.T) {
	var all findings.Findings
	for _, n := range []struct {
		code string
		many int
	}{{"B", 47}, {"C", 11}} {
		for range n.many {
			all = append(all, findings.Finding{Code: n.code, Severity: findings.Warning, Outcome: findings.Fail, Claim: "few", Message: "one"})
		}
	}
	var b strings.Builder
	Checklist{}.Write(&b, all)
	want := "warning B few\n" + strings.Repeat("    one\n", 10) + "    and 37 more (-o json has all)\n" +
		"warning C few\n" + strings.Repeat("    one\n", 11) // one more line says as much as "and 1 more"
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
	want := strings.Repeat("C taken (blocking)\n", 10) + "C and 2 more (check -o json has all)\n" + "B hidden (warning)\n"
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
