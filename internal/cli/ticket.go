package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/reporting/ticket"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// ticket is a plan as people decide on it.
func (a *app) ticket(ctx context.Context, c *connection, j migrations.Job, look migration.Inspection, phases []terminal.PlanPhase, hash string) *ticket.Ticket {
	of := j.About()
	t := &ticket.Ticket{
		Migration: of.Name, Job: of.Migration.Spec.Type(), Command: a.name, Cluster: c.identity(ctx), Time: time.Now(), Hash: hash,
		Summary: look.Summary, Phases: phases, Findings: spokenFindings(a.name, look.Findings), Stays: len(look.Stays),
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

// startsAgents reports whether a phase is the one that starts agents, and there are some.
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
