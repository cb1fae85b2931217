package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/cni"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/spec"
)

func (a *app) check() *cobra.Command {
	var flags *genericclioptions.PrintFlags
	cmd := &cobra.Command{
		Use: "check -f FILE", Short: "Check whether the cluster is fit for a migration", Args: noArgs,
		Long: `Check whether the cluster is fit for a migration, or for several of one set, and what is between these. Nothing is written.

Exit code: 0 nothing blocks, 3 something blocks, 1 could not look.`,
		Example: a.example(`
  replumb check -f move.yaml
  replumb check -f both.yaml            # several Migrations in one file: docs/howto/together.md
  replumb check -f move.yaml -o wide    # a line for every object
  replumb check -f move.yaml -o json
  replumb check -f move.yaml -o name    # codes alone, of what did not pass
  replumb check -f move.yaml -o custom-columns=CODE:.code,OBJECT:.object
  replumb check -f move.yaml --from cluster.tar.gz   # of a snapshot, without the cluster`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s, err := a.set(); err != nil {
				return err
			} else if s != nil {
				return a.checkSet(cmd.Context(), flags, s)
			}
			j, c, err := a.jobFromFile(cmd.Context())
			if err != nil {
				return err
			}
			look, err := a.examined(cmd.Context(), c, j)
			if err != nil {
				return ofJob(j, err)
			}
			return a.showFindings(flags, look.Findings)
		},
	}
	a.fileFlag(cmd)
	a.fromFlag(cmd)
	a.withoutAgentFlag(cmd)
	flags = a.documentFlag(cmd, "table", "wide", "json", "yaml", "name")
	return cmd
}

func (a *app) withoutAgentFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.withoutAgent, "without-agent", false,
		"run no agents on the nodes: nothing is probed, and barriers of Services go by what kube-proxies say (spec.proof.agents: Disabled)")
}

func (a *app) showFindings(flags *genericclioptions.PrintFlags, all findings.Findings) error {
	var err error
	switch a.output {
	case "table":
		terminal.Findings(a.out, spokenFindings(a.name, all))
	case "wide":
		err = terminal.WideFindings(a.out, spokenFindings(a.name, all))
	case "name":
		for _, code := range all.Codes() {
			fmt.Fprintln(a.out, code)
		}
	default:
		err = printDocument(verbatim{a.out}, a.output, flags, listOf(all))
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

// applyFlags are those of apply that are about one Migration.
type applyFlags struct {
	// until is the phase to stop after, plan the file with the plan to keep to.
	until, plan string
}

func (a *app) apply() *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Move Services or pods; old addresses stay valid", Args: noArgs,
		Long: `Do what the Migration says, up to the point of no return. spec.serviceCIDR moves Services, tier by tier and batch by
batch, restarts what carries old addresses, and retires the old range. spec.podCIDR adds a range for pods, tests it on
every node, and restarts pods into it, tier by tier. spec.nodes moves pods and control planes to other nodes.
spec.mirror has a second cluster serve. spec.cni replaces the pod network, node by node while the cluster serves, or all
at once where it serves no clients. Where only you can do something, such as restarting API servers with another flag,
it says what, waits, and goes on by itself when it sees it done.

Run again it carries on where it was, and does nothing when there is nothing to do.

Several Migrations of one cluster in one file move one after the other: Services, then pods, then nodes. Nothing is begun as long as
something blocks one of them, and what stops one keeps the later ones from being begun (docs/howto/together.md).

While Services, pods or nodes move, agents on every node probe what clients see (spec.proof). More failed requests than the budget allows,
none by default, stop the run before anything else is changed; after repair the same command goes on.

Where an operator runs in the cluster, it is given the Migration and followed, and Ctrl-C leaves it running; --local runs it here.

Exit code: 0 done, 1 error, 2 wrong command line or Migration, 3 blocked, 4 stopped by the loss budget, 5 someone else works on
the cluster, 6 agents cannot measure, 130 interrupted or paused.`,
		Example: a.example(`
  replumb apply -f move.yaml
  replumb apply -f both.yaml                        # Services and pods as one set
  replumb apply -f move.yaml --until move           # stop after a phase; run again without it to go on
  replumb plan -f move.yaml -o json > plan.json
  replumb apply -f move.yaml --plan plan.json       # only what that plan said, or nothing
  replumb apply -f move.yaml -o json                # one event a line on stdout`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s, err := a.set(); err != nil {
				return err
			} else if s != nil {
				if err := oneOnly(only(f.until != "", "--until"), only(f.plan != "", "--plan")); err != nil {
					return err
				}
				return a.applySet(cmd.Context(), s)
			}
			return a.applyOne(cmd.Context(), f)
		},
	}
	a.fileFlag(cmd)
	cmd.Flags().StringVar(&f.until, "until", "", "stop after this phase")
	cmd.Flags().BoolVar(&a.acceptDowntime, "accept-downtime", false,
		"go on although clients may be connected; they are cut off (spec.cni)")
	a.withoutAgentFlag(cmd)
	a.localFlag(cmd)
	cmd.Flags().StringVar(&f.plan, "plan", "", "refuse to do more than this plan says: a file written by plan -o json or yaml")
	a.outputFlag(cmd, "table", "json")
	a.yesFlag(cmd)
	a.metricsFlag(cmd)
	return cmd
}

// applyOne applies the one Migration that the files hold, or that was chosen.
func (a *app) applyOne(ctx context.Context, f applyFlags) error {
	var expected *migration.Expectation
	var of engine.Identity
	if f.plan != "" {
		var err error
		if expected, of, err = readPlan(f.plan); err != nil {
			return err
		}
	}
	j, c, err := a.jobFromFile(ctx, hasPhase(f.until), a.mayAcceptDowntime, canCall)
	if err != nil {
		return err
	}
	if expected != nil {
		if err := ofCluster(ctx, c, f.plan, of); err != nil {
			return err
		}
	}
	if err := a.beginApply(ctx, c, j); err != nil {
		return err
	}
	if operated, err := a.operated(ctx, c); err != nil {
		return err
	} else if operated {
		return a.handOverApply(ctx, c, j, f.until, expected)
	}
	j.Restrict(f.until, expected)
	return a.runApply(ctx, c, j)
}

// mayAcceptDowntime refuses the flag where there is no downtime to accept.
func (a *app) mayAcceptDowntime(_ *v1alpha1.Migration, j migrations.Job) error {
	if _, ok := j.(*cni.Job); ok || !a.acceptDowntime {
		return nil
	}
	return &UsageError{
		Problem: "--accept-downtime is for migrations of networks (spec.cni)",
		Hint:    "leave it out: this one cuts no one off",
	}
}

// hasPhase refuses a phase that apply does not have.
func hasPhase(until string) fit {
	return func(_ *v1alpha1.Migration, j migrations.Job) error {
		phases := j.About().Phases
		if until == "" || slices.Contains(phases, until) {
			return nil
		}
		return &UsageError{
			Problem: fmt.Sprintf("apply has no phase %q", until), Hint: "the phases of apply are " + strings.Join(phases, ", "),
		}
	}
}

// canCall refuses calls that cannot be made from here, before anything is changed rather than in the middle.
func canCall(m *v1alpha1.Migration, _ migrations.Job) error {
	for _, action := range spec.Actions(&m.Spec) {
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

// readPlan reads a plan that plan wrote, and of which cluster it is.
func readPlan(file string) (*migration.Expectation, engine.Identity, error) {
	none := engine.Identity{}
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, none, &UsageError{Problem: err.Error(), Hint: "write a plan with: plan -f FILE -o json > plan.json"}
	}
	var doc planDocument
	if err := yaml.Unmarshal(body, &doc); err != nil || doc.Hash == "" {
		return nil, none, &UsageError{Problem: file + " holds no plan", Hint: "write one with: plan -f FILE -o json > plan.json"}
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

func (a *app) yesFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&a.yes, "yes", "y", false, "don't ask")
}

func (a *app) runApply(ctx context.Context, c *connection, j migrations.Job) error {
	var at migration.ApplyResult
	var changed *bool
	err := a.run(ctx, c, j, "apply", func(ctx context.Context, r *engine.Runner) (err error) {
		r, changed = watchChanges(r)
		at, err = j.RunApply(ctx, r)
		return err
	})
	err = a.goBackOnLoss(ctx, c, j, err)
	if err != nil || a.output == "json" {
		return err
	}
	if !*changed {
		fmt.Fprintln(a.out, "nothing to do")
	}
	if err := writeText(a.out, at.Text, everyRow, a.name); err != nil {
		return err
	}
	if at.Hint != "" && a.input.chosen == nil { // of a set, all are finished together
		a.hint("%s", spoken(a.name, at.Hint))
	}
	return nil
}

func (a *app) finish() *cobra.Command {
	leaveClients := false
	cmd := &cobra.Command{
		Use:   "finish NAME",
		Short: "Take old addresses away, for good",
		Args:  a.nameOrFile,
		Long: `Take bridges and old addresses away, or the old range of pods; of a mirror: lead names back for good. This passes the point of no return: afterwards there is no rollback.

It refuses as long as apply has something left to do, says what becomes final, and asks. Run again it carries on. With -f it goes by the
settings in the file, such as gateWait or notify, and records them. With a file of several Migrations it begins when all have moved, and
finishes them in the order in which they did; a name chooses one of them.`,
		Example: a.example(`
  replumb finish services-to-172-24
  replumb finish -f both.yaml
  replumb finish services-to-172-24 --yes
  replumb finish services-to-172-24 --leave-clients   # those who still use an old address lose it`),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, of, err := a.setOr(args)
			if err != nil {
				return err
			}
			if s != nil {
				return a.finishSet(cmd.Context(), s, leaveClients)
			}
			return of.finishOne(cmd.Context(), args, leaveClients)
		},
	}
	a.callsFlag(cmd)
	a.localFlag(cmd)
	cmd.Flags().BoolVar(&leaveClients, "leave-clients", false, "don't wait until no one uses old addresses (spec.serviceCIDR)")
	a.fileFlag(cmd)
	a.outputFlag(cmd, "table", "json")
	a.yesFlag(cmd)
	a.metricsFlag(cmd)
	return cmd
}

// finishOne finishes one Migration.
func (a *app) finishOne(ctx context.Context, args []string, leaveClients bool) error {
	t, err := a.target(ctx, args)
	if err != nil {
		return err
	}
	if leaveClients {
		if err := leave(t.Job); err != nil {
			return err
		}
	}
	ahead, err := t.FinishPreview(ctx)
	if err != nil {
		return ofJob(t.Job, err)
	}
	if a.output != "json" {
		for _, line := range ahead.Finals {
			fmt.Fprintln(a.err, line)
		}
	}
	if err := a.confirm(ahead.Question); err != nil {
		return err
	}
	if err := t.begin(ctx, a); err != nil {
		return err
	}
	if operated, err := a.operated(ctx, t.c); err != nil {
		return err
	} else if operated {
		return a.handOverTo(ctx, t, v1alpha1.DesiredFinished, only(leaveClients, "--leave-clients"), "finish")
	}
	if err := a.run(ctx, t.c, t.Job, "finish", t.Finish); err != nil {
		return err
	}
	return a.done(t.About().Finished)
}

func (a *app) done(message string) error {
	if a.output == "json" {
		return nil
	}
	_, err := fmt.Fprintln(a.out, message)
	return err
}
