// Package findings is a registry of checks with stable codes, and the findings they make.
package findings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/lists"
)

// Severity is what a failed check means for the migration.
type Severity string

const (
	// Blocking findings keep a migration from starting.
	Blocking Severity = "blocking"
	// Isolating findings keep one object out: a tenant must not stop others' moves.
	Isolating Severity = "isolating"
	// Warning findings are for people to weigh.
	Warning Severity = "warning"
)

// Outcome of a check: unknown is neither pass nor fail, and skipped says nothing of the cluster.
type Outcome string

// The outcomes.
const (
	Pass    Outcome = "pass"
	Fail    Outcome = "fail"
	Unknown Outcome = "unknown"
	Skipped Outcome = "skipped"
)

// Result is what one look at one object gave.
type Result struct {
	Outcome Outcome
	Object  string
	Message string
}

// Failed makes a failing result.
func Failed(object, format string, args ...any) Result {
	return Result{Outcome: Fail, Object: object, Message: fmt.Sprintf(format, args...)}
}

// NotKnown makes a result of a check that could not look.
func NotKnown(object, format string, args ...any) Result {
	return Result{Outcome: Unknown, Object: object, Message: fmt.Sprintf(format, args...)}
}

// Skip is what a check returns that has nothing to look at, with the reason. Beside other results
// it says nothing.
func Skip(format string, args ...any) []Result {
	return []Result{{Outcome: Skipped, Message: fmt.Sprintf(format, args...)}}
}

// Check is one thing that must hold. Run is pure, and returns what is wrong or unknown, or Skip.
type Check[In any] struct {
	// Code is stable: retired codes are never used again.
	Code     string
	Severity Severity
	Group    string
	Claim    string
	Why      string
	Fix      string
	Run      func(In) []Result
}

// Group puts checks under a heading.
func Group[In any](heading string, checks ...Check[In]) []Check[In] {
	for i := range checks {
		checks[i].Group = heading
	}
	return checks
}

// Finding is one result of one check.
type Finding struct {
	Code     string   `json:"code"`
	Group    string   `json:"group,omitempty"`
	Severity Severity `json:"severity"`
	Outcome  Outcome  `json:"outcome"`
	Claim    string   `json:"claim"`
	Object   string   `json:"object,omitempty"`
	Message  string   `json:"message,omitempty"`
	Fix      string   `json:"fix,omitempty"`
}

// Open reports whether there is something to do about a finding: it failed, or could not look.
func (f Finding) Open() bool { return f.Outcome == Fail || f.Outcome == Unknown }

// Findings are the results of many checks, in the order of the registry.
type Findings []Finding

// Run runs checks in order. A check that looks and finds nothing wrong makes one passing finding.
func Run[In any](checks []Check[In], in In) Findings {
	var all Findings
	for _, c := range checks {
		results := told(c.Run(in))
		if len(results) == 0 {
			all = append(all, Finding{Code: c.Code, Group: c.Group, Severity: c.Severity, Outcome: Pass, Claim: c.Claim})
		}
		for _, r := range results {
			f := Finding{
				Code: c.Code, Group: c.Group, Severity: c.Severity, Outcome: r.Outcome, Claim: c.Claim,
				Object: r.Object, Message: r.Message, Fix: c.Fix,
			}
			if r.Outcome == Skipped {
				f.Fix = "" // nothing is to be done
			}
			all = append(all, f)
		}
	}
	return all
}

// told are results without what is said twice, and without what is skipped beside other results.
func told(results []Result) (all []Result) {
	seen := map[Result]bool{}
	for _, r := range results {
		if r.Outcome != Skipped && !seen[r] {
			seen[r], all = true, append(all, r)
		}
	}
	if len(all) == 0 {
		return results[:min(1, len(results))]
	}
	return all
}

// Where are the findings for which something holds.
func (f Findings) Where(holds func(Finding) bool) Findings {
	return slices.DeleteFunc(slices.Clone(f), func(x Finding) bool { return !holds(x) })
}

// Open are those about which there is something to do.
func (f Findings) Open() Findings { return f.Where(Finding.Open) }

func (f Findings) open(s Severity) Findings {
	return f.Where(func(x Finding) bool { return x.Severity == s && x.Open() })
}

// Blocking are failed or unknown results of blocking checks, which stop a migration.
func (f Findings) Blocking() Findings { return f.open(Blocking) }

// Objections end a look with exit code 3: Blocking, and what keeps objects out.
func (f Findings) Objections() Findings { return append(f.Blocking(), f.open(Isolating)...) }

// Codes are those of the checks with something to do about, each once, in their order.
func (f Findings) Codes() (codes []string) {
	for _, x := range f.Open() {
		if !slices.Contains(codes, x.Code) {
			codes = append(codes, x.Code)
		}
	}
	return codes
}

// BlockedError says that blocking findings stopped a migration.
type BlockedError struct {
	Findings Findings
}

const errorFindings = 5

func (e *BlockedError) Error() string {
	var codes []string
	for _, f := range e.Findings {
		codes = append(codes, f.Code+": "+f.Message)
	}
	return fmt.Sprintf("%s: %s", english.Plural(len(e.Findings), "blocking finding", ""), strings.Join(lists.Limit(codes, errorFindings), "; "))
}

func (*BlockedError) Advice() string {
	return "replumb check -f FILE shows each with its fix; nothing was changed since it was found"
}

func (*BlockedError) ExitCode() int { return fault.ExitBlocked }

// Description is what is true of a check whatever it finds.
type Description struct {
	Code     string   `json:"code"`
	Group    string   `json:"group"`
	Severity Severity `json:"severity"`
	Claim    string   `json:"claim"`
	Why      string   `json:"why"`
	Fix      string   `json:"fix"`
}

// Describe describes checks.
func Describe[In any](checks []Check[In]) []Description {
	out := make([]Description, len(checks))
	for i, c := range checks {
		out[i] = Description{Code: c.Code, Group: c.Group, Severity: c.Severity, Claim: c.Claim, Why: c.Why, Fix: c.Fix}
	}
	return out
}

// Reference begins a Markdown page that explains checks.
func Reference(title string) string {
	return "# " + title + "\n\n" +
		"Each check makes a claim about the cluster. A blocking finding keeps `replumb apply` from starting; a blocking\n" +
		"check that could not look (unknown) blocks as well. `replumb explain CODE` prints the same as this page, which is\n" +
		"generated from the checks themselves.\n"
}

// Contents leads to each check of a page by its code, in the order of codes.
func Contents(checks []Description) string {
	checks = slices.SortedFunc(slices.Values(checks), func(a, b Description) int { return strings.Compare(a.Code, b.Code) })
	var b strings.Builder
	b.WriteString("\n| code | severity | claim |\n|---|---|---|\n")
	for _, c := range checks {
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s |\n", c.Code, strings.ToLower(c.Code), c.Severity, strings.ReplaceAll(c.Claim, "|", `\|`))
	}
	return b.String()
}

// Section renders checks below a Reference; title precedes group headings.
func Section(title string, checks []Description) string {
	var b strings.Builder
	if title != "" {
		title += ": "
	}
	last := ""
	for _, c := range checks {
		if c.Group != last {
			fmt.Fprintf(&b, "\n## %s%s\n", title, c.Group)
			last = c.Group
		}
		fmt.Fprintf(&b, "\n### %s\n\n- Claim: %s\n- Severity: %s\n- Why: %s\n- Fix: %s\n", c.Code, c.Claim, c.Severity, c.Why, c.Fix)
	}
	return b.String()
}
