package migrate

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

type checkOptions struct {
	source
	format command.Format
}

// Check looks whether the cluster is fit for a migration.
func Check(a *command.App) *cobra.Command {
	o := &checkOptions{source: source{App: a}}
	cmd := &cobra.Command{
		Use: "check -f FILE", Short: "Check whether the cluster is fit for a migration", Args: command.NoArgs,
		Long: `Check whether the cluster is fit for a migration, or for several of one set, and what is between these. Nothing is written.

Exit code: 0 nothing blocks, 3 something blocks, 1 could not look.`,
		Example: a.Example(`
  replumb check -f move.yaml
  replumb check -f both.yaml            # several Migrations in one file: docs/howto/together.md
  replumb check -f move.yaml -o wide    # a line for every object
  replumb check -f move.yaml -o json
  replumb check -f move.yaml -o name    # codes alone, of what did not pass
  replumb check -f move.yaml -o custom-columns=CODE:.code,OBJECT:.object
  replumb check -f move.yaml --from cluster.tar.gz   # of a snapshot, without the cluster`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			g, s, err := o.chosen(o.format, "")
			switch {
			case err != nil:
				return err
			case s != nil:
				return o.checkSet(cmd.Context(), s)
			}
			j, c, err := o.open(cmd.Context(), g)
			if err != nil {
				return err
			}
			look, err := o.examined(cmd.Context(), c, j)
			if err != nil {
				return ofJob(j, err)
			}
			return o.show(look.Findings)
		},
	}
	o.declareFiles(cmd)
	o.declareFrom(cmd)
	o.declareWithoutAgent(cmd)
	o.format.DeclareDocument(cmd, "table", "wide", "json", "yaml", "name")
	return cmd
}

func (o *checkOptions) show(all findings.Findings) error {
	var err error
	switch o.format.Name {
	case "table":
		terminal.Findings(o.Out, command.SpokenFindings(o.Name, all))
	case "wide":
		err = terminal.WideFindings(o.Out, command.SpokenFindings(o.Name, all))
	case "name":
		for _, code := range all.Codes() {
			fmt.Fprintln(o.Out, code)
		}
	default:
		err = o.format.Print(o.Out.Verbatim(), command.ListOf(all))
	}
	if err != nil {
		return err
	}
	if blocking := all.Objections(); len(blocking) > 0 {
		return &findings.BlockedError{Findings: blocking}
	}
	return nil
}

func asBlocked(err error) *findings.BlockedError {
	var blocked *findings.BlockedError
	errors.As(err, &blocked)
	return blocked
}
