package migrate

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/mirror"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// mirrorJob has a second cluster serve. command is what replumb is called.
type mirrorJob struct {
	*mirror.Job
	command string
}

func (j mirrorJob) about() about {
	return about{
		name:      j.Spec.Name,
		migration: j.Migration,
		common:    j.Spec.Common,
		phases:    mirror.ApplyPhases(),
		goBack:    "Switch the DNS names of " + j.Spec.Name + " back to this cluster?",
		applied:   "names lead to the target",
		wentBack:  "this cluster serves; copies stay in the target, and apply brings them up to date",
		finished:  "finished: this cluster serves, and the mirror may be taken down",
		rights:    "deploy/rbac-mirror.yaml",
	}
}

func (j mirrorJob) restrict(until string, expected *migration.Expectation) {
	j.Until, j.Expected = until, expected
}

func (j mirrorJob) examine(ctx context.Context) (outlook, error) {
	p, err := j.Look(ctx)
	if err != nil {
		return outlook{}, err
	}
	s := p.Survey
	objects, kinds := s.Copied()
	return outlook{
		findings: p.Findings, whole: p.Apply(), outstanding: p.Apply().Outstanding(ctx), stays: []stayLine{},
		details: func(w io.Writer) error { return leftOut(w, s) },
		summary: fmt.Sprintf("%s of %s to copy, %s to lead there; the %s serves now",
			english.Plural(objects, "object", ""), english.Plural(kinds, "kind", ""),
			english.Plural(len(s.Names)+len(s.Awaited), "name", ""), side(s.Serving())),
	}, nil
}

func side(s v1alpha1.ServingSide) string {
	switch s {
	case v1alpha1.ServingTarget:
		return "target"
	case v1alpha1.ServingBoth:
		return "source, and for names that have moved the target,"
	}
	return "source"
}

// leftOut lists what is not copied, and why.
func leftOut(w io.Writer, s *mirror.Survey) error {
	if len(s.Objects.LeftOut) == 0 {
		return nil
	}
	rows := [][]string{{"NOT COPIED", "OBJECTS", "WHY"}}
	for _, l := range s.Objects.LeftOut {
		rows = append(rows, []string{l.Resource, strconv.Itoa(l.Count), l.Why})
	}
	return terminal.Table(w, rows)
}

func (j mirrorJob) apply(ctx context.Context, r *engine.Runner) (arrival, error) {
	p, err := j.Apply(ctx, r)
	if err != nil {
		return arrival{}, err
	}
	if j.Until != "" {
		return arrival{tell: func(w io.Writer) { fmt.Fprintf(w, "stopped after phase %s, as asked\n", j.Until) }}, nil
	}
	return arrival{
		tell: func(w io.Writer) {
			fmt.Fprintf(w, "the mirror serves %s; no one is led to this cluster: its network may be changed\n",
				english.Plural(len(p.Survey.Names), "name", ""))
		},
		hint: fmt.Sprintf("when this cluster is ready again, %s finish %s leads the names back; %s rollback %s does so and keeps the mirror for another time",
			j.command, j.Spec.Name, j.command, j.Spec.Name),
	}, nil
}

func (j mirrorJob) finishable(ctx context.Context) (prospect, error) {
	p, err := j.Finishable(ctx)
	if err != nil {
		return prospect{}, err
	}
	var finals []string
	for _, n := range p.Survey.Names {
		finals = append(finals, fmt.Sprintf("%s leads to %v again", n.Name, n.From))
	}
	return prospect{
		question: "Names are led back to this cluster, and after that the mirror is given up. Finish?", finals: finals,
	}, nil
}

// mirrorPage is what status prints of a mirror.
type mirrorPage struct {
	statusHead `json:",inline"`
	Serving    v1alpha1.ServingSide `json:"serving"`
	Names      []mirrorLine         `json:"names"`
	// Copies are how many objects of the target are replumb's.
	Copies int `json:"copies"`
}

type mirrorLine struct {
	Name string              `json:"name"`
	Type v1alpha1.RecordType `json:"type"`
	From []string            `json:"from"`
	To   []string            `json:"to"`
	// Now is where it leads: old, new, between, or why that is not known.
	Now string `json:"now"`
}

func (j mirrorJob) status(ctx context.Context) (page, error) {
	survey, err := j.Glance(ctx)
	if err != nil {
		return nil, err
	}
	doc := &mirrorPage{Serving: survey.Serving(), Names: []mirrorLine{}, Copies: survey.Copies}
	for _, n := range survey.Names {
		doc.Names = append(doc.Names, mirrorLine{Name: n.Name, Type: n.Type, From: n.From, To: n.To, Now: survey.Places[mirror.Title(n)]})
	}
	doc.statusHead = headOf(j, survey.Serving() != v1alpha1.ServingTarget, j.command)
	doc.Counts = survey.Counts()
	doc.summary = fmt.Sprintf("the %s serves; %s in the target", side(survey.Serving()), english.Plural(survey.Copies, "copy", "copies"))
	return doc, nil
}

func (d *mirrorPage) table(w io.Writer, rows int) error {
	if len(d.Names) == 0 {
		return nil
	}
	var all [][]string
	for _, n := range d.Names {
		all = append(all, []string{n.Name, string(n.Type), fmt.Sprint(n.From), fmt.Sprint(n.To), n.Now})
	}
	return boundedTable(w, rows, []string{"NAME", "TYPE", "SOURCE", "TARGET", "NOW"}, all, func([]string) bool { return false })
}

// dirFlags are those of plan that write a copy to files.
type dirFlags struct {
	dir     string
	secrets bool
}

func (f *dirFlags) declare(cmd *cobra.Command) {
	cmd.Flags().
		StringVar(&f.dir, "to-dir", "", "of a mirror: write what would be copied to this empty directory, as manifests, and nothing else")
	cmd.Flags().BoolVar(&f.secrets, "with-secrets", false, "with --to-dir: write Secrets too, in files that only you can read")
}

// fit refuses files for what is no mirror.
func (f *dirFlags) fit(g *given) error {
	_, copies := g.job.(mirrorJob)
	switch {
	case f.dir != "" && !copies:
		return &command.UsageError{Problem: "--to-dir is for spec.mirror", Hint: "leave it out: plan -o yaml prints every object and patch"}
	case f.secrets && f.dir == "":
		return &command.UsageError{Problem: "--with-secrets is for --to-dir", Hint: "add --to-dir DIR"}
	}
	return nil
}

func (o *planOptions) writeDir(ctx context.Context, j job) error {
	w, err := j.(mirrorJob).WriteDir(ctx, o.to.dir, o.to.secrets)
	if err != nil {
		return ofJob(j, err)
	}
	if w.Secrets > 0 {
		o.Hint("%s left out; --with-secrets writes them too", english.Plural(w.Secrets, "Secret was", "Secrets were"))
	}
	return o.Done(o.format,
		fmt.Sprintf("%s written to %s; kubectl apply -k %s applies them in order", english.Plural(w.Files, "manifest", ""), o.to.dir, o.to.dir),
	)
}
