// Package ticket writes a plan as the text of a change ticket, in Markdown: what changes, what may
// go wrong, how long it takes, how it is taken back and who has to agree.
package ticket

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/reporting/journal"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// Ticket is what there is to decide on.
type Ticket struct {
	Migration string
	// Job is the field of spec that says what moves, such as serviceCIDR.
	Job string
	// Command is what replumb is called.
	Command string
	Cluster engine.Identity
	Time    time.Time
	Hash    string
	// Summary counts what moves, on one line.
	Summary  string
	Phases   []terminal.PlanPhase
	Findings findings.Findings
	// Stays is how many objects are left alone.
	Stays int
	// Waits is what the plan waits at least: what batches settle, and pauses after tiers.
	Waits time.Duration
	// Windows are the maintenance windows, in words; none means at any time.
	Windows []string
	// Budget is how many failed requests are tolerated, LateBudget how many late answers, any
	// number if it is nil. Proven is whether agents count them.
	Budget     int
	LateBudget *int
	Proven     bool
	// WayBack is how to return after the point of no return.
	WayBack string
}

// Markdown writes the ticket.
func (t *Ticket) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Change: migration %s\n\n", printable.Markdown(t.Migration))
	for _, section := range []struct {
		title string
		write func(io.Writer)
	}{
		{"Where", t.where},
		{"What changes", t.changes},
		{"Risks", t.risks},
		{"Duration", t.duration},
		{"People", t.people},
		{"Way back", t.wayBack},
		{"Approval", t.approval},
	} {
		fmt.Fprintf(&b, "## %s\n\n", section.title)
		section.write(&b)
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n")
	return err
}

func (t *Ticket) where(w io.Writer) {
	fmt.Fprintf(w, "| | |\n|---|---|\n| cluster | %s |\n| its UID | %s |\n| plan made | %s |\n| plan hash | %s |\n",
		printable.Markdown(t.Cluster.String()), printable.Markdown(cmp.Or(t.Cluster.UID, "not known")), t.Time.UTC().Format("2006-01-02 15:04 UTC"), printable.Markdown(t.Hash))
}

func (t *Ticket) changes(w io.Writer) {
	fmt.Fprintf(w, "%s.", printable.Markdown(t.Summary))
	if t.Stays > 0 {
		fmt.Fprintf(
			w,
			" %s left alone.",
			english.PluralWord(t.Stays, humanize.Comma(int64(t.Stays))+" object is", humanize.Comma(int64(t.Stays))+" objects are"),
		)
	}
	fmt.Fprint(w, "\n\n| phase | what | steps | writes |\n|---|---|---|---|\n")
	for _, p := range t.Phases {
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", printable.Markdown(p.Name), printable.Markdown(p.Title), humanize.Comma(int64(len(p.Steps))), printable.Markdown(writes(p)))
	}
	fmt.Fprintf(w, "\nEvery write is in the output of `%s plan -f FILE -o yaml`.\n", t.Command)
}

// writes of a phase, counted by verb and kind.
func writes(p terminal.PlanPhase) string {
	counts := map[string]int{}
	var order []string
	for _, s := range p.Steps {
		for _, c := range s.Changes {
			kind, _, _ := strings.Cut(c.Object, " ")
			key := c.Verb + " " + strings.TrimSuffix(kind, ",")
			if counts[key]++; counts[key] == 1 {
				order = append(order, key)
			}
		}
	}
	if len(order) == 0 {
		return "none"
	}
	for i, key := range order {
		order[i] = fmt.Sprintf("%s ×%s", key, humanize.Comma(int64(counts[key])))
	}
	return strings.Join(order, ", ")
}

// shownFindings is how many objects of one check a ticket names.
const shownFindings = 5

func (t *Ticket) risks(w io.Writer) {
	counts := t.Findings.Score()
	verdict := counts.Verdict()
	fmt.Fprintf(w, "**%s%s.**", strings.ToUpper(verdict[:1]), verdict[1:])
	if !counts.Ready() {
		fmt.Fprint(w, " The migration does not start, or leaves objects out, until that is resolved.")
	}
	fmt.Fprintln(w)
	if open := t.Findings.Open().WorstFirst(); len(open) > 0 {
		fmt.Fprint(w, "\n| code | severity | found | what to do |\n|---|---|---|---|\n")
		for _, found := range open {
			t.findings(w, found)
		}
	}
	if !t.Proven {
		fmt.Fprint(w, "\nNo agents run: nothing is probed meanwhile, and losses would not be seen.\n")
		return
	}
	late := ""
	if t.LateBudget != nil {
		late = fmt.Sprintf(", or more than %s late", english.Plural(*t.LateBudget, "answer was", "answers were"))
	}
	fmt.Fprintf(w, "\nAgents probe from every node meanwhile. The run stops by itself once more than %s failed%s.\n",
		english.Plural(t.Budget, "request has", "requests have"), late)
}

// findings are those of one check.
func (t *Ticket) findings(w io.Writer, found findings.Findings) {
	for i, f := range found {
		if i == shownFindings {
			fmt.Fprintf(w, "| %s | %s | and %d more | |\n", printable.Markdown(f.Code), f.Severity, len(found)-i)
			return
		}
		severity := string(f.Severity)
		if f.Outcome == findings.Unknown {
			severity += ", not known"
		}
		fix := printable.Markdown(f.Fix)
		if i > 0 && f.Fix == found[i-1].Fix {
			fix = "as above"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", printable.Markdown(f.Code), severity, printable.Markdown(f.Message), fix)
	}
}

func (t *Ticket) duration(w io.Writer) {
	moves := t.count(engine.RoleMove)
	fmt.Fprintf(w, "At least %s, which batches settle and tiers pause; beside that the time of %s and of the proofs between them.\n",
		length(t.Waits), english.Plural(moves, "move", ""))
	if len(t.Windows) > 0 {
		fmt.Fprintf(w, "Only within: %s.\n", printable.Markdown(strings.Join(t.Windows, "; ")))
	}
	fmt.Fprintf(
		w,
		"From a tenth of the way on, `%s status %s --watch` says when the rest will have moved.\n",
		t.Command,
		printable.Markdown(t.Migration),
	)
}

// length of time for people.
func length(d time.Duration) string {
	if d == 0 {
		return "0 s"
	}
	return journal.Took(d.Seconds())
}

func (t *Ticket) count(role engine.StepRole) (n int) {
	for _, p := range t.Phases {
		for _, s := range p.Steps {
			if s.Role == role {
				n++
			}
		}
	}
	return n
}

// people are who has to do something while it goes on.
func (t *Ticket) people(w io.Writer) {
	if t.count(engine.RoleGate) == 0 {
		fmt.Fprintln(w, "Nothing has to be done by hand.")
		return
	}
	fmt.Fprint(w, "The migration waits for people here, with instructions, and goes on by itself when it sees that it is done:\n\n")
	for _, p := range t.Phases {
		for _, s := range p.Steps {
			if s.Role == engine.RoleGate {
				fmt.Fprintf(w, "- [ ] %s (phase %s)\n", printable.Markdown(s.Title), printable.Markdown(p.Name))
			}
		}
	}
}

func (t *Ticket) wayBack(w io.Writer) {
	fmt.Fprintf(w, "Until `%[1]s finish %[2]s`, `%[1]s rollback %[2]s` takes everything back. The run can be stopped at any time by\n"+
		"`%[1]s pause %[2]s`; the same command carries on.\n\n`finish` is the point of no return and asks for itself. After it: %[3]s.\n",
		t.Command, printable.Markdown(t.Migration), printable.Markdown(t.WayBack))
}

func (t *Ticket) approval(w io.Writer) {
	fmt.Fprintf(w, "| for | who | when |\n|---|---|---|\n| apply, by plan %s | | |\n| finish, the point of no return | | |\n\n"+
		"`%s apply -f FILE --plan plan.json` does what the approved plan says, or nothing.\n", printable.Markdown(t.Hash), t.Command)
}
