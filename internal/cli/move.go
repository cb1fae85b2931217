package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/servicecidr"
	"github.com/replumb/replumb/internal/ui"
)

func (a *app) check() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check -f FILE", Short: "Check whether the cluster is fit for a migration", Args: noArgs,
		Long: `Check whether the cluster is fit for a migration. Nothing is written.

Exit code: 0 nothing blocks, 3 something blocks, 1 could not look.`,
		Example: a.example("  replumb check -f move.yaml\n  replumb check -f move.yaml -o json"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			planner, err := a.examine(cmd.Context())
			if err != nil {
				return err
			}
			return a.showFindings(planner.Findings)
		},
	}
	a.fileFlag(cmd)
	a.outputFlag(cmd, "table", "json", "yaml")
	return cmd
}

func (a *app) showFindings(all check.Findings) error {
	if a.output == "table" {
		ui.Findings(a.out, all)
	} else if err := ui.Document(a.out, a.output, all); err != nil {
		return err
	}
	if blocking := all.Blocking(); len(blocking) > 0 {
		return &check.BlockedError{Findings: blocking}
	}
	return nil
}

// examine looks at the cluster for the Migration in the file.
func (a *app) examine(ctx context.Context) (*servicecidr.Planner, error) {
	job, err := a.jobFromFile()
	if err != nil {
		return nil, err
	}
	if _, err := job.Tools.Cluster.ServerVersion(ctx); err != nil {
		return nil, err
	}
	if _, err := job.Adopt(ctx); err != nil {
		return nil, err
	}
	return job.Examine(ctx)
}

// planDocument is what plan prints with -o json or yaml.
type planDocument struct {
	Migration string         `json:"migration"`
	Hash      string         `json:"hash"`
	Findings  check.Findings `json:"findings"`
	Stays     []stayLine     `json:"stays"`
	Phases    []ui.PlanPhase `json:"phases"`
}

type stayLine struct {
	Service string `json:"service"`
	Reason  string `json:"reason"`
}

func (a *app) plan() *cobra.Command {
	cmd := &cobra.Command{
		Use: "plan -f FILE", Short: "Print what a migration would do, in order", Args: noArgs,
		Long:    "Print every write a migration would make, in order, and every Service that stays. Nothing is written.",
		Example: a.example("  replumb plan -f move.yaml\n  replumb plan -f move.yaml -o yaml   # with every object and patch in full"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			planner, err := a.examine(cmd.Context())
			if err != nil {
				return err
			}
			return a.showPlan(cmd.Context(), planner)
		},
	}
	a.fileFlag(cmd)
	a.outputFlag(cmd, "table", "json", "yaml", "name")
	return cmd
}

func (a *app) showPlan(ctx context.Context, p *servicecidr.Planner) error {
	plan := p.Outstanding(ctx)
	phases, err := ui.PlanPhases(plan)
	if err != nil {
		return err
	}
	hash, err := p.Apply().Hash()
	if err != nil {
		return err
	}
	doc := planDocument{Migration: plan.Name, Hash: hash, Findings: p.Findings, Phases: phases, Stays: []stayLine{}}
	for _, e := range p.Survey.Stays {
		doc.Stays = append(doc.Stays, stayLine{Service: e.Key().String(), Reason: e.Reason})
	}
	switch a.output {
	case "name":
		for _, s := range plan.Steps() {
			fmt.Fprintln(a.out, s.ID())
		}
		return a.blocking(p)
	case "json", "yaml":
		if err := ui.Document(a.out, a.output, doc); err != nil {
			return err
		}
		return a.blocking(p)
	}
	if err := a.planTable(p, doc); err != nil {
		return err
	}
	return a.blocking(p)
}

func (a *app) blocking(p *servicecidr.Planner) error {
	if blocking := p.Findings.Blocking(); len(blocking) > 0 {
		return &check.BlockedError{Findings: blocking}
	}
	return nil
}

func (a *app) planTable(p *servicecidr.Planner, doc planDocument) error {
	ui.Attention(a.out, p.Findings)
	ui.Phases(a.out, doc.Phases)
	if len(doc.Stays) > 0 {
		fmt.Fprintln(a.out, "stays:")
		var rows [][]string
		for _, s := range doc.Stays {
			rows = append(rows, []string{"  " + s.Service, s.Reason})
		}
		if err := ui.Table(a.out, rows); err != nil {
			return err
		}
	}
	counts := p.Survey.Counts()
	_, err := fmt.Fprintf(a.out, "%d Services move (%d have moved), %d stay; plan %s\n", counts.Total, counts.Moved, counts.Stays, doc.Hash)
	return err
}

func (a *app) apply() *cobra.Command {
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Move the Services; old addresses keep answering", Args: noArgs,
		Long: `Move the Services, batch by batch, up to but never past the point of no return.

Run again it carries on where it was, and does nothing when there is nothing to do.`,
		Example: a.example("  replumb apply -f move.yaml\n  replumb apply -f move.yaml -o json   # one event a line on stdout"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			job, err := a.jobFromFile()
			if err != nil {
				return err
			}
			return a.runApply(cmd.Context(), job)
		},
	}
	a.fileFlag(cmd)
	a.outputFlag(cmd, "table", "json")
	a.yesFlag(cmd)
	return cmd
}

func (a *app) yesFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&a.yes, "yes", "y", false, "don't ask")
}

func (a *app) runApply(ctx context.Context, job *servicecidr.Job) error {
	if _, err := job.Tools.Cluster.ServerVersion(ctx); err != nil {
		return err
	}
	runner, changed := watchChanges(a.runner())
	survey, err := job.Apply(ctx, runner)
	if err != nil {
		return a.explain(err)
	}
	counts := survey.Counts()
	if a.output == "json" {
		return nil
	}
	if !*changed {
		fmt.Fprintln(a.out, "nothing to do")
	}
	fmt.Fprintf(a.out, "%d Services have moved, %d stay; old addresses keep answering\n", counts.Moved, counts.Stays)
	fmt.Fprintf(a.err, "hint: when all is well, %s finish %s; to go back, %s rollback %s\n", a.name, job.Spec.Name, a.name, job.Spec.Name)
	return nil
}

// explain adds the findings themselves to the error that they blocked a run.
func (a *app) explain(err error) error {
	var blocked *check.BlockedError
	if errors.As(err, &blocked) && a.output != "json" {
		ui.Findings(a.err, blocked.Findings)
	}
	return err
}

// watchChanges notices whether any step did something.
func watchChanges(r *engine.Runner) (*engine.Runner, *bool) {
	changed := new(bool)
	sink := r.Sink
	r.Sink = func(e engine.Event) {
		*changed = *changed || e.Kind == engine.StepDone
		sink(e)
	}
	return r, changed
}

func (a *app) rollback() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rollback NAME", Short: "Bring every Service back to its old address", Args: oneName,
		Example: a.example("  replumb rollback services-to-172-24 --yes"),
		RunE: func(cmd *cobra.Command, args []string) error {
			job, err := a.jobByName(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if job.Migration.Status.PointOfNoReturnPassed {
				return job.Rollback(cmd.Context(), a.runner()) // which refuses
			}
			if err := a.confirm("Bring every Service of " + args[0] + " back to its old address?"); err != nil {
				return err
			}
			if err := job.Rollback(cmd.Context(), a.runner()); err != nil {
				return a.explain(err)
			}
			return a.done("every Service is back at its old address")
		},
	}
	a.outputFlag(cmd, "table", "json")
	a.yesFlag(cmd)
	return cmd
}

func (a *app) finish() *cobra.Command {
	cmd := &cobra.Command{
		Use: "finish NAME", Short: "Take old addresses away, for good", Args: oneName,
		Long:    "Take bridges and old addresses away. This passes the point of no return: afterwards there is no rollback.",
		Example: a.example("  replumb finish services-to-172-24\n  replumb finish services-to-172-24 --yes"),
		RunE: func(cmd *cobra.Command, args []string) error {
			job, err := a.jobByName(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			planner, err := job.Finishable(cmd.Context())
			if err != nil {
				return err
			}
			question := fmt.Sprintf(
				"The old addresses of %d Services will stop answering, and there is no way back. Finish?",
				len(planner.Survey.Moves),
			)
			if err := a.confirm(question); err != nil {
				return err
			}
			if err := job.Finish(cmd.Context(), a.runner()); err != nil {
				return a.explain(err)
			}
			return a.done("finished: old addresses no longer answer")
		},
	}
	a.outputFlag(cmd, "table", "json")
	a.yesFlag(cmd)
	return cmd
}

func (a *app) done(message string) error {
	if a.output == "json" {
		return nil
	}
	_, err := fmt.Fprintln(a.out, message)
	return err
}
