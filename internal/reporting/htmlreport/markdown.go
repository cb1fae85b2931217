package htmlreport

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// shownRows bounds the rows of each table in Markdown; the other forms have all.
const shownRows = 20

// Markdown writes what a change ticket is closed with: the verdict, phases, losses, gates and
// findings.
func (d *Document) Markdown(w io.Writer) error {
	verdict := strings.ToUpper(d.Verdict[:min(1, len(d.Verdict))]) + d.Verdict[min(1, len(d.Verdict)):]
	fmt.Fprintf(w, "# Report: migration %s\n\n**%s.** %s.\n",
		printable.Markdown(d.Migration), printable.Markdown(verdict), printable.Markdown(d.Work))
	if d.Problem != "" {
		fmt.Fprintf(w, "\n**The last run stopped.** %s\n", printable.Markdown(d.Problem))
	}
	p := page{Document: d}
	rows := [][]string{{"", ""}, {"cluster", d.Cluster.String()}, {"it is", p.Status()}}
	if d.Effort != nil {
		rows = append(rows, []string{"when", d.Line()})
	}
	if r := d.Requests; r != nil {
		rows = append(rows, []string{"requests", fmt.Sprintf("%s counted, %s failed%s", humanize.Comma(r.Sent), humanize.Comma(r.Failed), r.beside())})
	}
	if err := section(w, "", rows); err != nil {
		return err
	}
	for _, s := range []struct {
		title string
		rows  [][]string
	}{
		{"Phases", phaseRows(p.Phases())},
		{"Losses", lossRows(d.Losses)},
		{"Gates", gateRows(d.Gates)},
		{"Findings", findingsRows(d.Findings)},
	} {
		if err := section(w, s.title, s.rows); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\nMade %s UTC by replumb, of what the cluster has recorded.\n", stamp(d.Made))
	return err
}

// section writes a table below a title; nothing, if it has no row but the heading.
func section(w io.Writer, title string, rows [][]string) error {
	if len(rows) < 2 {
		return nil
	}
	if title != "" {
		fmt.Fprintf(w, "\n## %s\n", title)
	}
	fmt.Fprintln(w)
	for i, row := range rows {
		if i > shownRows {
			_, err := fmt.Fprintf(w, "\nand %d more\n", len(rows)-i)
			return err
		}
		cells := slices.Clone(row)
		for k, cell := range cells {
			cells[k] = printable.Markdown(cell)
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			fmt.Fprintln(w, "|"+strings.Repeat("---|", len(row)))
		}
	}
	return nil
}

func phaseRows(all []Span) [][]string {
	rows := [][]string{{"phase", "what", "began (UTC)", "took", "ended"}}
	for _, s := range all {
		rows = append(rows, []string{s.Name, s.Title, stamp(s.Start), journal.Took(s.Seconds()), string(s.Outcome)})
	}
	return rows
}

func lossRows(all []Loss) [][]string {
	rows := [][]string{{"from (UTC)", "to", "node", "probe", "address", "failed", "first error"}}
	for _, l := range all {
		rows = append(rows, []string{stamp(l.Start), l.End.UTC().Format(time.TimeOnly), l.Node, l.Probe, l.Address, fmt.Sprint(l.Failed), l.Error})
	}
	return rows
}

func gateRows(all []Gate) [][]string {
	rows := [][]string{{"gate", "asked (UTC)", "run of", "passed"}}
	for _, g := range all {
		passed := "not in that run"
		if g.Passed != nil {
			passed = "after " + journal.Took(g.Seconds)
		}
		rows = append(rows, []string{g.Title, stamp(g.Since), g.By, passed})
	}
	return rows
}

func findingsRows(all []Finding) [][]string {
	rows := [][]string{{"code", "severity", "outcome", "what"}}
	for _, f := range all {
		outcome := f.Outcome
		if f.By != "" {
			outcome += " by " + f.By
		}
		rows = append(rows, []string{f.Code, f.Severity, outcome, f.Message})
	}
	return rows
}
