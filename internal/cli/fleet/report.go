package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/fleet"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

type document struct {
	command.DocumentHead `json:",inline"`
	Fleet                string      `json:"fleet"`
	Migration            string      `json:"migration"`
	Made                 time.Time   `json:"made"`
	Summary              string      `json:"summary"`
	Clusters             []reportRow `json:"clusters"`
}

type reportRow struct {
	Cluster            string `json:"cluster"`
	Wave               string `json:"wave"`
	command.ReportPart `       json:",inline"`
}

func report(a *command.App) *cobra.Command {
	o := &options{App: a}
	cmd := &cobra.Command{
		Use:   "report -f FILE",
		Short: "Print what happened in all clusters, as one report",
		Long: `Print what happened in all clusters, as one report: a sentence for each, and how many requests were sent and
lost in all. -o json and -o yaml have the whole report of each cluster, as replumb report does. A cluster that
cannot be reached is a row with the reason.

Exit code: 0 all clusters were looked at, else the worst of those of the clusters.`,
		Example: a.Example(`
  replumb fleet report -f fleet.yaml
  replumb fleet report -f fleet.yaml -o markdown   # for a change ticket
  replumb fleet report -f fleet.yaml -o json > report.json`),
	}
	o.format.DeclareDocument(cmd, "table", "json", "yaml", "markdown")
	return o.asking(cmd, func(ctx context.Context, r *run) (func(int) int, error) {
		doc := document{
			DocumentHead: command.HeadOf("FleetReport", r.Name), Fleet: r.Name, Migration: r.targets[0].Migration.Name,
			Made: time.Now().UTC().Truncate(time.Second), Clusters: make([]reportRow, len(r.targets)),
		}
		fleet.Each(r.targets, func(i int, t *fleet.ClusterTarget) {
			state := r.program.Status(ctx, t)
			if state.Error != "" || state.Phase == "" {
				doc.Clusters[i] = reportRow{
					Cluster: t.Name, Wave: t.Wave, ReportPart: command.ReportPart{Error: state.Error, ExitCode: state.ExitCode},
				}
				return
			}
			printed, end := r.program.Ask(ctx, t, "report", t.Migration.Name, "-o", "json")
			doc.Clusters[i] = newReportRow(t, printed, end)
		})
		doc.Summary = doc.summarize()
		return func(i int) int { return doc.Clusters[i].ExitCode }, o.printReport(doc)
	})
}

func newReportRow(t *fleet.ClusterTarget, printed []byte, end fleet.Outcome) reportRow {
	row := reportRow{Cluster: t.Name, Wave: t.Wave, ReportPart: command.ReportPart{Error: end.Error, ExitCode: end.Code}}
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
		row.Sent, row.Failed = of.Requests.Sent, of.Requests.Failed
		row.Late, row.NotMeasured = of.Requests.Late, of.Requests.NotMeasured
	}
	return row
}

func (r *document) summarize() string {
	var parts []command.ReportPart
	for _, row := range r.Clusters {
		parts = append(parts, row.ReportPart)
	}
	return command.Summarize(parts, "cluster")
}

func (o *options) printReport(doc document) error {
	switch o.format.Name {
	case "table":
		fmt.Fprintf(o.Out, "fleet %s, migration %s: %s\n", doc.Fleet, doc.Migration, doc.Summary)
		return terminal.Table(o.Out, append([][]string{{"WAVE", "CLUSTER", "WHAT HAPPENED"}}, doc.rows()...))
	case "markdown":
		return doc.markdown(o.Out)
	}
	return o.format.Print(o.Out.Verbatim(), doc)
}

func (r *document) rows() (rows [][]string) {
	for _, row := range r.Clusters {
		what := cmp.Or(row.Summary, "not begun")
		if row.Error != "" {
			what = "unknown: " + row.Error
		}
		rows = append(rows, []string{row.Wave, row.Cluster, what})
	}
	return rows
}

func (r *document) markdown(w io.Writer) error {
	fmt.Fprintf(w, "## Fleet %s, migration %s\n\n%s, as of %s.\n\n| wave | cluster | what happened |\n|---|---|---|\n",
		r.Fleet, r.Migration, r.Summary, r.Made.Format(time.RFC3339))
	for _, row := range r.rows() {
		for i, cell := range row {
			row[i] = printable.Markdown(cell)
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
	return nil
}
