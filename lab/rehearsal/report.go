package rehearsal

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/archive"
)

// Outcome is what a rehearsal came to.
type Outcome string

// The outcomes.
const (
	// Done says that apply came to its end.
	Done Outcome = "Done"
	// Blocked says that a check refused to let it begin, or go on.
	Blocked Outcome = "Blocked"
	// Failed says that it ended with an error.
	Failed Outcome = "Failed"
	// Open says that it waits at a gate that the rehearsal cannot answer.
	Open Outcome = "Open"
)

// Report is what a rehearsal tells.
type Report struct {
	Kind      string       `json:"kind"`
	Outcome   Outcome      `json:"outcome"`
	Migration string       `json:"migration"`
	Snapshot  archive.Head `json:"snapshot"`
	// Kubernetes is the version that it was rehearsed on.
	Kubernetes string  `json:"kubernetes"`
	Seconds    float64 `json:"seconds"`
	Objects    Objects `json:"objects"`
	Services   Fates   `json:"services"`
	Phases     []Phase `json:"phases"`
	Gates      []Gate  `json:"gates"`
	// Restarts are the steps by which apply would renew what carries old addresses, as the plan of the snapshot has them.
	Restarts []string `json:"restarts"`
	// Risks are the findings of the snapshot that did not pass, Only those that the cluster of the rehearsal has beside them.
	Risks findings.Findings `json:"risks"`
	Only  findings.Findings `json:"only"`
	// Errors are what went wrong, in the words of replumb.
	Errors []string `json:"errors"`
	// Again is why apply was run again: the one API server of the rehearsal restarted at a gate.
	Again []string `json:"again,omitempty"`
	// WaitsLeftOut is how long the Migration would have waited after batches and tiers.
	WaitsLeftOut float64 `json:"waitsLeftOutSeconds"`
	// Played says what was not real, LeftOut what of the Migration was not done, and NotProven what no rehearsal without nodes tells.
	Played    []string `json:"played"`
	LeftOut   []string `json:"leftOut"`
	NotProven []string `json:"notProven"`
}

// Objects are those of the snapshot.
type Objects struct {
	Made    int     `json:"made"`
	Seconds float64 `json:"seconds"`
	// Skipped counts those that are of no use in a rehearsal, by the reason.
	Skipped map[string]int `json:"skipped,omitempty"`
	// NotRead are the resources that the snapshot has nothing of, for lack of rights.
	NotRead []string `json:"notRead,omitempty"`
	// Lacking is how many could not be made, Refused the first of them.
	Lacking int       `json:"lacking"`
	Refused []Refused `json:"refused,omitempty"`
}

// Fates are what becomes of Services, by the plan of the snapshot.
type Fates struct {
	Move   int `json:"move"`
	Stay   int `json:"stay"`
	AtRisk int `json:"atRisk"`
}

// Phase is one that apply went through.
type Phase struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	// Done are the steps that changed something, Unchanged those that had nothing to do, Retried how often one was tried again.
	Done      int `json:"done"`
	Unchanged int `json:"unchanged"`
	Retried   int `json:"retried"`
}

// Gate is one that apply waits at for people.
type Gate struct {
	Step  string `json:"step"`
	Title string `json:"title"`
	// Answer is what the rehearsal did.
	Answer string `json:"answer"`
	// Passed reports whether apply went on, Seconds how long it stood there.
	Passed  bool    `json:"passed"`
	Seconds float64 `json:"seconds"`
}

func played() []string {
	return []string{
		"kubelets: nodes and pods have the status that they had, and name cluster DNS as they did, until the gate for it",
		"kube-proxies: each said at once that it knows what a barrier asks for",
		"the controllers of ServiceCIDRs, namespaces and EndpointSlices; no other controller ran",
		"webhooks and aggregated APIs: none was called",
		"one API server, whose certificate had the new address from the beginning",
	}
}

func notProven() []string {
	return []string{
		"whether a request is lost: no packet was sent",
		"whether kube-proxies and CNIs of this cluster answer on both addresses, and how fast",
		"what webhooks, mutating ones above all, do to replumb's objects",
		"how long restarts take, and people at gates",
		"finish and rollback: apply alone was rehearsed",
	}
}

// hear takes an event into account.
func (r *Report) hear(e engine.Event) {
	if e.Phase == "" {
		return
	}
	at := slices.IndexFunc(r.Phases, func(p Phase) bool { return p.Name == e.Phase })
	if at < 0 {
		r.Phases = append(r.Phases, Phase{Name: e.Phase})
		at = len(r.Phases) - 1
	}
	p := &r.Phases[at]
	switch e.Kind {
	case engine.StepDone:
		p.Done++
	case engine.StepUnchanged:
		p.Unchanged++
	case engine.StepRetried:
		p.Retried++
	case engine.PhaseDone:
		p.Seconds += e.Seconds
	}
	if e.Kind == engine.StepDone || e.Kind == engine.StepUnchanged {
		if g := slices.IndexFunc(r.Gates, func(g Gate) bool { return g.Step == e.Step }); g >= 0 {
			r.Gates[g].Passed = true
			r.Gates[g].Seconds += e.Seconds
		} else if e.Role == engine.RoleGate {
			r.Gates = append(r.Gates, Gate{Step: e.Step, Title: e.Message, Answer: "it held from the beginning", Passed: true})
		}
	}
}

// lost are the findings that did not pass.
func lost(all findings.Findings) findings.Findings {
	return slices.DeleteFunc(slices.Clone(all), func(f findings.Finding) bool { return f.Outcome == findings.Pass })
}

// beside are the findings that another look does not have.
func beside(all, other findings.Findings) findings.Findings {
	type key struct{ code, object string }
	has := map[key]bool{}
	for _, f := range other {
		has[key{f.Code, f.Object}] = true
	}
	return slices.DeleteFunc(lost(all), func(f findings.Finding) bool { return has[key{f.Code, f.Object}] })
}

// JSON writes the report as a document.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format, args...) } // Flush tells
	p("rehearsal of %s: %s\n", r.Migration, r.Outcome)
	p("snapshot of %s, taken at %s, Kubernetes %s; rehearsed on %s in %s\n", r.Snapshot.Server, r.Snapshot.Time.Format(time.RFC3339),
		r.Snapshot.Kubernetes, r.Kubernetes, seconds(r.Seconds))
	p("\nOBJECTS\t\n  made\t%d, in %s\n", r.Objects.Made, seconds(r.Objects.Seconds))
	for _, why := range slices.Sorted(maps.Keys(r.Objects.Skipped)) {
		p("  left out\t%d: %s\n", r.Objects.Skipped[why], why)
	}
	if len(r.Objects.NotRead) > 0 {
		p("  not in the snapshot\t%s\n", strings.Join(r.Objects.NotRead, ", "))
	}
	if r.Objects.Lacking > 0 {
		p("  not made\t%d\n", r.Objects.Lacking)
	}
	for _, refused := range r.Objects.Refused {
		p("    %s\t%s\n", refused.Object, line(refused.Error))
	}
	p("\nSERVICES\t\n  move\t%d\n  stay\t%d\n  at risk\t%d\n", r.Services.Move, r.Services.Stay, r.Services.AtRisk)
	if len(r.Phases) > 0 {
		p("\nPHASE\tTOOK\tSTEPS\tUNCHANGED\tRETRIED\n")
	}
	for _, phase := range r.Phases {
		p("%s\t%s\t%d\t%d\t%d\n", phase.Name, seconds(phase.Seconds), phase.Done, phase.Unchanged, phase.Retried)
	}
	if r.WaitsLeftOut > 0 {
		p("waits after batches and tiers, left out\t%s\n", seconds(r.WaitsLeftOut))
	}
	r.gates(p)
	list(p, fmt.Sprintf("RESTARTS PLANNED: %d", len(r.Restarts)), r.Restarts)
	list(p, "RISKS, by the snapshot", texts(r.Risks))
	list(p, "FINDINGS of the rehearsal alone", texts(r.Only))
	list(p, "ERRORS", r.Errors)
	list(p, "RUN AGAIN, after the API server of the rehearsal restarted", r.Again)
	list(p, "PLAYED", r.Played)
	list(p, "LEFT OUT of the Migration", r.LeftOut)
	list(p, "NOT PROVEN", r.NotProven)
	return t.Flush()
}

func (r *Report) gates(p func(string, ...any)) {
	if len(r.Gates) == 0 {
		return
	}
	p("\nGATE\tPASSED\tSTOOD\tANSWER\n")
	for _, g := range r.Gates {
		passed := "no"
		if g.Passed {
			passed = "yes"
		}
		p("%s\t%s\t%s\t%s\n", g.Step, passed, seconds(g.Seconds), g.Answer)
	}
}

// shown bounds the lists of the text; JSON has all.
const shown = 20

func list(p func(string, ...any), heading string, lines []string) {
	if len(lines) == 0 {
		return
	}
	p("\n%s\n", heading)
	for _, l := range lines[:min(shown, len(lines))] {
		p("  %s\n", line(l))
	}
	if more := len(lines) - shown; more > 0 {
		p("  … and %d more (-o json has all)\n", more)
	}
}

func texts(all findings.Findings) []string {
	var out []string
	for _, f := range all {
		text := f.Message
		if text == "" {
			text = f.Claim
		}
		out = append(out, fmt.Sprintf("%s %s %s: %s", f.Code, f.Severity, f.Outcome, text))
	}
	return out
}

// line is a text in one line of a table.
func line(text string) string {
	return strings.NewReplacer("\n", "; ", "\t", " ").Replace(strings.TrimSpace(text))
}

func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
