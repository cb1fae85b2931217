package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
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

func asBlocked(err error) *check.BlockedError {
	var blocked *check.BlockedError
	errors.As(err, &blocked)
	return blocked
}

type stayLine struct {
	Service string `json:"service"`
	Reason  string `json:"reason"`
}

func (a *app) plan() *cobra.Command {
	cmd := &cobra.Command{
		Use: "plan -f FILE", Short: "Print what a migration would do, in order", Args: noArgs,
		Long: `Print every write a migration would make, in order, and every Service that stays. Nothing is written. Of a migration
that is under way it prints what is left.

Exit code: 0 nothing blocks, 3 something blocks, 1 could not look.`,
		Example: a.example(`
  replumb plan -f move.yaml
  replumb plan -f move.yaml -o yaml           # with every object and patch in full
  replumb plan -f move.yaml -o json > plan.json && replumb apply -f move.yaml --plan plan.json`),
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
	for _, e := range append(p.Survey.Pins, p.Survey.Stays...) {
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
	if p.Survey.Spec.Mode == v1alpha1.ModeExtend {
		a.usage(p.Survey)
	}
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
	for _, r := range p.Refresh.Left {
		fmt.Fprintf(a.out, "keeps old addresses: pod %s (%s)\n", r.Pod, r.Reason)
	}
	_, err := fmt.Fprintf(a.out, "%s to move (%d moved), %d pinned, %d stay; plan %s\n",
		english.Plural(counts.Total, "Service", ""), counts.Moved, counts.Pinned, counts.Stays, doc.Hash)
	return err
}

func (a *app) apply() *cobra.Command {
	var until, plan string
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Move the Services; old addresses keep answering", Args: noArgs,
		Long: `Move the Services, tier by tier and batch by batch, restart what carries old addresses, and retire the old range, up to
but never past the point of no return. Where only you can do something, such as restarting API servers with another
flag, it says what, waits, and goes on by itself when it sees it done.

Run again it carries on where it was, and does nothing when there is nothing to do.

Exit code: 0 done, 1 error, 2 wrong command line or Migration, 3 blocked, 5 somebody else works on the cluster,
130 interrupted or paused.`,
		Example: a.example(`
  replumb apply -f move.yaml
  replumb apply -f move.yaml --until move           # stop after a phase; run again without it to go on
  replumb plan -f move.yaml -o json > plan.json
  replumb apply -f move.yaml --plan plan.json       # only what that plan said, or nothing
  replumb apply -f move.yaml -o json                # one event a line on stdout`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			job, err := a.jobFromFile()
			if err != nil {
				return err
			}
			if job.Until = until; until != "" && !slices.Contains(servicecidr.ApplyPhases(), until) {
				return &UsageError{
					Problem: fmt.Sprintf("apply has no phase %q", until),
					Hint:    "the phases of apply are " + strings.Join(servicecidr.ApplyPhases(), ", "),
				}
			}
			if plan != "" {
				if job.Expected, err = readPlan(plan); err != nil {
					return err
				}
			}
			return a.runApply(cmd.Context(), job)
		},
	}
	a.fileFlag(cmd)
	cmd.Flags().StringVar(&until, "until", "", "stop after this phase")
	cmd.Flags().StringVar(&plan, "plan", "", "refuse to do more than this plan says: a file written by plan -o json or yaml")
	a.outputFlag(cmd, "table", "json")
	a.yesFlag(cmd)
	return cmd
}

// readPlan reads a plan that plan wrote.
func readPlan(file string) (*servicecidr.Expectation, error) {
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, &UsageError{Problem: err.Error(), Hint: "write a plan with: plan -f FILE -o json > plan.json"}
	}
	var doc planDocument
	if err := yaml.Unmarshal(body, &doc); err != nil || doc.Hash == "" {
		return nil, &UsageError{Problem: file + " holds no plan", Hint: "write one with: plan -f FILE -o json > plan.json"}
	}
	expected := &servicecidr.Expectation{Changes: map[string]string{}}
	for _, phase := range doc.Phases {
		for _, s := range phase.Steps {
			if err := expected.Add(s.ID, s.Changes); err != nil {
				return nil, err
			}
		}
	}
	return expected, nil
}

func (a *app) yesFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&a.yes, "yes", "y", false, "don't ask")
}

func (a *app) runApply(ctx context.Context, job *servicecidr.Job) error {
	if _, err := job.Tools.Cluster.ServerVersion(ctx); err != nil {
		return err
	}
	var survey *servicecidr.Survey
	var changed *bool
	err := a.run(ctx, job, func(ctx context.Context, r *engine.Runner) (err error) {
		r, changed = watchChanges(r)
		survey, err = job.Apply(ctx, r)
		return err
	})
	if err != nil || a.output == "json" {
		return err
	}
	if !*changed {
		fmt.Fprintln(a.out, "nothing to do")
	}
	a.applied(job, survey)
	return nil
}

// applied tells where apply got to.
func (a *app) applied(job *servicecidr.Job, survey *servicecidr.Survey) {
	counts := survey.Counts()
	switch {
	case job.Spec.Mode == v1alpha1.ModeExtend:
		a.usage(survey)
		return
	case job.Until != "":
		fmt.Fprintf(a.out, "stopped after phase %s, as asked: %s moved, %d not\n",
			job.Until, english.Plural(counts.Moved, "Service", ""), counts.Total-counts.Moved)
		return
	}
	fmt.Fprintf(a.out, "%s moved, %d pinned, %d stay; old addresses keep answering\n",
		english.Plural(counts.Moved, "Service", ""), counts.Pinned, counts.Stays)
	fmt.Fprintf(a.err, "hint: when all is well, %s finish %s; to go back, %s rollback %s\n", a.name, job.Spec.Name, a.name, job.Spec.Name)
}

// usage shows how full each Service range is.
func (a *app) usage(survey *servicecidr.Survey) {
	rows := [][]string{{"RANGE", "SERVICECIDR", "USED", "SIZE"}}
	for _, u := range survey.Usage() {
		rows = append(rows, []string{u.Range.String(), u.Name, strconv.Itoa(u.Used), u.Size})
	}
	_ = ui.Table(a.out, rows) // a.out remembers its errors
}

func (a *app) rollback() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rollback NAME", Short: "Bring every Service back to its old address", Args: oneName,
		Long: `Bring every Service back to its old address, over the same bridges, and with it whatever had followed: cluster DNS,
restarted pods, the old range as the default one. Like apply it waits where only you can do something.

It works from every point before finish has passed the point of no return, and carries on when run again.`,
		Example: a.example(`
  replumb rollback services-to-172-24
  replumb rollback services-to-172-24 --yes   # where nobody can be asked`),
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
			rollback := func(ctx context.Context, r *engine.Runner) error { return job.Rollback(ctx, r) }
			if err := a.run(cmd.Context(), job, rollback); err != nil {
				return err
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
		Long: `Take bridges and old addresses away. This passes the point of no return: afterwards there is no rollback.

It refuses as long as apply has something left to do, says what becomes final, and asks. Run again it carries on.`,
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
				"The old addresses of %s will stop answering, and there is no way back. Finish?",
				english.Plural(len(planner.Survey.Moves), "Service", ""),
			)
			a.finals(planner)
			if err := a.confirm(question); err != nil {
				return err
			}
			finish := func(ctx context.Context, r *engine.Runner) error { return job.Finish(ctx, r) }
			if err := a.run(cmd.Context(), job, finish); err != nil {
				return err
			}
			return a.done("finished: old addresses no longer answer")
		},
	}
	a.outputFlag(cmd, "table", "json")
	a.yesFlag(cmd)
	return cmd
}

// finals tells what becomes final.
func (a *app) finals(p *servicecidr.Planner) {
	if a.output == "json" {
		return
	}
	for _, e := range p.Survey.Pins {
		fmt.Fprintf(a.err, "stays at its address for good: service %s (%s)\n", e.Key(), e.Old)
	}
	for _, r := range p.Refresh.Left {
		fmt.Fprintf(a.err, "will lose what it knows: pod %s has %s (%s)\n", r.Pod, strings.Join(r.Carries, ", "), r.Reason)
	}
}

func (a *app) done(message string) error {
	if a.output == "json" {
		return nil
	}
	_, err := fmt.Fprintln(a.out, message)
	return err
}
