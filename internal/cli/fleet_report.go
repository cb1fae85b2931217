package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/fleet"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// fleetReport is what happened in all clusters of a fleet.
type fleetReport struct {
	objectHead `json:",inline"`
	Fleet      string           `json:"fleet"`
	Migration  string           `json:"migration"`
	Made       time.Time        `json:"made"`
	Summary    string           `json:"summary"`
	Clusters   []fleetReportRow `json:"clusters"`
}

// fleetReportRow is one cluster of it.
type fleetReportRow struct {
	Cluster    string `json:"cluster"`
	Wave       string `json:"wave"`
	reportPart `       json:",inline"`
}

// reportPart is what one cluster, or one migration, has in a report of several.
type reportPart struct {
	// Summary is one sentence, and Report all that replumb report says; neither is there before the migration began.
	Summary  string          `json:"summary,omitempty"`
	Report   json.RawMessage `json:"report,omitempty"`
	Error    string          `json:"error,omitempty"`
	ExitCode int             `json:"exitCode"`

	sent, failed, late, notMeasured int64
}

func (a *app) fleetReport() *cobra.Command {
	f := &fleetFlags{}
	var flags *genericclioptions.PrintFlags
	cmd := &cobra.Command{
		Use:   "report -f FILE",
		Short: "Print what happened in all clusters, as one report",
		Long: `Print what happened in all clusters, as one report: a sentence for each, and how many requests were sent and lost in all. -o json
and -o yaml have the whole report of each cluster, as replumb report does. A cluster that cannot be reached is a row with the reason.

Exit code: 0 all clusters were looked at, else the worst of those of the clusters.`,
		Example: a.example(`
  replumb fleet report -f fleet.yaml
  replumb fleet report -f fleet.yaml -o markdown   # for a change ticket
  replumb fleet report -f fleet.yaml -o json > report.json`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			run, err := a.openFleet(cmd, f)
			if err != nil {
				return err
			}
			doc := fleetReport{
				objectHead: headed("FleetReport", run.Name), Fleet: run.Name, Migration: run.targets[0].Migration.Name,
				Made: time.Now().UTC().Truncate(time.Second), Clusters: make([]fleetReportRow, len(run.targets)),
			}
			fleet.Each(run.targets, func(i int, t *fleet.Target) {
				state := run.program.Status(cmd.Context(), t)
				if state.Error != "" || state.Phase == "" {
					doc.Clusters[i] = fleetReportRow{
						Cluster: t.Name, Wave: t.Wave, reportPart: reportPart{Error: state.Error, ExitCode: state.ExitCode},
					}
					return
				}
				printed, end := run.program.Ask(cmd.Context(), t, "report", t.Migration.Name, "-o", "json")
				doc.Clusters[i] = reportRow(t, printed, end)
			})
			doc.Summary = doc.summarize()
			if err := a.showFleetReport(flags, doc); err != nil {
				return err
			}
			ends := make([]fleet.Outcome, len(doc.Clusters))
			for i, row := range doc.Clusters {
				ends[i].Code = row.ExitCode
			}
			return fleetError(run.targets, ends)
		},
	}
	f.declare(cmd)
	f.declarePick(cmd)
	flags = a.documentFlag(cmd, "table", "json", "yaml", "markdown")
	return cmd
}

// reportRow reads what replumb report printed.
func reportRow(t *fleet.Target, printed []byte, end fleet.Outcome) fleetReportRow {
	row := fleetReportRow{Cluster: t.Name, Wave: t.Wave, reportPart: reportPart{Error: end.Error, ExitCode: end.Code}}
	if end.Code != fault.ExitDone {
		return row
	}
	var of struct {
		Summary  string `json:"summary"`
		Requests *struct {
			Sent   int64 `json:"sent"`
			Failed int64 `json:"failed"`
			Late   int64 `json:"late"`
			// NotMeasured are further requests.
			NotMeasured int64 `json:"notMeasured"`
		} `json:"requests"`
	}
	if err := json.Unmarshal(printed, &of); err != nil {
		row.Error, row.ExitCode = "reading its report: "+err.Error(), fault.ExitError
		return row
	}
	row.Summary, row.Report = of.Summary, bytes.TrimSpace(printed)
	if of.Requests != nil {
		row.sent, row.failed = of.Requests.Sent, of.Requests.Failed
		row.late, row.notMeasured = of.Requests.Late, of.Requests.NotMeasured
	}
	return row
}

// summarize is the report in one sentence.
func (r *fleetReport) summarize() string {
	var parts []reportPart
	for _, row := range r.Clusters {
		parts = append(parts, row.reportPart)
	}
	return summarize(parts, "cluster")
}

// summarize says in one sentence in how many of them something has begun, and how many requests were sent and lost.
func summarize(parts []reportPart, of string) string {
	var sent, failed, late, notMeasured int64
	begun, unknown := 0, 0
	for _, row := range parts {
		sent, failed, late, notMeasured = sent+row.sent, failed+row.failed, late+row.late, notMeasured+row.notMeasured
		if row.Summary != "" {
			begun++
		}
		if row.Error != "" {
			unknown++
		}
	}
	text := fmt.Sprintf("begun in %d of %s", begun, english.Plural(len(parts), of, ""))
	if unknown > 0 {
		text += fmt.Sprintf(", not known of %d", unknown)
	}
	if sent+notMeasured == 0 {
		return text + "; no requests were counted"
	}
	text += fmt.Sprintf("; %s of %s requests failed", humanize.Comma(failed), humanize.Comma(sent))
	if late > 0 {
		text += fmt.Sprintf(", %s answered late", humanize.Comma(late))
	}
	if notMeasured > 0 {
		text += fmt.Sprintf(", %s more not measured", humanize.Comma(notMeasured))
	}
	return text
}

func (a *app) showFleetReport(flags *genericclioptions.PrintFlags, doc fleetReport) error {
	switch a.output {
	case "table":
		fmt.Fprintf(a.out, "fleet %s, migration %s: %s\n", doc.Fleet, doc.Migration, doc.Summary)
		return terminal.Table(a.out, append([][]string{{"WAVE", "CLUSTER", "WHAT HAPPENED"}}, doc.rows()...))
	case "markdown":
		return doc.markdown(a.out)
	}
	return printDocument(verbatim{a.out}, a.output, flags, doc)
}

func (r *fleetReport) rows() (rows [][]string) {
	for _, row := range r.Clusters {
		what := cmp.Or(row.Summary, "not begun")
		if row.Error != "" {
			what = "unknown: " + row.Error
		}
		rows = append(rows, []string{row.Wave, row.Cluster, what})
	}
	return rows
}

func (r *fleetReport) markdown(w io.Writer) error {
	fmt.Fprintf(w, "## Fleet %s, migration %s\n\n%s, as of %s.\n\n| wave | cluster | what happened |\n|---|---|---|\n",
		r.Fleet, r.Migration, r.Summary, r.Made.Format(time.RFC3339))
	for _, row := range r.rows() {
		for i, cell := range row {
			row[i] = strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(printable.Line(cell))
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
	return nil
}
