package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/fleet"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// rawConfig reads the first kubeconfig that is named, or that of the environment.
func rawConfig(files ...string) (clientcmdapi.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cmp.Or(files...)
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).RawConfig()
}

// FleetError says in which clusters a command that looks at all of them had no good answer.
type FleetError struct {
	Clusters []string
	Code     int
}

func (e *FleetError) Error() string {
	return fmt.Sprintf("not as it should be in %s: %s", english.Plural(len(e.Clusters), "cluster", ""), strings.Join(e.Clusters, ", "))
}

func (e *FleetError) ExitCode() int { return e.Code }

func (*FleetError) Advice() string { return "the table has the reason of each; nothing was changed" }

// fleetError of commands' ends, in the order of the targets; nil if all went well.
func fleetError(of []*fleet.Target, ends []fleet.Outcome) error {
	e := &FleetError{}
	for i, end := range ends {
		if end.Code != fault.ExitDone {
			e.Clusters = append(e.Clusters, of[i].Name)
			e.Code = fleet.Worse(e.Code, end.Code)
		}
	}
	if len(e.Clusters) == 0 {
		return nil
	}
	return e
}

// fleetCheckRow is what fleet check prints of a cluster.
type fleetCheckRow struct {
	Cluster string `json:"cluster"`
	Wave    string `json:"wave"`
	// Result is ready, blocked or unknown.
	Result string `json:"result"`
	// Blocking and Warnings are codes of findings.
	Blocking []string `json:"blocking"`
	Warnings []string `json:"warnings"`
	Error    string   `json:"error,omitempty"`
	ExitCode int      `json:"exitCode"`
}

func (a *app) fleetCheck() *cobra.Command {
	f := &fleetFlags{}
	var flags *genericclioptions.PrintFlags
	cmd := &cobra.Command{
		Use: "check -f FILE", Short: "Check whether each cluster is fit for the migration",
		Long: `Check whether each cluster is fit for the migration, also when others cannot be reached. Nothing is written.

Exit code: the worst of those of the clusters: 0 nothing blocks, 3 something blocks, 1 could not look.`,
		Example: a.example(`
  replumb fleet check -f fleet.yaml
  replumb fleet check -f fleet.yaml --cluster eu-1
  replumb fleet check -f fleet.yaml -o json`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			run, err := a.openFleet(cmd, f)
			if err != nil {
				return err
			}
			ends := make([]fleet.Outcome, len(run.targets))
			rows := make([]fleetCheckRow, len(run.targets))
			fleet.Each(run.targets, func(i int, t *fleet.Target) {
				var printed []byte
				printed, ends[i] = run.program.Ask(cmd.Context(), t, "check", "-f", "-", "-o", "json")
				rows[i] = checkRow(t, printed, ends[i])
			})
			if err := a.showFleetChecks(flags, rows); err != nil {
				return err
			}
			return fleetError(run.targets, ends)
		},
	}
	f.declare(cmd)
	f.declarePick(cmd)
	flags = a.documentFlag(cmd, "table", "json", "yaml")
	return cmd
}

// checkRow reads what replumb check printed.
func checkRow(t *fleet.Target, printed []byte, end fleet.Outcome) fleetCheckRow {
	row := fleetCheckRow{Cluster: t.Name, Wave: t.Wave, Result: "unknown", Blocking: []string{}, Warnings: []string{}, ExitCode: end.Code}
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

func (a *app) showFleetChecks(flags *genericclioptions.PrintFlags, rows []fleetCheckRow) error {
	if a.output != "table" {
		return printDocument(verbatim{a.out}, a.output, flags, listOf(rows))
	}
	table := [][]string{{"WAVE", "CLUSTER", "RESULT", "BLOCKING", "WARNINGS"}}
	for _, r := range rows {
		blocking := dash(strings.Join(r.Blocking, ","))
		if r.Error != "" {
			blocking = r.Error
		}
		table = append(table, []string{r.Wave, r.Cluster, r.Result, blocking, dash(strings.Join(r.Warnings, ","))})
	}
	return terminal.Table(a.out, table)
}

func dash(text string) string { return cmp.Or(text, "-") }

// fleetPlanRow is what fleet plan prints of a cluster.
type fleetPlanRow struct {
	Cluster  string          `json:"cluster"`
	Wave     string          `json:"wave"`
	Plan     json.RawMessage `json:"plan,omitempty"`
	Error    string          `json:"error,omitempty"`
	ExitCode int             `json:"exitCode"`
}

func (a *app) fleetPlan() *cobra.Command {
	f := &fleetFlags{}
	cmd := &cobra.Command{
		Use: "plan -f FILE", Short: "Print what the migration would do in each cluster",
		Long: `Print what the migration would do in each cluster, in the order of the waves, also when others cannot be reached. Nothing is
written.

Exit code: the worst of those of the clusters: 0 nothing blocks, 3 something blocks, 1 could not look.`,
		Example: a.example(`
  replumb fleet plan -f fleet.yaml
  replumb fleet plan -f fleet.yaml --wave canary
  replumb fleet plan -f fleet.yaml -o json`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			run, err := a.openFleet(cmd, f)
			if err != nil {
				return err
			}
			ends := make([]fleet.Outcome, len(run.targets))
			plans := make([][]byte, len(run.targets))
			fleet.Each(run.targets, func(i int, t *fleet.Target) {
				plans[i], ends[i] = run.program.Ask(cmd.Context(), t, "plan", "-f", "-", "-o", a.output)
			})
			if err := a.showFleetPlans(run.targets, plans, ends); err != nil {
				return err
			}
			return fleetError(run.targets, ends)
		},
	}
	f.declare(cmd)
	f.declarePick(cmd)
	a.outputFlag(cmd, "table", "json")
	return cmd
}

func (a *app) showFleetPlans(of []*fleet.Target, plans [][]byte, ends []fleet.Outcome) error {
	var rows []fleetPlanRow
	for i, t := range of {
		if a.output == "table" {
			fmt.Fprintf(a.out, "== %s (wave %s)\n%s", t.Name, t.Wave, plans[i])
			if ends[i].Error != "" {
				fmt.Fprintf(a.out, "error: %s\n", printable.Line(ends[i].Error))
			}
			fmt.Fprintln(a.out)
			continue
		}
		row := fleetPlanRow{Cluster: t.Name, Wave: t.Wave, Error: ends[i].Error, ExitCode: ends[i].Code}
		if json.Valid(plans[i]) {
			row.Plan = bytes.TrimSpace(plans[i])
		}
		rows = append(rows, row)
	}
	if a.output == "table" {
		return nil
	}
	return terminal.Document(verbatim{a.out}, a.output, listOf(rows))
}

// fleetDocument is what fleet status prints with -o json or yaml.
type fleetDocument struct {
	objectHead `              json:",inline"`
	Fleet      string        `json:"fleet"`
	Migration  string        `json:"migration"`
	Clusters   []fleet.State `json:"clusters"`
}

func (a *app) fleetStatus() *cobra.Command {
	f := &fleetFlags{}
	var flags *genericclioptions.PrintFlags
	cmd := &cobra.Command{
		Use: "status -f FILE", Short: "Show where the migration stands in each cluster",
		Long: `Show where the migration stands in each cluster, as replumb status does: how much has moved, how many requests of probes were
sent and lost, and the last error. A cluster that cannot be reached is a row with the reason.

Exit code: 0 all clusters were looked at, else the worst of those of the clusters.`,
		Example: a.example(`
  replumb fleet status -f fleet.yaml
  replumb fleet status -f fleet.yaml -o json
  replumb fleet status -f fleet.yaml -o jsonpath='{.clusters[*].phase}'`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			run, err := a.openFleet(cmd, f)
			if err != nil {
				return err
			}
			states := fleet.States(cmd.Context(), run.program, run.targets)
			doc := fleetDocument{
				objectHead: headed("FleetStatus", run.Name), Fleet: run.Name, Migration: run.targets[0].Migration.Name, Clusters: states,
			}
			if a.output == "table" {
				err = fleetTable(a.out, states)
			} else {
				err = printDocument(verbatim{a.out}, a.output, flags, doc)
			}
			if err != nil {
				return err
			}
			ends := make([]fleet.Outcome, len(states))
			for i, s := range states {
				ends[i].Code = s.ExitCode
			}
			return fleetError(run.targets, ends)
		},
	}
	f.declare(cmd)
	f.declarePick(cmd)
	flags = a.documentFlag(cmd, "table", "json", "yaml")
	return cmd
}

// fleetTable is where all clusters stand, for people.
func fleetTable(w io.Writer, states []fleet.State) error {
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
