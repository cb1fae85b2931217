package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
)

type checkOptions struct {
	source
	format command.Format
	// all shows what is well, and what was not looked at, beside the rest.
	all bool
}

// Check looks whether the cluster is fit for a migration.
func Check(a *command.App) *cobra.Command {
	o := &checkOptions{source: source{App: a}}
	cmd := &cobra.Command{
		Use: "check -f FILE", Short: "Check whether the cluster is fit for a migration", Args: command.NoArgs,
		Long: `Check whether the cluster is fit for a migration, or for several of one set, and what is between these. Nothing
is written.

It prints what there is to do, the worst first, and ends with a verdict that counts everything. --all adds what
is well, and what was not looked at because it does not apply, with the reason; documents (-o json and others)
have all of it.

Exit code: 0 nothing blocks, 3 something blocks or leaves an object out, 1 could not look.`,
		Example: a.Example(`
  replumb check -f move.yaml
  replumb check -f move.yaml --all      # also what is well, and what does not apply
  replumb check -f both.yaml            # several Migrations in one file: docs/howto/together.md
  replumb check -f move.yaml -o wide    # a line for every object, with its fix
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
			return o.show(cmd.Context(), c, look.Findings)
		},
	}
	o.declareFiles(cmd)
	o.declareFrom(cmd)
	o.declareWithoutAgent(cmd)
	cmd.Flags().BoolVar(&o.all, "all", false, "show what is well, and what does not apply, as well")
	o.format.DeclareDocument(cmd, "table", "wide", "json", "yaml", "name")
	return cmd
}

func (o *checkOptions) show(ctx context.Context, c *command.Connection, all findings.Findings) error {
	switch o.format.Name {
	case "table", "wide":
		if err := c.Introduce(ctx, o.Out); err != nil {
			return err
		}
		return o.list(all)
	case "name":
		for _, code := range all.Codes() {
			fmt.Fprintln(o.Out, code)
		}
		return o.objection(all.Score())
	}
	return cmp.Or(o.format.Print(o.Out.Verbatim(), checkDocumentOf(ctx, c, all, all.Score())), o.objection(all.Score()))
}

// objection to findings of which the chosen format has only a part, or says in its own way.
func (o *checkOptions) objection(c findings.Score) error {
	if slices.Contains([]string{"json", "yaml"}, o.format.Name) {
		return c.Objection("fix, of each item, says what to do")
	}
	return c.Objection("-o wide has what was found, and the fix of each")
}

// list shows findings to people, and ends with the verdict, which is the error as well.
func (o *checkOptions) list(all findings.Findings) error {
	list, w := o.Checklist(o.all)
	all = command.SpokenFindings(o.Name, all)
	if o.format.Name == "wide" {
		if err := list.Wide(w, all); err != nil {
			return err
		}
	} else {
		list.Write(w, all)
	}
	score := all.Score()
	list.Verdict(w, score)
	return command.Told(score.Objection(""))
}

// checkDocument is what was found, and what it comes to, for programs.
type checkDocument[T any] struct {
	command.List[T] `json:",inline"`
	Cluster         engine.Identity `json:"cluster"`
	Verdict         string          `json:"verdict"`
	Counts          findings.Score  `json:"counts"`
}

func checkDocumentOf[T any](ctx context.Context, c *command.Connection, items []T, counts findings.Score) checkDocument[T] {
	return checkDocument[T]{List: command.ListOf(items), Cluster: c.KnownIdentity(ctx), Verdict: counts.Verdict(), Counts: counts}
}

func asBlocked(err error) *findings.BlockedError {
	var blocked *findings.BlockedError
	errors.As(err, &blocked)
	return blocked
}
