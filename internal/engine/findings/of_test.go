package findings_test

import (
	"testing"

	"github.com/replumb/replumb/internal/engine/findings"
)

// TestOf: a check of a part keeps what it says of itself, and is given its part.
func TestOf(t *testing.T) {
	short := findings.Check[string]{
		Code: "X1", Severity: findings.Warning, Group: "G", Claim: "c", Why: "w", Fix: "f",
		Run: func(s string) []findings.Result { return []findings.Result{findings.Failed(s, "%s is found", s)} },
	}
	type whole struct{ text string }
	all := findings.Of(func(w whole) string { return w.text }, []findings.Check[string]{short})
	got := findings.Run(all, whole{"a"})
	want := findings.Finding{
		Code:     "X1",
		Group:    "G",
		Severity: findings.Warning,
		Outcome:  findings.Fail,
		Claim:    "c",
		Object:   "a",
		Message:  "a is found",
		Fix:      "f",
	}
	if len(got) != 1 || got[0] != want || all[0].Why != "w" {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
