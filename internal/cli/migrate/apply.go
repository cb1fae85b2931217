package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/cni"
	"github.com/replumb/replumb/internal/spec"
)

type applyOptions struct {
	action
	// until is the phase to stop after, plan the file with the plan to keep to.
	until, plan string
}

// Apply does what a Migration says, up to the point of no return.
func Apply(a *command.App) *cobra.Command {
	o := &applyOptions{action: action{source: source{App: a}}}
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Run a migration; old addresses stay valid until finish", Args: command.NoArgs,
		Long: `Do what the Migration says, up to the point of no return. spec.serviceCIDR moves Services, tier by tier and
batch by batch, restarts what carries old addresses, and retires the old range. spec.podCIDR adds a range for
pods, tests it on every node, and restarts pods into it, tier by tier. spec.nodes moves pods and control planes
to other nodes. spec.mirror has a second cluster serve. spec.cni replaces the pod network, node by node while
the cluster serves, or all at once where it serves no clients. spec.kubeProxy changes the mode of kube-proxy.
Where only you can do something, such as restarting API servers with another flag, it says what, waits, and goes
on by itself when it sees it done.

Run again it carries on where it was, and does nothing when there is nothing to do.

Several Migrations of one cluster in one file move one after the other: Services, then pods, then nodes. Nothing
is begun as long as something blocks one of them, and what stops one keeps the later ones from being begun
(docs/howto/together.md).

While Services, pods or nodes move, agents on every node probe what clients see (spec.proof). More failed
requests than the budget allows, none by default, stop the run before anything else is changed; after repair the
same command goes on.

Where an operator runs in the cluster, it is given the Migration and followed, and Ctrl-C leaves it running;
--local runs it here.

Exit code: 0 done, 1 error, 2 wrong command line or Migration, 3 blocked, 4 stopped by the loss budget, 5
someone else works on the cluster, 6 agents cannot measure, 130 interrupted or paused.`,
		Example: a.Example(`
  replumb apply -f move.yaml
  replumb apply -f both.yaml                        # Services and pods as one set
  replumb apply -f move.yaml --until move           # stop after a phase; run again without it to go on
  replumb plan -f move.yaml -o json > plan.json
  replumb apply -f move.yaml --plan plan.json       # only what that plan said, or nothing
  replumb apply -f move.yaml -o json                # one event a line on stdout`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			g, s, err := o.chosen(o.format, "")
			switch {
			case err != nil:
				return err
			case s != nil:
				return o.applySet(cmd.Context(), s)
			}
			hint, err := o.applyOne(cmd.Context(), g)
			o.hintAfter(hint)
			return err
		},
	}
	o.declare(cmd)
	o.declareUntil(cmd, &o.until, "stop after this phase")
	cmd.Flags().BoolVar(&o.acceptDowntime, "accept-downtime", false,
		"go on although clients may be connected; they are cut off (spec.cni)")
	o.declareWithoutAgent(cmd)
	cmd.Flags().StringVar(&o.plan, "plan", "", "refuse to do more than this plan says: a file written by plan -o json or yaml")
	command.YesFlag(cmd, &o.yes)
	return cmd
}

func (o *source) declareUntil(cmd *cobra.Command, phase *string, usage string) {
	cmd.Flags().StringVar(phase, "until", "", usage)
	_ = cmd.RegisterFlagCompletionFunc("until", o.phases) // the flag is there
}

func (o *source) phases(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const kept = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	slices.Sort(o.files.Names)
	o.files.Names = slices.Compact(o.files.Names) // cobra reads the flags twice for this
	if o.files.Given() && !slices.Contains(o.files.Names, command.Stdin) {
		if g, err := o.one(""); err == nil {
			return g.job.About().Phases, kept
		}
	}
	var all []cobra.Completion
	for _, kind := range migrations.All() {
		for _, phase := range kind.Apply {
			if !slices.Contains(all, phase) {
				all = append(all, phase)
			}
		}
	}
	return all, kept
}

func (o *applyOptions) applyOne(ctx context.Context, g *given) (hint string, err error) {
	var expected *migration.Expectation
	var of engine.Identity
	if o.plan != "" {
		if expected, of, err = readPlan(o.plan); err != nil {
			return "", err
		}
	}
	j, c, err := o.open(ctx, g, hasPhase(o.until), o.mayAcceptDowntime, canCall)
	if err != nil {
		return "", err
	}
	if expected != nil {
		if err := ofCluster(ctx, c, o.plan, of); err != nil {
			return "", err
		}
	}
	if err := o.beginApply(ctx, c, j, g); err != nil {
		return "", err
	}
	if operated, err := o.operated(ctx, c); err != nil {
		return "", err
	} else if operated {
		return "", o.handOverApply(ctx, c, j, o.until, expected)
	}
	j.Restrict(o.until, expected)
	return o.runApply(ctx, c, j)
}

func (o *applyOptions) mayAcceptDowntime(g *given) error {
	if _, ok := g.job.(*cni.Job); ok || !o.acceptDowntime {
		return nil
	}
	return &command.UsageError{
		Problem: "--accept-downtime is for migrations of networks (spec.cni)",
		Hint:    "leave it out: this one cuts no one off",
	}
}

func hasPhase(until string) fit {
	return func(g *given) error {
		phases := g.job.About().Phases
		if until == "" || slices.Contains(phases, until) {
			return nil
		}
		return &command.UsageError{
			Problem: fmt.Sprintf("apply has no phase %q", until), Hint: "the phases of apply are " + strings.Join(phases, ", "),
		}
	}
}

// canCall refuses calls that cannot be made from here, before anything is changed.
func canCall(g *given) error {
	for _, action := range spec.Actions(&g.Spec) {
		err := callout.Check(action.Action)
		if err == nil {
			continue
		}
		var call *callout.Error
		if errors.As(err, &call) {
			err = call.Err
		}
		return &spec.Error{
			Field: action.Field, Problem: fmt.Sprintf("cannot be called: %v", err),
			Hint: "replumb makes the call from the machine it runs on: see that the program, or the variable, is there",
		}
	}
	return nil
}

func readPlan(file string) (*migration.Expectation, engine.Identity, error) {
	none := engine.Identity{}
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, none, &command.UsageError{Problem: err.Error(), Hint: "write a plan with: plan -f FILE -o json > plan.json"}
	}
	var doc planDocument
	if err := yaml.Unmarshal(body, &doc); err != nil || doc.Hash == "" {
		return nil, none, &command.UsageError{Problem: file + " holds no plan", Hint: "write one with: plan -f FILE -o json > plan.json"}
	}
	expected := &migration.Expectation{Changes: map[string]string{}}
	for _, phase := range doc.Phases {
		for _, s := range phase.Steps {
			if err := expected.Add(s.ID, s.Role, s.Changes); err != nil {
				return nil, none, err
			}
		}
	}
	return expected, doc.Cluster, nil
}

func (o *action) runApply(ctx context.Context, c *command.Connection, j migrations.Job) (hint string, err error) {
	var at migration.ApplyResult
	var changed *bool
	err = o.run(ctx, c, j, "apply", func(ctx context.Context, r *engine.Runner) (err error) {
		r, changed = watchChanges(r)
		at, err = j.RunApply(ctx, r)
		return err
	})
	err = o.goBackOnLoss(ctx, c, j, err)
	if err != nil || o.format.Name == "json" {
		return "", err
	}
	if !*changed {
		fmt.Fprintln(o.Out, "nothing to do")
	}
	if err := writeText(o.Out, at.Text, everyRow, o.Name); err != nil {
		return "", err
	}
	return at.Hint, nil
}
