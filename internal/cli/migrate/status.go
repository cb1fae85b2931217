package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/journal"
	"github.com/replumb/replumb/internal/reporting/progress"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/safety/lease"
)

type statusHead struct {
	command.DocumentHead `json:",inline"`
	Migration            string          `json:"migration"`
	Phase                v1alpha1.Phase  `json:"phase,omitempty"`
	Final                bool            `json:"pointOfNoReturnPassed"`
	LastError            string          `json:"lastError,omitempty"`
	Counts               v1alpha1.Counts `json:"counts"`
	Stage                string          `json:"stage,omitempty"`
	Paused               bool            `json:"paused,omitempty"`
	// SettledAt is when the cluster became as the Migration wants it; nil if it is not.
	SettledAt *metav1.Time          `json:"settledAt,omitempty"`
	Proof     *v1alpha1.ProofStatus `json:"proof,omitempty"`
	Lock      string                `json:"lock,omitempty"`
	// TakenBack are the workloads whose restart somebody undid.
	TakenBack []v1alpha1.TakenBackStatus `json:"takenBack,omitempty"`
	// Gates wait for people; MovedBy is when all will have moved, if known.
	Gates   []gateLine `json:"gates,omitempty"`
	MovedBy *time.Time `json:"movedBy,omitempty"`
	Next    string     `json:"next"`

	found migration.StatusDocument
}

// statusDocument is the status of a migration, for programs and for people.
type statusDocument struct {
	statusHead
}

func (d *statusDocument) MarshalJSON() ([]byte, error) {
	head, err := json.Marshal(d.statusHead)
	if err != nil || d.found.Body == nil {
		return head, err
	}
	body, err := json.Marshal(d.found.Body)
	if err != nil || len(body) <= len("{}") {
		return head, err
	}
	return slices.Concat(head[:len(head)-1], []byte(","), body[1:]), nil
}

type gateLine struct {
	Step         string    `json:"step"`
	Title        string    `json:"title"`
	Instructions string    `json:"instructions"`
	Since        time.Time `json:"since"`
}

func documentOf(j migrations.Job, found migration.StatusDocument, name string) *statusDocument {
	m := j.About().Migration
	head := statusHead{
		DocumentHead: command.HeadOf("MigrationStatus", m.Name), Counts: found.Counts, found: found,
		Migration: m.Name, Phase: m.Status.Phase, Final: m.Status.PointOfNoReturnPassed, LastError: m.Status.LastError,
		Proof: m.Status.Proof, TakenBack: m.Status.TakenBack, Stage: m.Status.Stage, Paused: m.Spec.Paused, Next: next(m, found.Pending, name),
	}
	if ready := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReady); ready != nil &&
		ready.Status == metav1.ConditionTrue {
		head.SettledAt = &ready.LastTransitionTime
	}
	return &statusDocument{head}
}

func (h *statusHead) phase() string {
	text := string(h.Phase)
	if h.Stage != "" {
		text += " (" + h.Stage + ")"
	}
	if h.Paused {
		text += ", paused"
	}
	return text
}

type statusOptions struct {
	source
	format command.Format
	// absent takes a migration that does not exist for nothing to show.
	watch, absent bool
}

// Status shows where each migration stands.
func Status(a *command.App) *cobra.Command {
	o := &statusOptions{source: source{App: a}}
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show where each migration stands", SuggestFor: []string{"get", "list", "ls", "show", "migrations"},
		Args: cobra.MaximumNArgs(1),
		Long: `Show where each migration stands, what still holds the old range, and who is working on it, read from the
objects themselves. Those not at their end come first; -o wide lists everything. A migration that is over is
shown as recorded once these objects have moved on.

--watch shows one page that fits 40 lines, however many Services there are, and draws it again on a terminal. It
has phase, batch and tier, how many move in a minute, when the rest will have moved, what was lost, who runs it,
and the instructions of gates that wait for you. It reads what the run writes into the cluster, and counts the
objects as status does, which takes up to ten seconds, and ends when the migration is where it was asked to go.
NO_COLOR=1 takes colours away; with TERM=dumb, or where stdout is no terminal, pages follow one another, one for
each thing that happens.`,
		Example: a.Example(`
  replumb status
  replumb status -f both.yaml                 # of several Migrations in one file, in their order
  replumb status services-to-172-24 --watch
  replumb status services-to-172-24 -o json
  replumb status services-to-172-24 -o jsonpath='{.phase}'`),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, s, err := o.fromFiles(o.format, args)
			switch {
			case err != nil:
				return err
			case s != nil:
				if err := oneOnly(only(o.watch, "--watch")); err != nil {
					return err
				}
				return o.statusSet(cmd.Context(), s)
			case g != nil:
				args = []string{g.Name}
			}
			switch {
			case o.watch && o.format.Name == "table":
				return o.watchPage(cmd.Context(), args)
			case o.watch:
				return o.watchDocuments(cmd.Context(), args)
			}
			err = o.show(cmd.Context(), o.Stdout(o.format), args)
			if o.absent && errors.As(err, new(*AbsentError)) {
				return nil
			}
			return err
		},
	}
	o.files.Declare(cmd)
	o.format.DeclareDocument(cmd, "table", "wide", "json", "yaml", "name")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false,
		"follow it on one page until the migration is over: what goes on, pace, losses, gates")
	cmd.Flags().BoolVar(&o.absent, "ignore-not-found", false, "if there is no such migration, print nothing, and end with exit code 0")
	return cmd
}

func (o *statusOptions) watchDocuments(ctx context.Context, args []string) error {
	last := ""
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		var page strings.Builder
		if err := o.show(ctx, &page, args); err != nil {
			return err
		}
		if page.String() != last {
			last = page.String()
			fmt.Fprintf(o.Stdout(o.format), "%s\n", last)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (o *statusOptions) show(ctx context.Context, w io.Writer, args []string) error {
	jobs, c, err := o.jobs(ctx, args)
	if err != nil {
		return err
	}
	if o.format.Name == "table" || o.format.Name == "wide" {
		if err := c.Introduce(ctx, w); err != nil {
			return err
		}
	}
	if len(jobs) == 0 {
		fmt.Fprintln(o.Err, "no migrations")
	}
	var pages []*statusDocument
	for _, j := range jobs {
		doc, err := o.statusOf(ctx, c, j)
		if err != nil {
			return ofJob(j, err)
		}
		switch o.format.Name {
		case "table":
			err = showStatus(w, doc, shownRows, o.Name)
		case "wide":
			err = showStatus(w, doc, everyRow, o.Name)
		case "name":
			_, err = fmt.Fprintln(w, "migration.replumb.dev/"+doc.Migration)
		default:
			pages = append(pages, doc)
		}
		if err != nil {
			return err
		}
	}
	if o.format.ForPeople() {
		return nil
	}
	return o.format.Print(w, oneDocument(pages))
}

func (o *statusOptions) jobs(ctx context.Context, names []string) ([]migrations.Job, *command.Connection, error) {
	if len(names) == 1 {
		j, c, err := o.recordedJob(ctx, names[0])
		return []migrations.Job{j}, c, err
	}
	c, err := o.reach(ctx)
	if err != nil {
		return nil, nil, err
	}
	all, err := migration.List(ctx, c.Cluster)
	if err != nil {
		return nil, nil, err
	}
	var jobs []migrations.Job
	for i := range all {
		j, err := o.silentJob(c, &all[i])
		if err != nil {
			return nil, nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, c, nil
}

func (o *source) statusOf(ctx context.Context, c *command.Connection, j migrations.Job) (*statusDocument, error) {
	found, err := migrations.StatusOf(ctx, j)
	if err != nil {
		return nil, err
	}
	doc := documentOf(j, found, o.Name)
	holder, err := lease.Current(ctx, c.Cluster)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	if holder == nil {
		return doc, nil
	}
	doc.Lock = (&lease.HeldError{Holder: *holder}).Error()
	if holder.Migration != doc.Migration {
		return doc, nil
	}
	history, err := journal.Load(ctx, c.Cluster, doc.Migration)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	doc.goesOn(o.view(progress.Input{
		Migration: j.About().Migration, Counts: found.Counts, History: history, Holder: holder.String(), Now: time.Now(),
	}))
	return doc, nil
}

func (o *source) view(in progress.Input) progress.View {
	words := o.Kinds.Of(in.Migration).Words
	in.Counted, in.ByMoves = words.Counted, words.ByMoves
	return progress.Look(in)
}

func (h *statusHead) goesOn(v progress.View) {
	for _, g := range v.Gates {
		h.Gates = append(h.Gates, gateLine{Step: g.ID, Title: g.Title, Instructions: g.Guide, Since: g.Since.UTC()})
	}
	if v.Known {
		eta := v.At.Add(v.Left).UTC().Truncate(time.Second)
		h.MovedBy = &eta
	}
}

const (
	shownRows = 20
	everyRow  = 0
)

func showStatus(w io.Writer, doc *statusDocument, rows int, name string) error {
	head := &doc.statusHead
	fmt.Fprintf(w, "migration %s: %s; %s\n", head.Migration, head.phase(), head.found.Summary)
	if head.MovedBy != nil {
		fmt.Fprintf(w, "all moved by %s, without what gates, windows and restarts take\n", head.MovedBy.Format(time.RFC3339))
	}
	proofLines(w, head.Proof, rows)
	if head.Lock != "" {
		fmt.Fprintln(w, printable.Line(head.Lock))
	}
	if head.LastError != "" {
		fmt.Fprintf(w, "last error: %s\n", printable.Indented(command.Spoken(name, head.LastError), "  "))
	}
	for i := range head.TakenBack {
		r := &head.TakenBack[i]
		fmt.Fprintln(w, printable.Line(fmt.Sprintf("restart taken back: %s, whose spec.template is written by %s (%s)",
			r.Workload, r.By, r.At.UTC().Format(time.RFC3339))))
	}
	for _, g := range head.Gates {
		fmt.Fprintf(w, "waits for you since %s: %s\n", g.Since.Format(time.RFC3339), printable.Line(g.Title))
		fmt.Fprintf(w, "  %s\n", strings.ReplaceAll(printable.Text(command.Spoken(name, g.Instructions)), "\n", "\n  "))
	}
	fmt.Fprintf(w, "next: %s\n", head.Next)
	var table strings.Builder
	if err := writeText(&table, head.found.Text, rows, name); err != nil || table.Len() == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s", &table)
	return err
}

func writeText(w io.Writer, text []migration.TextBlock, rows int, name string) error {
	for _, b := range text {
		most := rows
		if b.All {
			most = everyRow
		}
		if b.Head != nil || len(b.Rows) > 0 {
			if err := boundedTable(w, most, b.Head, b.Rows, b.Settled); err != nil {
				return err
			}
		}
		bounded(w, most, b.Lines, func(line string) { fmt.Fprintln(w, command.Spoken(name, line)) })
	}
	return nil
}

func bounded[T any](w io.Writer, rows int, lines []T, write func(T)) {
	for i, line := range lines {
		if rows > 0 && i == rows && len(lines) > rows+1 {
			fmt.Fprintf(w, "and %d more (-o wide has all)\n", len(lines)-i)
			return
		}
		write(line)
	}
}

// boundedTable prints no more than so many rows. Rows that are settled, if that is known, give way.
func boundedTable(w io.Writer, rows int, head []string, all [][]string, settled func(row []string) bool) error {
	left := 0
	if rows > 0 && len(all) > rows+1 {
		all = slices.Clone(all)
		if settled != nil {
			slices.SortStableFunc(all, func(a, b []string) int { return rank(settled(a)) - rank(settled(b)) })
		}
		left = len(all) - rows
		all = all[:rows]
	}
	if head != nil {
		all = append([][]string{head}, all...)
	}
	if err := terminal.Table(w, all); err != nil {
		return err
	}
	if left > 0 {
		fmt.Fprintf(w, "and %d more (-o wide has all)\n", left)
	}
	return nil
}

func rank(settled bool) int {
	if settled {
		return 1
	}
	return 0
}

func next(m *v1alpha1.Migration, pending bool, command string) string {
	switch {
	case m.Spec.Paused:
		return command + " resume " + m.Name
	case m.Status.Phase.Over():
		return "nothing; the migration is over"
	case m.Status.PointOfNoReturnPassed:
		return command + " finish " + m.Name
	case m.Status.Phase == v1alpha1.PhaseRollingBack:
		return command + " rollback " + m.Name
	case pending && m.Spec.Desired == v1alpha1.DesiredApplied:
		return command + " resume " + m.Name
	case pending:
		return command + " apply -f FILE"
	}
	return fmt.Sprintf("%s finish %s, or %s rollback %s", command, m.Name, command, m.Name)
}

func oneDocument(pages []*statusDocument) any {
	if len(pages) == 1 {
		return pages[0]
	}
	return command.ListOf(pages)
}
