package migrate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/reporting/ticket"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// newTicket is a plan as people decide on it.
func newTicket(ctx context.Context, name string, c *command.Connection, j job, look outlook, phases []terminal.PlanPhase, hash string) *ticket.Ticket {
	of := j.about()
	t := &ticket.Ticket{
		Migration: of.name, Job: of.migration.Spec.Type(), Command: name, Cluster: c.KnownIdentity(ctx), Time: time.Now(), Hash: hash,
		Summary: look.summary, Phases: phases, Findings: command.SpokenFindings(name, look.findings), Stays: len(look.stays),
		Windows: windowWords(of.common.Windows), Budget: of.common.Proof.Budget, LateBudget: of.common.Proof.LateBudget,
		Proven: slices.ContainsFunc(look.whole.Phases, startsAgents), WayBack: migration.WayBack(&of.migration.Spec),
	}
	for _, s := range look.outstanding.Steps() {
		if pause, ok := s.(*migration.PauseStep); ok {
			t.Waits += pause.Length
		}
	}
	return t
}

// startsAgents reports whether a phase starts agents.
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
