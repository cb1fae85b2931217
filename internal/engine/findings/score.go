package findings

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/internal/engine/fault"
)

// Score counts checks, each by its worst finding, however many objects it names. Blocking includes
// blocking checks that could not look; Unknown are the other ones that could not.
type Score struct {
	Blocking      int `json:"blocking"`
	LeftOut       int `json:"leftOut"`
	Warnings      int `json:"warnings"`
	Unknown       int `json:"unknown"`
	OK            int `json:"ok"`
	NotApplicable int `json:"notApplicable"`
}

// Score counts each check once.
func (f Findings) Score() (c Score) {
	for _, check := range f.byCheck() {
		switch x := check.Worst(); {
		case x.Outcome == Pass:
			c.OK++
		case x.Outcome == Skipped:
			c.NotApplicable++
		case x.Severity == Blocking:
			c.Blocking++
		case x.Severity == Isolating:
			c.LeftOut++
		case x.Outcome == Unknown:
			c.Unknown++
		default:
			c.Warnings++
		}
	}
	return c
}

// Plus is the sum with the checks of another migration.
func (c Score) Plus(other Score) Score {
	return Score{
		Blocking: c.Blocking + other.Blocking, LeftOut: c.LeftOut + other.LeftOut, Warnings: c.Warnings + other.Warnings,
		Unknown: c.Unknown + other.Unknown, OK: c.OK + other.OK, NotApplicable: c.NotApplicable + other.NotApplicable,
	}
}

// Ready reports whether nothing blocks, and nothing is left out.
func (c Score) Ready() bool { return c.Blocking+c.LeftOut == 0 }

// Verdict is all of it in one line.
func (c Score) Verdict() string {
	var parts []string
	checks := 0
	for _, p := range []struct {
		n    int
		text string
	}{
		{c.Blocking, fmt.Sprintf("%d blocking", c.Blocking)},
		{c.LeftOut, fmt.Sprintf("%d left out", c.LeftOut)},
		{c.Warnings, english.Plural(c.Warnings, "warning", "")},
		{c.Unknown, fmt.Sprintf("%d unknown", c.Unknown)},
		{c.OK, fmt.Sprintf("%d ok", c.OK)},
		{c.NotApplicable, fmt.Sprintf("%d not applicable", c.NotApplicable)},
	} {
		if checks += p.n; p.n > 0 {
			parts = append(parts, p.text)
		}
	}
	ready := "ready"
	if !c.Ready() {
		ready = "not ready"
	}
	if checks == 0 {
		return ready + ": nothing was looked at"
	}
	return fmt.Sprintf("%s: %s (%s)", ready, strings.Join(parts, ", "), english.Plural(checks, "check", ""))
}

// ObjectionError says in numbers that findings keep a migration, or objects, from moving. It is for
// where the findings themselves were shown.
type ObjectionError struct {
	Score Score
	Hint  string
}

func (e *ObjectionError) Error() string { return e.Score.Verdict() }

// Advice is where the fixes are.
func (e *ObjectionError) Advice() string { return e.Hint }

// ExitCode is that of what is blocked.
func (*ObjectionError) ExitCode() int { return fault.ExitBlocked }

// Objection is the error of a look that showed findings; nil if there is nothing against it. hint
// says where their fixes are.
func (c Score) Objection(hint string) error {
	if c.Ready() {
		return nil
	}
	return &ObjectionError{Score: c, Hint: hint}
}

// Order of what is shown first.
func (f Finding) rank() int {
	switch {
	case f.Outcome == Pass:
		return 5
	case f.Outcome == Skipped:
		return 6
	case f.Severity == Blocking && f.Outcome == Fail:
		return 0
	case f.Severity == Blocking:
		return 1
	case f.Severity == Isolating:
		return 2
	case f.Outcome == Fail:
		return 3
	}
	return 4
}

// byCheck are the findings of each check together, in the order of the registry.
func (f Findings) byCheck() (checks []Findings) {
	at := map[string]int{}
	for _, x := range f {
		i, known := at[x.Code]
		if !known {
			i, at[x.Code] = len(checks), len(checks)
			checks = append(checks, nil)
		}
		checks[i] = append(checks[i], x)
	}
	return checks
}

// WorstFirst are the findings of each check together: the check with the worst one comes first,
// and alike ones in the order of their codes.
func (f Findings) WorstFirst() []Findings {
	checks := f.byCheck()
	slices.SortStableFunc(checks, func(a, b Findings) int {
		return cmp.Or(cmp.Compare(a.Worst().rank(), b.Worst().rank()), cmp.Compare(a[0].Code, b[0].Code))
	})
	return checks
}

// Worst is the finding that is shown first. There has to be one.
func (f Findings) Worst() Finding {
	return slices.MinFunc(f, func(a, b Finding) int { return cmp.Compare(a.rank(), b.rank()) })
}
