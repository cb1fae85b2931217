package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/fleet"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

func rawConfig(files ...string) (clientcmdapi.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cmp.Or(files...)
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).RawConfig()
}

// Error says in which clusters a command that reads all of them had no good answer.
type Error struct {
	Clusters []string
	Code     int
}

func (e *Error) Error() string {
	return fmt.Sprintf("not as it should be in %s: %s", english.Plural(len(e.Clusters), "cluster", ""), strings.Join(e.Clusters, ", "))
}

func (e *Error) ExitCode() int { return e.Code }

func (*Error) Advice() string { return "the table has the reason of each; nothing was changed" }

func errorOf(of []*fleet.ClusterTarget, code func(i int) int) error {
	e := &Error{}
	for i, t := range of {
		if code(i) != fault.ExitDone {
			e.Clusters = append(e.Clusters, t.Name)
			e.Code = fleet.Worse(e.Code, code(i))
		}
	}
	if len(e.Clusters) == 0 {
		return nil
	}
	return e
}

// asking has a command ask every cluster. do prints the answers, and returns the exit code of each.
func (o *options) asking(cmd *cobra.Command, do func(context.Context, *run) (code func(i int) int, err error)) *cobra.Command {
	o.declare(cmd)
	o.declarePick(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := o.open(cmd)
		if err != nil {
			return err
		}
		code, err := do(cmd.Context(), r)
		if err != nil {
			return err
		}
		return errorOf(r.targets, code)
	}
	return cmd
}

type checkRow struct {
	Cluster  string   `json:"cluster"`
	Wave     string   `json:"wave"`
	Result   string   `json:"result"`
	Blocking []string `json:"blocking"`
	Warnings []string `json:"warnings"`
	Error    string   `json:"error,omitempty"`
	ExitCode int      `json:"exitCode"`
}

func check(a *command.App) *cobra.Command {
	o := &options{App: a}
	cmd := &cobra.Command{
		Use: "check -f FILE", Short: "Check whether each cluster is fit for the migration",
		Long: `Check whether each cluster is fit for the migration, also when others cannot be reached. Nothing is written.

Exit code: the worst of those of the clusters: 0 nothing blocks, 3 something blocks, 1 could not look.`,
		Example: a.Example(`
  replumb fleet check -f fleet.yaml
  replumb fleet check -f fleet.yaml --cluster eu-1
  replumb fleet check -f fleet.yaml -o json`),
	}
	o.format.DeclareDocument(cmd, "table", "json", "yaml")
	return o.asking(cmd, func(ctx context.Context, r *run) (func(int) int, error) {
		rows := make([]checkRow, len(r.targets))
		fleet.Each(r.targets, func(i int, t *fleet.ClusterTarget) {
			printed, end := r.program.Ask(ctx, t, "check", "-f", "-", "-o", "json")
			rows[i] = newCheckRow(t, printed, end)
		})
		return func(i int) int { return rows[i].ExitCode }, o.printChecks(rows)
	})
}

func newCheckRow(t *fleet.ClusterTarget, printed []byte, end fleet.Outcome) checkRow {
	row := checkRow{Cluster: t.Name, Wave: t.Wave, Result: "unknown", Blocking: []string{}, Warnings: []string{}, ExitCode: end.Code}
	found := struct {
		Items findings.Findings `json:"items"`
	}{}
	if json.Unmarshal(printed, &found) != nil || len(found.Items) == 0 {
		row.Error = cmp.Or(end.Error, "it printed no findings")
		return row
	}
	blocking := found.Items.Objections()
	row.Blocking = append(row.Blocking, blocking.Codes()...)
	for _, code := range found.Items.Codes() {
		if !slices.Contains(row.Blocking, code) {
			row.Warnings = append(row.Warnings, code)
		}
	}
	switch {
	case len(blocking) > 0:
		row.Result = "blocked"
	case end.Code == fault.ExitDone:
		row.Result = "ready"
	default:
		row.Error = end.Error
	}
	return row
}

func (o *options) printChecks(rows []checkRow) error {
	if o.format.Name != "table" {
		return o.format.Print(o.Out.Verbatim(), command.ListOf(rows))
	}
	table := [][]string{{"WAVE", "CLUSTER", "RESULT", "BLOCKING", "WARNINGS"}}
	for _, r := range rows {
		blocking := dash(strings.Join(r.Blocking, ","))
		if r.Error != "" {
			blocking = r.Error
		}
		table = append(table, []string{r.Wave, r.Cluster, r.Result, blocking, dash(strings.Join(r.Warnings, ","))})
	}
	return terminal.Table(o.Out, table)
}

func dash(text string) string { return cmp.Or(text, "-") }

type planRow struct {
	Cluster  string          `json:"cluster"`
	Wave     string          `json:"wave"`
	Plan     json.RawMessage `json:"plan,omitempty"`
	Error    string          `json:"error,omitempty"`
	ExitCode int             `json:"exitCode"`
}

func plan(a *command.App) *cobra.Command {
	o := &options{App: a}
	cmd := &cobra.Command{
		Use: "plan -f FILE", Short: "Print what the migration would do in each cluster",
		Long: `Print what the migration would do in each cluster, in the order of the waves, also when others cannot be
reached. Nothing is written.

Exit code: the worst of those of the clusters: 0 nothing blocks, 3 something blocks, 1 could not look.`,
		Example: a.Example(`
  replumb fleet plan -f fleet.yaml
  replumb fleet plan -f fleet.yaml --wave canary
  replumb fleet plan -f fleet.yaml -o json`),
	}
	o.format.Declare(cmd, "table", "json")
	return o.asking(cmd, func(ctx context.Context, r *run) (func(int) int, error) {
		ends := make([]fleet.Outcome, len(r.targets))
		plans := make([][]byte, len(r.targets))
		fleet.Each(r.targets, func(i int, t *fleet.ClusterTarget) {
			plans[i], ends[i] = r.program.Ask(ctx, t, "plan", "-f", "-", "-o", o.format.Name)
		})
		return func(i int) int { return ends[i].Code }, o.printPlans(r.targets, plans, ends)
	})
}

func (o *options) printPlans(of []*fleet.ClusterTarget, plans [][]byte, ends []fleet.Outcome) error {
	var rows []planRow
	for i, t := range of {
		if o.format.Name == "table" {
			fmt.Fprintf(o.Out, "== %s (wave %s)\n%s", t.Name, t.Wave, plans[i])
			if ends[i].Error != "" {
				fmt.Fprintf(o.Out, "error: %s\n", printable.Line(ends[i].Error))
			}
			fmt.Fprintln(o.Out)
			continue
		}
		row := planRow{Cluster: t.Name, Wave: t.Wave, Error: ends[i].Error, ExitCode: ends[i].Code}
		if json.Valid(plans[i]) {
			row.Plan = bytes.TrimSpace(plans[i])
		}
		rows = append(rows, row)
	}
	if o.format.Name == "table" {
		return nil
	}
	return terminal.Document(o.Out.Verbatim(), o.format.Name, command.ListOf(rows))
}

type statusDocument struct {
	command.DocumentHead `              json:",inline"`
	Fleet                string               `json:"fleet"`
	Migration            string               `json:"migration"`
	Clusters             []fleet.ClusterState `json:"clusters"`
}

func status(a *command.App) *cobra.Command {
	o := &options{App: a}
	cmd := &cobra.Command{
		Use: "status -f FILE", Short: "Show where the migration stands in each cluster",
		Long: `Show where the migration stands in each cluster, as replumb status does: how much has moved, how many requests
of probes were sent and lost, and the last error. A cluster that cannot be reached is a row with the reason.

Exit code: 0 all clusters were looked at, else the worst of those of the clusters.`,
		Example: a.Example(`
  replumb fleet status -f fleet.yaml
  replumb fleet status -f fleet.yaml -o json
  replumb fleet status -f fleet.yaml -o jsonpath='{.clusters[*].phase}'`),
	}
	o.format.DeclareDocument(cmd, "table", "json", "yaml")
	return o.asking(cmd, func(ctx context.Context, r *run) (func(int) int, error) {
		states := fleet.States(ctx, r.program, r.targets)
		code := func(i int) int { return states[i].ExitCode }
		if o.format.Name == "table" {
			return code, writeTable(o.Out, states)
		}
		return code, o.format.Print(o.Out.Verbatim(), statusDocument{
			DocumentHead: command.HeadOf("FleetStatus", r.Name), Fleet: r.Name, Migration: r.targets[0].Migration.Name, Clusters: states,
		})
	})
}

func writeTable(w io.Writer, states []fleet.ClusterState) error {
	rows := [][]string{{"WAVE", "CLUSTER", "PHASE", "MOVED", "REQUESTS", "FAILED", "LATE", "NOT MEASURED", "LAST ERROR"}}
	for _, s := range states {
		row := []string{s.Wave, s.Cluster, "unknown", "-", "-", "-", "-", "-", dash(cmp.Or(s.Error, s.LastError))}
		if s.Error == "" {
			row[2] = s.PhaseText()
		}
		if s.Phase != "" {
			row[3] = fmt.Sprintf("%d/%d", s.Moved, s.Total)
			for i, n := range []int64{s.Requests, s.Failed, s.Late, s.NotMeasured} {
				row[4+i] = humanize.Comma(n)
			}
		}
		rows = append(rows, row)
	}
	return terminal.Table(w, rows)
}
