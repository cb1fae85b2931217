package migrate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

func (o *checkOptions) checkSet(ctx context.Context, s *set) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	looks, _, err := s.look(ctx)
	if err != nil {
		return err
	}
	named := s.found(looks)
	found, score := unnamed(named), s.score(looks)
	switch o.format.Name {
	case "table", "wide":
		return o.showChecks(ctx, s, looks)
	case "name":
		for _, code := range found.Codes() {
			fmt.Fprintln(o.Out, code)
		}
		return o.objection(score)
	}
	return cmp.Or(o.format.Print(o.Out.Verbatim(), checkDocumentOf(ctx, s.c, named, score)), o.objection(score))
}

// score counts the checks of each migration, and those between them.
func (s *set) score(looks []*migration.Inspection) findings.Score {
	sum := s.between(looks).Score()
	for _, look := range looks {
		if look != nil {
			sum = sum.Plus(look.Findings.Score())
		}
	}
	return sum
}

func (o *checkOptions) showChecks(ctx context.Context, s *set, looks []*migration.Inspection) error {
	if err := s.c.Introduce(ctx, s.Out); err != nil {
		return err
	}
	show := func(title string, all findings.Findings) error {
		fmt.Fprintf(s.Out, "== %s\n", title)
		if err := o.list(all); !errors.As(err, new(*findings.ObjectionError)) {
			return err
		}
		return nil
	}
	err := show("between the migrations", s.between(looks))
	for i := range s.members {
		if looks[i] == nil {
			fmt.Fprintf(s.Out, "== %s\nnothing to do: %s\n", s.heading(i), s.spared(i))
			continue
		}
		err = errors.Join(err, show(s.heading(i), looks[i].Findings))
	}
	if err != nil {
		return err
	}
	score := s.score(looks)
	list, w := o.Checklist(o.all)
	fmt.Fprintln(s.Out, "== in all")
	list.Verdict(w, score)
	return command.Told(score.Objection(""))
}

func (s *set) heading(i int) string {
	return fmt.Sprintf("%d. %s (%s)", i+1, s.members[i].Name, s.members[i].moves())
}

func (o *planOptions) planSet(ctx context.Context, s *set) error {
	if err := oneOnly(only(o.to.dir != "", "--to-dir"), only(o.until != "", "--until")); err != nil {
		return err
	}
	if err := s.reach(ctx); err != nil {
		return err
	}
	looks, jobs, err := s.look(ctx)
	if err != nil {
		return err
	}
	if o.format.ForPeople() || o.format.Name == "markdown" {
		err = o.showPlans(ctx, s, looks, jobs)
	} else {
		err = s.planDocuments(ctx, looks)
	}
	return cmp.Or(err, s.score(looks).Objection(fixesByCheck))
}

func (s *set) planDocuments(ctx context.Context, looks []*migration.Inspection) error {
	var docs []planDocument
	for _, look := range looks {
		if look == nil {
			continue
		}
		doc, err := planOf(ctx, s.c, *look)
		if err != nil {
			return err
		}
		docs = append(docs, doc)
	}
	return s.format.Print(s.Out.Verbatim(), command.ListOf(docs))
}

func (o *planOptions) showPlans(ctx context.Context, s *set, looks []*migration.Inspection, jobs []migrations.Job) error {
	headed := s.format.Name != "name"
	if headed {
		fmt.Fprintln(s.Out, "One plan of several migrations, one after the other. Each is planned again when its turn has come.")
		terminal.Attention(s.Out, command.SpokenFindings(s.Name, s.between(looks)))
	}
	for i, look := range looks {
		if headed {
			fmt.Fprintf(s.Out, "\n== %s\n", s.heading(i))
		}
		switch {
		case look != nil:
			if err := o.show(ctx, s.c, jobs[i], *look); err != nil && !errors.As(err, new(*findings.ObjectionError)) {
				return err
			}
		case headed:
			fmt.Fprintf(s.Out, "nothing to do: %s\n", s.spared(i))
		}
	}
	return nil
}

func (o *statusOptions) statusSet(ctx context.Context, s *set) error {
	w := o.Stdout(o.format)
	if err := s.reach(ctx); err != nil {
		return err
	}
	var pages []*statusDocument
	for _, of := range s.members {
		doc, err := s.pageOf(ctx, of)
		if err != nil {
			return err
		}
		pages = append(pages, doc)
	}
	if !o.format.ForPeople() {
		return o.format.Print(w, command.ListOf(pages))
	}
	if o.format.Name != "name" {
		if err := errors.Join(s.c.Introduce(ctx, w), s.introduceSet(w)); err != nil {
			return err
		}
	}
	for _, doc := range pages {
		var err error
		switch o.format.Name {
		case "name":
			_, err = fmt.Fprintln(w, "migration.replumb.dev/"+doc.Migration)
		case "wide":
			fmt.Fprintln(w)
			err = showStatus(w, doc, everyRow, o.Name)
		default:
			fmt.Fprintln(w)
			err = showStatus(w, doc, shownRows, o.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *set) pageOf(ctx context.Context, of member) (*statusDocument, error) {
	if of.have == nil {
		return &statusDocument{statusHead{
			DocumentHead: command.HeadOf("MigrationStatus", of.Name), Migration: of.Name, Next: s.Name + " apply -f FILE", found: migration.StatusDocument{Summary: "not begun"},
		}}, nil
	}
	j, err := s.silentJob(s.c, of.have)
	if err != nil {
		return nil, err
	}
	doc, err := s.statusOf(ctx, s.c, j)
	if err != nil {
		return nil, ofJob(j, err)
	}
	return doc, nil
}

type setReport struct {
	command.DocumentHead `json:",inline"`
	Made                 time.Time      `json:"made"`
	Summary              string         `json:"summary"`
	Migrations           []setReportRow `json:"migrations"`
}

type setReportRow struct {
	Migration          string `json:"migration"`
	command.ReportPart `json:",inline"`
}

func (o *reportOptions) reportSet(ctx context.Context, s *set) error {
	if o.file != "" {
		return oneOnly("--file")
	}
	if err := s.reach(ctx); err != nil {
		return err
	}
	doc := setReport{DocumentHead: command.HeadOf("SetReport", s.members[0].Name), Made: time.Now().UTC().Truncate(time.Second)}
	var parts []command.ReportPart
	for _, of := range s.members {
		row := setReportRow{Migration: of.Name}
		if of.have != nil {
			page, err := o.reportOf(ctx, of.Name)
			if err != nil {
				return err
			}
			if err := row.take(page); err != nil {
				return err
			}
			if err := o.writePart(page); err != nil {
				return err
			}
		}
		doc.Migrations, parts = append(doc.Migrations, row), append(parts, row.ReportPart)
	}
	doc.Summary = command.Summarize(parts, "migration")
	switch o.format.Name {
	case "html":
		return o.listParts(doc)
	case "markdown":
		_, err := fmt.Fprintf(o.Out, "\n**%s**\n", doc.Summary)
		return err
	}
	return o.format.Print(o.Out.Verbatim(), doc)
}

func (r *setReportRow) take(page *htmlreport.Document) (err error) {
	r.Summary = page.Summary
	if page.Requests != nil {
		r.Sent, r.Failed = page.Requests.Sent, page.Requests.Failed
		r.Late, r.NotMeasured = page.Requests.Late, page.Requests.NotMeasured
	}
	r.Report, err = json.Marshal(page)
	return err
}

// writePart writes the page of one migration, in the formats that have one for each.
func (o *reportOptions) writePart(page *htmlreport.Document) error {
	switch o.format.Name {
	case "html":
		return writeReport(page.Migration+".html", page)
	case "markdown":
		return page.Markdown(o.Out)
	}
	return nil
}

func (o *reportOptions) listParts(doc setReport) error {
	rows := [][]string{{"MIGRATION", "WHAT HAPPENED"}}
	var files []string
	for _, row := range doc.Migrations {
		rows = append(rows, []string{row.Migration, cmp.Or(row.Summary, "not begun")})
		if row.Report != nil {
			files = append(files, row.Migration+".html")
		}
	}
	fmt.Fprintln(o.Out, doc.Summary)
	err := terminal.Table(o.Out, rows)
	for _, file := range files {
		fmt.Fprintln(o.Out, file)
	}
	return err
}
