package migrate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/reporting/ticket"
	"github.com/replumb/replumb/internal/verify/agentset"
)

type planDocument struct {
	command.DocumentHead `       json:",inline"`
	Migration            string `json:"migration"`
	// Cluster is the one that the plan is of, and Time when it was made.
	Cluster  engine.Identity      `json:"cluster"`
	Time     time.Time            `json:"time"`
	Hash     string               `json:"hash"`
	Findings findings.Findings    `json:"findings"`
	Services any                  `json:"services,omitempty"`
	Stays    []migration.Stay     `json:"stays"`
	Late     any                  `json:"late,omitempty"`
	Phases   []terminal.PlanPhase `json:"phases"`
}

type planOptions struct {
	source
	format command.Format
	to     dirFlags
	// until is the last phase that is planned; empty for all.
	until string
}

const fixesByCheck = "replumb check -f FILE says of each finding what to do"

// Plan prints what a migration would do, in order.
func Plan(a *command.App) *cobra.Command {
	o := &planOptions{source: source{App: a}}
	cmd := &cobra.Command{
		Use: "plan -f FILE", Short: "Print what a migration would do, in order", Args: command.NoArgs,
		Long: `Print how each Service moves and at what risk, every one that stays, and then every write, in order. Nothing is
written. Of a migration that is under way it prints what is left. Several Migrations in one file are one plan,
in the order in which they move, whatever their order in the file.

Exit code: 0 nothing blocks, 3 something blocks or leaves an object out, 1 could not look.`,
		Example: a.Example(`
  replumb plan -f move.yaml
  replumb plan -f both.yaml                   # of several Migrations, in the order in which they move
  replumb plan -f move.yaml -o yaml           # with every object and patch in full
  replumb plan -f move.yaml -o markdown       # as the text of a change ticket
  replumb plan -f move.yaml --until extend    # the writes of the first phases alone
  replumb plan -f move.yaml -o json > plan.json && replumb apply -f move.yaml --plan plan.json
  replumb plan -f mirror.yaml --to-dir manifests/   # what would be copied, as files
  replumb plan -f move.yaml --from cluster.tar.gz   # of a snapshot, without the cluster`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			g, s, err := o.chosen(o.format, "")
			switch {
			case err != nil:
				return err
			case s != nil:
				return o.planSet(cmd.Context(), s)
			}
			j, c, err := o.open(cmd.Context(), g, o.to.fit, hasPhase(o.until))
			if err != nil {
				return err
			}
			if o.to.dir != "" {
				return o.writeDir(cmd.Context(), j)
			}
			look, err := o.examined(cmd.Context(), c, j)
			if err != nil {
				return ofJob(j, err)
			}
			if o.until != "" {
				if look.Outstanding, err = look.Outstanding.Until(o.until); err != nil {
					return err
				}
			}
			return o.show(cmd.Context(), c, j, look)
		},
	}
	o.declareFiles(cmd)
	o.declareFrom(cmd)
	o.declareWithoutAgent(cmd)
	o.format.DeclareDocument(cmd, "table", "wide", "json", "yaml", "name", "markdown")
	o.declareUntil(cmd, &o.until, "stop after this phase, as apply would")
	o.to.declare(cmd)
	return cmd
}

func (o *planOptions) show(ctx context.Context, c *command.Connection, j migrations.Job, look migration.Inspection) error {
	phases, err := terminal.PlanPhases(look.Outstanding)
	if err != nil {
		return err
	}
	hash, err := look.Whole.Hash()
	if err != nil {
		return err
	}
	switch o.format.Name {
	case "name":
		for _, s := range look.Outstanding.Steps() {
			fmt.Fprintln(o.Out, s.ID())
		}
	case "table", "wide":
		fmt.Fprintf(o.Out, "cluster: %s\n%s; plan %s\n", c.Known(), look.Summary, hash)
		terminal.Attention(o.Out, command.SpokenFindings(o.Name, look.Findings))
		if err := writeText(o.Out, look.Text, everyRow, o.Name); err != nil {
			return err
		}
		if o.format.Name == "wide" {
			if err := terminal.WidePhases(o.Out, phases); err != nil {
				return err
			}
		} else {
			terminal.Phases(o.Out, phases)
		}
	case "markdown":
		if err := newTicket(ctx, o.Name, c, j, look, phases, hash).Markdown(o.Out); err != nil {
			return err
		}
	default:
		doc, err := planOf(ctx, c, look)
		if err != nil {
			return err
		}
		if err := o.format.Print(o.Out.Verbatim(), doc); err != nil {
			return err
		}
	}
	return look.Findings.Score().Objection(fixesByCheck)
}

func planOf(ctx context.Context, c *command.Connection, look migration.Inspection) (doc planDocument, err error) {
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
		DocumentHead: command.HeadOf("Plan", look.Whole.Name), Migration: look.Whole.Name,
		Cluster: of, Time: time.Now().UTC().Truncate(time.Second), Hash: hash,
		Findings: look.Findings, Phases: phases, Services: look.Services, Stays: append([]migration.Stay{}, look.Stays...), Late: look.Late,
	}, err
}

func newTicket(ctx context.Context, name string, c *command.Connection, j migrations.Job, look migration.Inspection, phases []terminal.PlanPhase, hash string) *ticket.Ticket {
	of := j.About()
	t := &ticket.Ticket{
		Migration: of.Name, Job: of.Migration.Spec.Type(), Command: name, Cluster: c.KnownIdentity(ctx), Time: time.Now(), Hash: hash,
		Summary: look.Summary, Phases: phases, Findings: command.SpokenFindings(name, look.Findings), Stays: len(look.Stays),
		Windows: windowWords(of.Common.Windows), Budget: of.Common.Proof.Budget, LateBudget: of.Common.Proof.LateBudget,
		Proven: slices.ContainsFunc(look.Whole.Phases, startsAgents), WayBack: of.Return,
	}
	for _, s := range look.Outstanding.Steps() {
		if pause, ok := s.(*migration.PauseStep); ok {
			t.Waits += pause.Length
		}
	}
	return t
}

func startsAgents(p engine.Phase) bool { return p.Name == agentset.Phase && len(p.Groups) > 0 }

func windowWords(all []v1alpha1.Window) (words []string) {
	for _, w := range all {
		days := "every day"
		if len(w.Days) > 0 {
			days = strings.Join(w.Days, ", ")
		}
		words = append(words, strings.TrimSpace(fmt.Sprintf("%s %s to %s %s", days, w.Start, w.End, w.TimeZone)))
	}
	return words
}
