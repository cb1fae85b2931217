package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/safety/lease"
)

// statusHead is what status prints of every migration with -o json or yaml.
type statusHead struct {
	Migration string          `json:"migration"`
	Phase     v1alpha1.Phase  `json:"phase,omitempty"`
	Final     bool            `json:"pointOfNoReturnPassed"`
	LastError string          `json:"lastError,omitempty"`
	Counts    v1alpha1.Counts `json:"counts"`
	Stage     string          `json:"stage,omitempty"`
	Paused    bool            `json:"paused,omitempty"`
	// Proof is what agents have seen in the latest run.
	Proof *v1alpha1.ProofStatus `json:"proof,omitempty"`
	// Lock is who works on the cluster at the moment.
	Lock string `json:"lock,omitempty"`
	Next string `json:"next"`

	// summary is the counts, for people.
	summary string
}

func (h *statusHead) headOf() *statusHead { return h }

// headOf a job; pending says that apply has something left to do.
func headOf(j job, pending bool, command string) statusHead {
	m := j.about().migration
	return statusHead{
		Migration: m.Name, Phase: m.Status.Phase, Final: m.Status.PointOfNoReturnPassed, LastError: m.Status.LastError,
		Proof: m.Status.Proof, Stage: m.Status.Stage, Paused: m.Spec.Paused, Next: next(m, pending, command),
	}
}

// phase says where the migration stands, for people.
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

func (a *app) status() *cobra.Command {
	watch := false
	var templates *genericclioptions.KubeTemplatePrintFlags
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show where each migration stands",
		Args:  cobra.MaximumNArgs(1),
		Long:  "Show where each migration stands, what still holds the old range, and who is working on it, read from the objects\nthemselves.",
		Example: a.example(`
  replumb status
  replumb status services-to-172-24 --watch
  replumb status services-to-172-24 -o json
  replumb status services-to-172-24 -o jsonpath='{.phase}'`),
		RunE: func(cmd *cobra.Command, args []string) error {
			if watch {
				return a.watchStatus(cmd.Context(), templates, args)
			}
			return a.showAll(cmd.Context(), a.stdout(), templates, args)
		},
	}
	templates = a.documentFlag(cmd, "table", "json", "yaml", "name")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again whenever it has changed")
	return cmd
}

// watchEvery is how often status --watch looks.
const watchEvery = 2 * time.Second

// watchStatus shows the status again whenever it is another, until it is interrupted.
func (a *app) watchStatus(ctx context.Context, templates *genericclioptions.KubeTemplatePrintFlags, args []string) error {
	last := ""
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		var page strings.Builder
		if err := a.showAll(ctx, &page, templates, args); err != nil {
			return err
		}
		if page.String() != last {
			last = page.String()
			fmt.Fprintf(a.stdout(), "%s\n", last)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *app) showAll(ctx context.Context, w io.Writer, templates *genericclioptions.KubeTemplatePrintFlags, args []string) error {
	jobs, c, err := a.jobs(ctx, args)
	if err != nil {
		return err
	}
	if len(jobs) == 0 {
		fmt.Fprintln(a.err, "no migrations")
	}
	var pages []page
	for _, j := range jobs {
		doc, err := statusOf(ctx, c, j)
		if err != nil {
			return ofJob(j, err)
		}
		switch a.output {
		case "table":
			err = showStatus(w, doc)
		case "name":
			_, err = fmt.Fprintln(w, "migration.replumb.dev/"+doc.headOf().Migration)
		default:
			pages = append(pages, doc)
		}
		if err != nil {
			return err
		}
	}
	if a.output == "table" || a.output == "name" {
		return nil
	}
	return printDocument(w, a.output, templates, oneDocument(pages))
}

func (a *app) jobs(ctx context.Context, names []string) ([]job, *connection, error) {
	if len(names) == 1 {
		j, c, err := a.lookingJob(ctx, names[0])
		return []job{j}, c, err
	}
	c, err := a.reach(ctx)
	if err != nil {
		return nil, nil, err
	}
	all, err := migration.List(ctx, c.Cluster)
	if err != nil {
		return nil, nil, err
	}
	var jobs []job
	for i := range all {
		j, err := a.silentJob(c, &all[i])
		if err != nil {
			return nil, nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, c, nil
}

// statusOf looks where a migration stands, and who works on the cluster.
func statusOf(ctx context.Context, c *connection, j job) (page, error) {
	doc, err := j.status(ctx)
	if err != nil {
		return nil, err
	}
	holder, err := lease.Current(ctx, c.Cluster)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	if holder != nil {
		doc.headOf().Lock = (&lease.HeldError{Holder: *holder}).Error()
	}
	return doc, nil
}

// showStatus writes a status for people.
func showStatus(w io.Writer, doc page) error {
	head := doc.headOf()
	if err := doc.table(w); err != nil {
		return err
	}
	fmt.Fprintf(w, "migration %s: %s; %s\n", head.Migration, head.phase(), head.summary)
	proofLines(w, head.Proof)
	if head.Lock != "" {
		fmt.Fprintln(w, printable.Line(head.Lock))
	}
	if head.LastError != "" {
		fmt.Fprintf(w, "last error: %s\n", printable.Indented(head.LastError, "  "))
	}
	_, err := fmt.Fprintf(w, "next: %s\n", head.Next)
	return err
}

// next is the command that leads on.
func next(m *v1alpha1.Migration, pending bool, command string) string {
	switch {
	case m.Spec.Paused:
		return command + " resume " + m.Name
	case m.Status.Phase == v1alpha1.PhaseFinished, m.Status.Phase == v1alpha1.PhaseRolledBack:
		return "nothing; the migration is over"
	case m.Status.PointOfNoReturnPassed:
		return command + " finish " + m.Name
	case m.Status.Phase == v1alpha1.PhaseRollingBack:
		return command + " rollback " + m.Name
	case pending:
		return command + " apply -f FILE"
	}
	return fmt.Sprintf("%s finish %s, or %s rollback %s", command, m.Name, command, m.Name)
}
