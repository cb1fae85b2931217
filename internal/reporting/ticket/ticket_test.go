package ticket

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// sample is a move of three Services, with what may go wrong.
func sample() *Ticket {
	write := func(verb, object string) []engine.Change { return []engine.Change{{Verb: verb, Object: object}} }
	return &Ticket{
		Migration: "services-to-172-24",
		Job:       "serviceCIDR",
		Command:   "replumb",
		Hash:      "0f3c",
		Cluster: engine.Identity{
			UID:     "u-1",
			Server:  "192.0.2.1:6443",
			Context: "prod-eu",
		},
		Time:    time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC),
		Summary: "3 Services to move (0 moved), 1 pinned, 2 stay",
		Stays:   2,
		Waits:   90 * time.Minute,
		Proven:  true,
		Windows: []string{"Mon, Tue 22:00 to 04:00 Europe/Berlin"},
		WayBack: "make a new migration",
		Phases: []terminal.PlanPhase{
			{Name: "move", Title: "Move Services", Steps: []terminal.PlanStep{
				{ID: "a", Title: "Bridge", Role: engine.RoleWrite, Changes: write("create", "Service shop/a")},
				{ID: "b", Title: "Move a", Role: engine.RoleMove, Changes: write("patch", "Service shop/a")},
				{ID: "c", Title: "Move b", Role: engine.RoleMove, Changes: slices.Concat(
					write("patch", "Service shop/b"), write("create", "IPAddress, which keeps the address that it leaves"),
				)},
				{ID: "d", Title: "Every node knows", Role: engine.RoleBarrier},
			}},
			{
				Name:  "repoint",
				Title: "Restart API servers",
				Steps: []terminal.PlanStep{{ID: "g", Title: "Change the flag", Role: engine.RoleGate}},
			},
		},
		Findings: findings.Findings{
			{Code: "RP1", Outcome: findings.Pass, Severity: findings.Blocking},
			{Code: "RP2", Outcome: findings.Fail, Severity: findings.Warning, Message: "pod a|b <b>*bold*</b> @team\n# no", Fix: "do"},
			{Code: "RP3", Outcome: findings.Unknown, Severity: findings.Warning, Message: "could not look"},
		},
	}
}

func markdown(t *testing.T, ticket *Ticket) string {
	t.Helper()
	var b strings.Builder
	if err := ticket.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestSections: who approves finds each of them, in this order.
func TestSections(t *testing.T) {
	text := markdown(t, sample())
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(text, -1) {
		got = append(got, m[1])
	}
	want := []string{"Where", "What changes", "Risks", "Duration", "People", "Way back", "Approval"}
	if !slices.Equal(got, want) {
		t.Errorf("sections %q, want %q", got, want)
	}
	for _, want := range []string{
		"# Change: migration services-to-172-24\n",
		"| cluster | prod-eu (192.0.2.1:6443) |\n| its UID | u-1 |\n| plan made | 2026-11-23 12:00 UTC |\n| plan hash | 0f3c |\n",
		"2 objects are left alone.",
		"| move | Move Services | 4 | create Service ×1, patch Service ×2, create IPAddress ×1 |\n",
		"| repoint | Restart API servers | 1 | none |\n",
		"**Ready: 1 warning, 1 unknown, 1 ok (3 checks).**\n",
		"| RP3 | warning, not known | could not look |  |\n",
		"once more than 0 requests have failed",
		"At least 90 min, which batches settle and tiers pause; beside that the time of 2 moves",
		"Only within: Mon, Tue 22:00 to 04:00 Europe/Berlin.",
		"- [ ] Change the flag (phase repoint)\n",
		"`replumb rollback services-to-172-24` takes everything back",
		"After it: make a new migration.",
		"| apply, by plan 0f3c | | |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
}

// TestTextOfOthersIsText: what stands in the cluster makes no columns, headings, tags or mentions.
func TestTextOfOthersIsText(t *testing.T) {
	text := markdown(t, sample())
	if want := `| RP2 | warning | pod a\|b &lt;b\>\*bold\*&lt;/b\> &#64;team \# no | do |`; !strings.Contains(text, want) {
		t.Errorf("lacks %q:\n%s", want, text)
	}
	columns := 0
	for _, line := range strings.Split(text, "\n") {
		n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
		if n > 0 && columns > 0 && n != columns {
			t.Errorf("%q has %d columns, and the table %d", line, n-1, columns-1)
		}
		columns = n
	}
}

// TestBlocked says at once that nothing is ready, and names few objects of many.
func TestBlocked(t *testing.T) {
	ticket := sample()
	for range 12 {
		ticket.Findings = append(
			ticket.Findings,
			findings.Finding{Code: "RP4", Severity: findings.Blocking, Outcome: findings.Fail, Message: "taken", Fix: "rename it"},
		)
	}
	ticket.Proven, ticket.Phases = false, nil
	text := markdown(t, ticket)
	for want, times := range map[string]int{
		"**Not ready: 1 blocking, 1 warning, 1 unknown, 1 ok (4 checks).** The migration does not start": 1, "| RP4 | blocking | taken |": shownFindings, "| RP4 | blocking | and 7 more | |": 1,
		"| rename it |": 1, "| as above |": shownFindings - 1, "No agents run": 1, "Nothing has to be done by hand.": 1,
	} {
		if got := strings.Count(text, want); got != times {
			t.Errorf("%q is there %d times, want %d:\n%s", want, got, times, text)
		}
	}
	ticket.Findings = ticket.Findings[:1]
	if text := markdown(t, ticket); !strings.Contains(text, "**Ready: 1 ok (1 check).**") {
		t.Errorf("all passed:\n%s", text)
	}
}
