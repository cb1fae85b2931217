package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/lock"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/servicecidr"
	"github.com/replumb/replumb/internal/ui"
)

// statusDocument is what status prints with -o json or yaml.
type statusDocument struct {
	Migration string          `json:"migration"`
	Phase     v1alpha1.Phase  `json:"phase,omitempty"`
	Final     bool            `json:"pointOfNoReturnPassed"`
	LastError string          `json:"lastError,omitempty"`
	Counts    v1alpha1.Counts `json:"counts"`
	Stage     string          `json:"stage,omitempty"`
	Paused    bool            `json:"paused,omitempty"`
	// Lock is who works on the cluster at the moment.
	Lock     string                `json:"lock,omitempty"`
	Tiers    []v1alpha1.TierStatus `json:"tiers,omitempty"`
	Services []serviceLine         `json:"services"`
	// Holds names what still keeps the ranges that are to go.
	Holds []string `json:"holds,omitempty"`
	Next  string   `json:"next"`
}

// inTarget is the state of a Service in the target range of a finished migration, whether it moved there or was made there.
const inTarget servicecidr.Place = "in-target"

func (d *statusDocument) summary() string {
	if d.Phase == v1alpha1.PhaseFinished {
		return fmt.Sprintf("%s moved and without the old address, %d stayed", english.Plural(d.Counts.Moved, "Service", ""), d.Counts.Stays)
	}
	return fmt.Sprintf("%d of %d moved, %d bridged, %d pinned, %d stay",
		d.Counts.Moved, d.Counts.Total, d.Counts.Bridged, d.Counts.Pinned, d.Counts.Stays)
}

// phase says where the migration stands, for people.
func (d *statusDocument) phase() string {
	text := string(d.Phase)
	if d.Stage != "" {
		text += " (" + d.Stage + ")"
	}
	if d.Paused {
		text += ", paused"
	}
	return text
}

type serviceLine struct {
	Service string            `json:"service"`
	Old     string            `json:"old,omitempty"`
	New     string            `json:"new,omitempty"`
	State   servicecidr.Place `json:"state"`
	Reason  string            `json:"reason,omitempty"`
}

func (a *app) status() *cobra.Command {
	watch := false
	cmd := &cobra.Command{
		Use:     "status [NAME]",
		Short:   "Show where each Service stands",
		Args:    cobra.MaximumNArgs(1),
		Long:    "Show where each Service stands, what still holds the old range, and who is working on it, read from the objects\nthemselves.",
		Example: a.example("  replumb status\n  replumb status services-to-172-24 --watch\n  replumb status services-to-172-24 -o json"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if watch {
				return a.watchStatus(cmd.Context(), args)
			}
			return a.showAll(cmd.Context(), args)
		},
	}
	a.outputFlag(cmd, "table", "json", "yaml", "name")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again whenever it has changed")
	return cmd
}

// watchEvery is how often status --watch looks.
const watchEvery = 2 * time.Second

// watchStatus shows the status again whenever it is another, until it is interrupted.
func (a *app) watchStatus(ctx context.Context, args []string) error {
	screen := a.out
	last := ""
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		var page strings.Builder
		a.out = &output{w: &page}
		err := a.showAll(ctx, args)
		a.out = screen
		if err != nil {
			return err
		}
		if page.String() != last {
			last = page.String()
			fmt.Fprintf(a.out, "%s\n", last)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *app) showAll(ctx context.Context, args []string) error {
	jobs, err := a.jobs(ctx, args)
	if err != nil {
		return err
	}
	if len(jobs) == 0 {
		fmt.Fprintln(a.err, "no migrations")
		return nil
	}
	for _, job := range jobs {
		if err := a.showStatus(ctx, job); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) jobs(ctx context.Context, names []string) ([]*servicecidr.Job, error) {
	if len(names) == 1 {
		job, err := a.jobByName(ctx, names[0])
		return []*servicecidr.Job{job}, err
	}
	tools, err := a.tools()
	if err != nil {
		return nil, err
	}
	if _, err := tools.Cluster.ServerVersion(ctx); err != nil {
		return nil, err
	}
	all, err := migration.List(ctx, tools.Cluster)
	if err != nil {
		return nil, err
	}
	var jobs []*servicecidr.Job
	for i := range all {
		job, err := servicecidr.NewJob(tools, &all[i])
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}

func (a *app) showStatus(ctx context.Context, job *servicecidr.Job) error {
	survey, err := job.Look(ctx)
	if err != nil {
		return err
	}
	doc := a.statusDocument(job, survey)
	holder, err := lock.Current(ctx, job.Tools.Cluster)
	if err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	if holder != nil {
		doc.Lock = (&lock.HeldError{Holder: *holder}).Error()
	}
	switch a.output {
	case "json", "yaml":
		return ui.Document(a.out, a.output, doc)
	case "name":
		_, err := fmt.Fprintln(a.out, "migration.replumb.dev/"+doc.Migration)
		return err
	}
	rows := [][]string{{"SERVICE", "OLD", "NEW", "STATE", "REASON"}}
	for _, s := range doc.Services {
		rows = append(rows, []string{s.Service, s.Old, s.New, string(s.State), s.Reason})
	}
	if err := ui.Table(a.out, rows); err != nil {
		return err
	}
	for _, h := range doc.Holds {
		fmt.Fprintf(a.out, "holds the old range: %s\n", h)
	}
	for _, t := range doc.Tiers {
		fmt.Fprintf(a.out, "tier %s: %d of %d moved\n", t.Name, t.Moved, t.Total)
	}
	fmt.Fprintf(a.out, "migration %s: %s; %s\n", doc.Migration, doc.phase(), doc.summary())
	if doc.Lock != "" {
		fmt.Fprintln(a.out, doc.Lock)
	}
	if doc.LastError != "" {
		fmt.Fprintf(a.out, "last error: %s\n", doc.LastError)
	}
	_, err = fmt.Fprintf(a.out, "next: %s\n", doc.Next)
	return err
}

func (a *app) statusDocument(job *servicecidr.Job, survey *servicecidr.Survey) statusDocument {
	st := job.Migration.Status
	doc := statusDocument{
		Migration: job.Spec.Name, Phase: st.Phase, Final: st.PointOfNoReturnPassed, LastError: st.LastError,
		Counts: survey.Counts(), Services: []serviceLine{}, Next: a.next(job, survey), Stage: st.Stage, Paused: job.Migration.Spec.Paused,
	}
	finished := st.Phase == v1alpha1.PhaseFinished
	if finished {
		// Which Services had moved can no longer be seen on them; how many was written down.
		doc.Counts.Moved, doc.Counts.Total = st.Counts.Moved, st.Counts.Moved+len(survey.Moves)
	}
	if !finished && st.Phase != v1alpha1.PhaseRolledBack {
		doc.Holds = survey.Holds()
		if len(survey.Tiers) > 2 { // more than the default and the cluster's own
			doc.Tiers = survey.TierCounts(nil)
		}
	}
	for _, e := range slices.Concat(survey.Moves, survey.Pins, survey.Stays) {
		if finished && e.InTarget() {
			doc.Counts.Stays--
			doc.Services = append(doc.Services, serviceLine{Service: e.Key().String(), New: e.Old.String(), State: inTarget})
			continue
		}
		line := serviceLine{Service: e.Key().String(), State: e.Place, Reason: e.Reason}
		if e.Old.IsValid() {
			line.Old = e.Old.String()
		}
		if e.New.IsValid() {
			line.New = e.New.String()
		}
		doc.Services = append(doc.Services, line)
	}
	return doc
}

func (a *app) next(job *servicecidr.Job, survey *servicecidr.Survey) string {
	name := job.Spec.Name
	switch {
	case job.Migration.Spec.Paused:
		return a.name + " resume " + name
	case job.Migration.Status.Phase == v1alpha1.PhaseFinished, job.Migration.Status.Phase == v1alpha1.PhaseRolledBack:
		return "nothing; the migration is over"
	case job.Migration.Status.PointOfNoReturnPassed:
		return a.name + " finish " + name
	case job.Migration.Status.Phase == v1alpha1.PhaseRollingBack:
		return a.name + " rollback " + name
	case len(survey.Pending()) > 0:
		return a.name + " apply -f FILE"
	}
	return fmt.Sprintf("%s finish %s, or %s rollback %s", a.name, name, a.name, name)
}
