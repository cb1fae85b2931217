package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/engine/printable"
)

// Table writes columns that are aligned by tabs.
func Table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable.Line(cell)
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// Document writes a value as JSON or YAML.
func Document(w io.Writer, format string, v any) error {
	if format == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	body, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Errorf("writing YAML: %w", err)
	}
	_, err = w.Write(body)
	return err
}

// shownFindings bounds how many findings of one check are printed; JSON and YAML have all.
const shownFindings = 10

// Checklist is what is shown of findings, and how.
type Checklist struct {
	// All shows what passed and what was not applicable, beside what is to be done.
	All   bool
	Color bool
}

// Write writes each check with its findings and its fix, the worst first. Checks that passed come
// last, and after them those that had nothing to look at.
func (l Checklist) Write(w io.Writer, all findings.Findings) {
	for _, found := range all.WorstFirst() {
		if l.All || found.Worst().Open() {
			l.oneCheck(w, found)
		}
	}
}

// Wide writes a line for every finding, in the same order.
func (l Checklist) Wide(w io.Writer, all findings.Findings) error {
	rows := [][]string{{"CODE", "OUTCOME", "SEVERITY", "OBJECT", "FOUND", "FIX"}}
	for _, found := range all.WorstFirst() {
		for _, f := range found {
			if !l.All && !f.Open() {
				continue
			}
			text := f.Message
			if f.Outcome == findings.Pass {
				text = f.Claim
			}
			rows = append(rows, []string{f.Code, string(f.Outcome), string(f.Severity), f.Object, text, f.Fix})
		}
	}
	if len(rows) == 1 {
		return nil
	}
	return Table(w, rows)
}

// Verdict writes the counts of findings as one line.
func (l Checklist) Verdict(w io.Writer, c findings.Score) {
	color := green
	if !c.Ready() {
		color = boldRed
	}
	fmt.Fprintln(w, l.paint(color, c.Verdict()))
}

// Attention writes only what there is something to do about, a finding a line, the worst first.
func Attention(w io.Writer, all findings.Findings) {
	for _, found := range all.Open().WorstFirst() {
		for i, f := range found {
			if bounded(i, found) {
				fmt.Fprintf(w, "%s and %d more (check -o json has all)\n", f.Code, len(found)-i)
				break
			}
			fmt.Fprintf(w, "%s %s (%s)\n", f.Code, printable.Indented(f.Message, indent), f.Severity)
		}
	}
}

func bounded(i int, found findings.Findings) bool {
	return i == shownFindings && len(found) > shownFindings+1
}

func (l Checklist) oneCheck(w io.Writer, found findings.Findings) {
	worst := found.Worst()
	title := worst.Claim
	if worst.Outcome == findings.Skipped {
		title = "not applicable: " + printable.Line(worst.Message)
	}
	mark, color := markOf(worst)
	fmt.Fprintf(w, "%s %s %s\n", l.paint(color, mark), worst.Code, title)
	for i, f := range found {
		if bounded(i, found) {
			fmt.Fprintf(w, "    and %d more (-o json has all)\n", len(found)-i)
			break
		}
		switch {
		case !f.Open():
		case f.Outcome == findings.Unknown && worst.Severity != findings.Warning:
			fmt.Fprintf(w, "    not known: %s\n", printable.Indented(f.Message, indent))
		default:
			fmt.Fprintf(w, "    %s\n", printable.Indented(f.Message, indent))
		}
	}
	if worst.Fix != "" {
		fmt.Fprintf(w, "    fix: %s\n", printable.Indented(worst.Fix, indent))
	}
}

// The colours of marks, as a terminal takes them.
const (
	boldRed = "1;31"
	red     = "31"
	yellow  = "33"
	green   = "32"
	faint   = "2"
)

func (l Checklist) paint(color, text string) string {
	if !l.Color {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// markOf is that of a check by its worst finding. A check that could not look blocks as one that
// failed does.
func markOf(worst findings.Finding) (mark, color string) {
	switch {
	case worst.Outcome == findings.Pass:
		return "ok     ", green
	case worst.Outcome == findings.Skipped:
		return "-      ", faint
	case worst.Severity == findings.Blocking:
		return "BLOCKED", boldRed
	case worst.Severity == findings.Isolating:
		return "LEFT OUT", red
	case worst.Outcome == findings.Unknown:
		return "unknown", yellow
	}
	return "warning", yellow
}

// PlanStep is a step in a document.
type PlanStep struct {
	ID      string          `json:"id"`
	Title   string          `json:"title"`
	Role    engine.StepRole `json:"role"`
	Changes []engine.Change `json:"changes,omitempty"`
}

// PlanPhase is a phase in a document.
type PlanPhase struct {
	Name  string     `json:"name"`
	Title string     `json:"title"`
	Steps []PlanStep `json:"steps"`
}

// PlanPhases turns a plan into a document, with every change that it would make.
func PlanPhases(p *engine.Plan) ([]PlanPhase, error) {
	var out []PlanPhase
	for _, phase := range p.Phases {
		doc := PlanPhase{Name: phase.Name, Title: phase.Title, Steps: []PlanStep{}}
		for _, g := range phase.Groups {
			for _, s := range g.Steps {
				changes, err := engine.Preview(s)
				if err != nil {
					return nil, err
				}
				doc.Steps = append(doc.Steps, PlanStep{ID: s.ID(), Title: s.Title(), Role: engine.RoleOf(s), Changes: changes})
			}
		}
		if len(doc.Steps) > 0 {
			out = append(out, doc)
		}
	}
	return out, nil
}

// WidePhases writes a plan with the ID and the role of every step.
func WidePhases(w io.Writer, phases []PlanPhase) error {
	rows := [][]string{{"PHASE", "STEP", "ROLE", "TITLE", "WRITES"}}
	for _, phase := range phases {
		for _, s := range phase.Steps {
			var writes []string
			for _, c := range s.Changes {
				writes = append(writes, c.Verb+" "+c.Object)
			}
			rows = append(rows, []string{phase.Name, s.ID, string(s.Role), s.Title, strings.Join(writes, ", ")})
		}
	}
	return Table(w, rows)
}

// Phases writes a plan for people: every step, and every write of a step in short.
func Phases(w io.Writer, phases []PlanPhase) {
	for _, phase := range phases {
		fmt.Fprintf(w, "%s: %s\n", phase.Name, phase.Title)
		for _, s := range phase.Steps {
			fmt.Fprintf(w, "  %s\n", printable.Line(s.Title))
			for _, c := range s.Changes {
				fmt.Fprintf(w, "    %s %s\n", c.Verb, printable.Line(c.Object))
			}
		}
	}
}
