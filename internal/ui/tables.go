package ui

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/engine"
)

// Table writes columns that are aligned by tabs.
func Table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
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

// Findings writes a checklist: a claim a line, and beneath it what is wrong and what to do.
func Findings(w io.Writer, all check.Findings) {
	last := ""
	for _, f := range all {
		if f.Code != last {
			fmt.Fprintf(w, "%s %s %s\n", mark(f), f.Code, f.Claim)
		}
		if f.Outcome != check.Pass {
			fmt.Fprintf(w, "    %s\n", f.Message)
		}
		if f.Fix != "" && f.Code != last {
			fmt.Fprintf(w, "    fix: %s\n", f.Fix)
		}
		last = f.Code
	}
}

func mark(f check.Finding) string {
	switch {
	case f.Outcome == check.Pass:
		return "ok     "
	case f.Outcome == check.Unknown:
		return "unknown"
	case f.Severity == check.Blocking:
		return "BLOCKED"
	}
	return "warning"
}

// PlanStep is a step in a document.
type PlanStep struct {
	ID      string          `json:"id"`
	Title   string          `json:"title"`
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
				doc.Steps = append(doc.Steps, PlanStep{ID: s.ID(), Title: s.Title(), Changes: changes})
			}
		}
		if len(doc.Steps) > 0 {
			out = append(out, doc)
		}
	}
	return out, nil
}

// Phases writes a plan for people: every step, and every write of a step in short.
func Phases(w io.Writer, phases []PlanPhase) {
	for _, phase := range phases {
		fmt.Fprintf(w, "%s: %s\n", phase.Name, phase.Title)
		for _, s := range phase.Steps {
			fmt.Fprintf(w, "  %s\n", s.Title)
			for _, c := range s.Changes {
				fmt.Fprintf(w, "    %s %s\n", c.Verb, c.Object)
			}
		}
	}
}
