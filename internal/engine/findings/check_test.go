package findings

import (
	"slices"
	"strings"
	"testing"
)

func registry() []Check[int] {
	return []Check[int]{
		{
			Code:     "A",
			Severity: Blocking,
			Group:    "Small",
			Claim:    "is not one",
			Why:      "one is lonely",
			Fix:      "add one",
			Run: func(n int) []Result {
				if n == 1 {
					return []Result{Failed("Number 1", "%d is one", n)}
				}
				return nil
			},
		},
		{Code: "B", Severity: Blocking, Group: "Small", Claim: "is known", Why: "who knows", Fix: "look closer", Run: func(n int) []Result {
			if n < 0 {
				return []Result{NotKnown("", "cannot look at %d", n), NotKnown("", "nor behind it")}
			}
			return nil
		}},
		{
			Code:     "C",
			Severity: Warning,
			Group:    "Large",
			Claim:    "is small",
			Why:      "large is heavy",
			Fix:      "take some away",
			Run: func(n int) []Result {
				if n > 9 {
					return []Result{Failed("", "%d is large", n)}
				}
				return nil
			},
		},
	}
}

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		in       int
		outcomes []Outcome
		blocking []string
	}{
		{2, []Outcome{Pass, Pass, Pass}, nil},
		{1, []Outcome{Fail, Pass, Pass}, []string{"A"}},
		{10, []Outcome{Pass, Pass, Fail}, nil},
		{-1, []Outcome{Pass, Unknown, Unknown, Pass}, []string{"B", "B"}}, // not knowing blocks as well
	} {
		found := Run(registry(), tt.in)
		var outcomes []Outcome
		for _, f := range found {
			outcomes = append(outcomes, f.Outcome)
			if (f.Outcome == Pass) != (f.Message == "" && f.Fix == "") || f.Claim == "" {
				t.Errorf("%d: finding %+v", tt.in, f)
			}
		}
		var blocking []string
		for _, f := range found.Blocking() {
			blocking = append(blocking, f.Code)
		}
		if !slices.Equal(outcomes, tt.outcomes) || !slices.Equal(blocking, tt.blocking) {
			t.Errorf("%d: outcomes %v, want %v; blocking %v, want %v", tt.in, outcomes, tt.outcomes, blocking, tt.blocking)
		}
	}
}

// TestSkipped: a check that has nothing to look at neither passes nor fails, stops nothing, and has
// nothing to be done about; beside other results the reason says nothing.
func TestSkipped(t *testing.T) {
	of := func(results ...Result) Check[int] {
		return Check[int]{Code: "A", Severity: Blocking, Claim: "is one", Fix: "add", Run: func(int) []Result { return results }}
	}
	alone := Run([]Check[int]{of(Skip("there is %s", "none")...)}, 1)
	want := Finding{Code: "A", Severity: Blocking, Outcome: Skipped, Claim: "is one", Message: "there is none"}
	if len(alone) != 1 || alone[0] != want || len(alone.Objections()) > 0 || len(alone.Codes()) > 0 || !alone.Score().Ready() {
		t.Errorf("got %+v", alone)
	}
	beside := Run([]Check[int]{of(append(Skip("none"), Failed("", "no"), Failed("", "no"))...)}, 1)
	if len(beside) != 1 || beside[0].Message != "no" || beside.Score().Ready() {
		t.Errorf("beside another result, which is told once: %+v", beside)
	}
}

// TestScoreCountsChecks: a check that names many objects is one, by the worst that it found.
func TestScoreCountsChecks(t *testing.T) {
	of := func(code string, severity Severity, outcomes ...Outcome) (all Findings) {
		for _, o := range outcomes {
			all = append(all, Finding{Code: code, Severity: severity, Outcome: o})
		}
		return all
	}
	all := slices.Concat(
		of("A", Blocking, Fail, Fail, Unknown), of("B", Isolating, Fail, Fail), of("C", Warning, Unknown, Fail), of("D", Warning, Unknown),
		of("E", Blocking, Pass), of("F", Warning, Skipped),
	)
	want := Score{Blocking: 1, LeftOut: 1, Warnings: 1, Unknown: 1, OK: 1, NotApplicable: 1}
	if got := all.Score(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, tt := range []struct {
		of   Score
		want string
	}{
		{want, "not ready: 1 blocking, 1 left out, 1 warning, 1 unknown, 1 ok, 1 not applicable (6 checks)"},
		{want.Plus(want), "not ready: 2 blocking, 2 left out, 2 warnings, 2 unknown, 2 ok, 2 not applicable (12 checks)"},
		{Score{OK: 1}, "ready: 1 ok (1 check)"},
		{Score{}, "ready: nothing was looked at"},
	} {
		if got := tt.of.Verdict(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestBlockedErrorNamesEveryFinding(t *testing.T) {
	err := &BlockedError{Findings: Run(registry(), -1).Blocking()}
	if want := "2 blocking findings: B: cannot look at -1; B: nor behind it"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestBlockedErrorIsBounded(t *testing.T) {
	err := &BlockedError{Findings: slices.Repeat(Run(registry(), 1).Blocking(), 40)}
	if got := err.Error(); !strings.HasPrefix(got, "40 blocking findings: A: 1 is one; ") || !strings.HasSuffix(got, "; and 35 more") {
		t.Errorf("got %q", got)
	}
}

func TestReferenceHasEveryCheck(t *testing.T) {
	page := Reference("Numbers") + Section("", Describe(registry()))
	for _, c := range registry() {
		want := "### " + c.Code + "\n\n- Claim: " + c.Claim + "\n- Severity: " + string(
			c.Severity,
		) + "\n- Why: " + c.Why + "\n- Fix: " + c.Fix + "\n"
		if !strings.Contains(page, want) {
			t.Errorf("%s is missing in\n%s", want, page)
		}
	}
	if strings.Count(page, "\n## Small\n") != 1 || strings.Count(page, "\n## Large\n") != 1 {
		t.Errorf("a heading is not there once:\n%s", page)
	}
}

func TestGroupReachesTheFindings(t *testing.T) {
	for _, n := range []int{1, 2} {
		for _, f := range Run(Group("All", registry()...), n) {
			if f.Group != "All" {
				t.Errorf("%d: finding %+v", n, f)
			}
		}
	}
}
