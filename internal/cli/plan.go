package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// planDocument is what plan prints with -o json or yaml.
type planDocument struct {
	objectHead `       json:",inline"`
	Migration  string `json:"migration"`
	// Cluster is the one that the plan is of, and Time when it was made.
	Cluster  engine.Identity   `json:"cluster"`
	Time     time.Time         `json:"time"`
	Hash     string            `json:"hash"`
	Findings findings.Findings `json:"findings"`
	// Services are how each fares, in a migration that moves Services.
	Services any              `json:"services,omitempty"`
	Stays    []migration.Stay `json:"stays"`
	// Late are Services that were made in the target range since the migration began.
	Late   any                  `json:"late,omitempty"`
	Phases []terminal.PlanPhase `json:"phases"`
}

func (a *app) plan() *cobra.Command {
	var to dirFlags
	var flags *genericclioptions.PrintFlags
	cmd := &cobra.Command{
		Use: "plan -f FILE", Short: "Print what a migration would do, in order", Args: noArgs,
		Long: `Print every write a migration would make, in order, how each Service moves and at what risk, and every one that
stays. Nothing is written. Of a migration that is under way it prints what is left. Several Migrations in one file are one plan, in the
order in which they move, whatever their order in the file.

Exit code: 0 nothing blocks, 3 something blocks, 1 could not look.`,
		Example: a.example(`
  replumb plan -f move.yaml
  replumb plan -f both.yaml                   # of several Migrations, in the order in which they move
  replumb plan -f move.yaml -o yaml           # with every object and patch in full
  replumb plan -f move.yaml -o markdown       # as the text of a change ticket
  replumb plan -f move.yaml -o json > plan.json && replumb apply -f move.yaml --plan plan.json
  replumb plan -f mirror.yaml --to-dir manifests/   # what would be copied, as files
  replumb plan -f move.yaml --from cluster.tar.gz   # of a snapshot, without the cluster`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s, err := a.set(); err != nil {
				return err
			} else if s != nil {
				return a.planSet(cmd.Context(), flags, s, to)
			}
			j, c, err := a.jobFromFile(cmd.Context(), to.fit)
			if err != nil {
				return err
			}
			if to.dir != "" {
				return a.writeDir(cmd.Context(), j, to)
			}
			look, err := a.examined(cmd.Context(), c, j)
			if err != nil {
				return ofJob(j, err)
			}
			return a.showPlan(cmd.Context(), flags, c, j, look)
		},
	}
	a.fileFlag(cmd)
	a.fromFlag(cmd)
	a.withoutAgentFlag(cmd)
	flags = a.documentFlag(cmd, "table", "wide", "json", "yaml", "name", "markdown")
	to.declare(cmd)
	return cmd
}

func (a *app) showPlan(ctx context.Context, flags *genericclioptions.PrintFlags, c *connection, j migrations.Job, look migration.Inspection) error {
	phases, err := terminal.PlanPhases(look.Outstanding)
	if err != nil {
		return err
	}
	hash, err := look.Whole.Hash()
	if err != nil {
		return err
	}
	switch a.output {
	case "name":
		for _, s := range look.Outstanding.Steps() {
			fmt.Fprintln(a.out, s.ID())
		}
	case "table", "wide":
		fmt.Fprintf(a.out, "cluster: %s\n", c.Known())
		terminal.Attention(a.out, spokenFindings(a.name, look.Findings))
		if a.output == "wide" {
			err = terminal.WidePhases(a.out, phases)
		} else {
			terminal.Phases(a.out, phases)
		}
		if err := errors.Join(err, writeText(a.out, look.Text, everyRow, a.name)); err != nil {
			return err
		}
		fmt.Fprintf(a.out, "%s; plan %s\n", look.Summary, hash)
	case "markdown":
		if err := a.ticket(ctx, c, j, look, phases, hash).Markdown(a.out); err != nil {
			return err
		}
	default:
		doc, err := a.planOf(ctx, c, look)
		if err != nil {
			return err
		}
		if err := printDocument(verbatim{a.out}, a.output, flags, doc); err != nil {
			return err
		}
	}
	if blocking := look.Findings.Objections(); len(blocking) > 0 {
		return &findings.BlockedError{Findings: blocking}
	}
	return nil
}

// planOf is a plan for programs.
func (a *app) planOf(ctx context.Context, c *connection, look migration.Inspection) (doc planDocument, err error) {
	phases, err := terminal.PlanPhases(look.Outstanding)
	if err != nil {
		return doc, err
	}
	hash, err := look.Whole.Hash()
	if err != nil {
		return doc, err
	}
	of, err := c.Identity(ctx)
	return planDocument{
		objectHead: headed("Plan", look.Whole.Name), Migration: look.Whole.Name,
		Cluster: of, Time: time.Now().UTC().Truncate(time.Second), Hash: hash,
		Findings: look.Findings, Phases: phases, Services: look.Services, Stays: append([]migration.Stay{}, look.Stays...), Late: look.Late,
	}, err
}
