package check

import (
	"slices"
	"strings"
	"testing"
)

func registry() []Check[int] {
	return []Check[int]{
		{Code: "A", Severity: Blocking, Claim: "is not one", Fix: "add one", Run: func(n int) []Result {
			if n == 1 {
				return []Result{Failed("Number 1", "%d is one", n)}
			}
			return nil
		}},
		{Code: "B", Severity: Blocking, Claim: "is known", Fix: "look closer", Run: func(n int) []Result {
			if n < 0 {
				return []Result{NotKnown("", "cannot look at %d", n), NotKnown("", "nor behind it")}
			}
			return nil
		}},
		{Code: "C", Severity: Warning, Claim: "is small", Fix: "take some away", Run: func(n int) []Result {
			if n > 9 {
				return []Result{Failed("", "%d is large", n)}
			}
			return nil
		}},
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

func TestBlockedErrorNamesEveryFinding(t *testing.T) {
	err := &BlockedError{Findings: Run(registry(), -1).Blocking()}
	if want := "2 blocking findings: B: cannot look at -1; B: nor behind it"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestReferenceHasEveryCheck(t *testing.T) {
	page := Reference("Numbers", registry())
	for _, c := range registry() {
		want := "## " + c.Code + "\n\n- Claim: " + c.Claim + "\n- Severity: " + string(c.Severity) + "\n- Fix: " + c.Fix + "\n"
		if !strings.Contains(page, want) {
			t.Errorf("%s is missing in\n%s", want, page)
		}
	}
}
