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

// Findings writes a checklist in groups, each claim with its findings.
func Findings(w io.Writer, all findings.Findings) {
	group := ""
	for _, found := range byCheck(all) {
		if found[0].Group != group {
			if group != "" {
				fmt.Fprintln(w)
			}
			group = found[0].Group
			fmt.Fprintln(w, group)
		}
		oneCheck(w, found)
	}
}

// Attention writes only what did not pass, a finding a line.
func Attention(w io.Writer, all findings.Findings) {
	for _, found := range byCheck(all) {
		for i, f := range found {
			if bounded(i, found) {
				fmt.Fprintf(w, "%s and %d more (check -o json has all)\n", f.Code, len(found)-i)
				break
			}
			if f.Outcome != findings.Pass {
				fmt.Fprintf(w, "%s %s (%s)\n", f.Code, printable.Indented(f.Message, indent), f.Severity)
			}
		}
	}
}

func byCheck(all findings.Findings) []findings.Findings {
	var out []findings.Findings
	for i := range all {
		if i == 0 || all[i].Code != all[i-1].Code {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], all[i])
	}
	return out
}

func bounded(i int, found findings.Findings) bool {
	return i == shownFindings && len(found) > shownFindings+1
}

func oneCheck(w io.Writer, found findings.Findings) {
	fmt.Fprintf(w, "%s %s %s\n", mark(found), found[0].Code, found[0].Claim)
	for i, f := range found {
		if bounded(i, found) {
			fmt.Fprintf(w, "    and %d more (-o json has all)\n", len(found)-i)
			break
		}
		if f.Outcome != findings.Pass {
			fmt.Fprintf(w, "    %s\n", printable.Indented(f.Message, indent))
		}
	}
	if fix := found[0].Fix; fix != "" {
		fmt.Fprintf(w, "    fix: %s\n", printable.Indented(fix, indent))
	}
}

// WideFindings writes a line for every finding.
func WideFindings(w io.Writer, all findings.Findings) error {
	rows := [][]string{{"CODE", "OUTCOME", "SEVERITY", "OBJECT", "FOUND", "FIX"}}
	for _, f := range all {
		found, fix := f.Message, f.Fix
		if f.Outcome == findings.Pass {
			found, fix = f.Claim, ""
		}
		rows = append(rows, []string{f.Code, string(f.Outcome), string(f.Severity), f.Object, found, fix})
	}
	return Table(w, rows)
}

// mark is the worst outcome of a check: what is known to be wrong comes before what is not known.
func mark(found findings.Findings) string {
	worst := findings.Pass
	for _, f := range found {
		if f.Outcome == findings.Fail || worst == findings.Pass {
			worst = f.Outcome
		}
	}
	switch {
	case worst == findings.Pass:
		return "ok     "
	case worst == findings.Unknown:
		return "unknown"
	case found[0].Severity == findings.Blocking:
		return "BLOCKED"
	case found[0].Severity == findings.Isolating:
		return "LEFT OUT"
	}
	return "warning"
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
