package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/together"
)

// checkSet shows the findings of all Migrations, and those between them.
func (a *app) checkSet(ctx context.Context, flags *genericclioptions.PrintFlags, s *set) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	looks, _, err := s.look(ctx)
	if err != nil {
		return err
	}
	found := s.found(looks)
	switch a.output {
	case "table", "wide":
		err = s.showChecks(looks)
	case "name":
		for _, code := range unnamed(found).Codes() {
			fmt.Fprintln(a.out, code)
		}
	default:
		err = printDocument(verbatim{a.out}, a.output, flags, listOf(found))
	}
	return cmp.Or(err, objection(unnamed(found)))
}

func objection(all findings.Findings) error {
	if blocking := all.Objections(); len(blocking) > 0 {
		return &findings.BlockedError{Findings: blocking}
	}
	return nil
}

// showChecks has a heading for each Migration.
func (s *set) showChecks(looks []*outlook) error {
	show := func(title string, all findings.Findings) error {
		fmt.Fprintf(s.out, "== %s\n", title)
		if s.output == "wide" {
			return terminal.WideFindings(s.out, spokenFindings(s.name, all))
		}
		terminal.Findings(s.out, spokenFindings(s.name, all))
		return nil
	}
	err := show("between the migrations", s.between(looks))
	for i := range s.members {
		if looks[i] == nil {
			fmt.Fprintf(s.out, "== %s\nnothing to do: %s\n", s.heading(i), s.spared(i))
			continue
		}
		err = errors.Join(err, show(s.heading(i), looks[i].findings))
	}
	return err
}

func (s *set) heading(i int) string {
	return fmt.Sprintf("%d. %s (%s)", i+1, s.members[i].m.Name, together.Moves(s.members[i].m))
}

// planSet prints what all Migrations would do, in their order.
func (a *app) planSet(ctx context.Context, flags *genericclioptions.PrintFlags, s *set, to dirFlags) error {
	if to.dir != "" {
		return oneOnly("--to-dir")
	}
	if err := s.reach(ctx); err != nil {
		return err
	}
	looks, jobs, err := s.look(ctx)
	if err != nil {
		return err
	}
	if a.isDocument() {
		err = s.planDocuments(ctx, flags, looks)
	} else {
		err = s.showPlans(ctx, flags, looks, jobs)
	}
	return cmp.Or(err, objection(unnamed(s.found(looks))))
}

func (s *set) planDocuments(ctx context.Context, flags *genericclioptions.PrintFlags, looks []*outlook) error {
	var docs []planDocument
	for _, look := range looks {
		if look == nil {
			continue
		}
		doc, err := s.planOf(ctx, s.c, *look)
		if err != nil {
			return err
		}
		docs = append(docs, doc)
	}
	return printDocument(verbatim{s.out}, s.output, flags, listOf(docs))
}

func (s *set) showPlans(ctx context.Context, flags *genericclioptions.PrintFlags, looks []*outlook, jobs []job) error {
	headed := s.output != "name"
	if headed {
		fmt.Fprintln(s.out, "One plan of several migrations, one after the other. Each is planned again when its turn has come.")
		terminal.Attention(s.out, spokenFindings(s.name, s.between(looks)))
	}
	for i, look := range looks {
		if headed {
			fmt.Fprintf(s.out, "\n== %s\n", s.heading(i))
		}
		switch {
		case look != nil:
			if err := s.showPlan(ctx, flags, s.c, jobs[i], *look); err != nil && asBlocked(err) == nil {
				return err
			}
		case headed:
			fmt.Fprintf(s.out, "nothing to do: %s\n", s.spared(i))
		}
	}
	return nil
}

// isDocument reports whether a plan is for programs.
func (a *app) isDocument() bool {
	switch a.output {
	case "table", "wide", "name", "markdown":
		return false
	}
	return true
}

// unbegun is the status page of a Migration that the cluster does not have.
type unbegun struct {
	statusHead `json:",inline"`
}

func (*unbegun) table(io.Writer, int) error { return nil }

// statusSet shows where each Migration stands, in their order.
func (a *app) statusSet(ctx context.Context, w io.Writer, flags *genericclioptions.PrintFlags, s *set) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	var pages []page
	for _, of := range s.members {
		doc, err := s.pageOf(ctx, of)
		if err != nil {
			return err
		}
		pages = append(pages, doc)
	}
	if a.output != "table" && a.output != "wide" && a.output != "name" {
		return printDocument(w, a.output, flags, listOf(pages))
	}
	if a.output != "name" {
		if err := s.introduceSet(w); err != nil {
			return err
		}
	}
	for _, doc := range pages {
		var err error
		switch a.output {
		case "name":
			_, err = fmt.Fprintln(w, "migration.replumb.dev/"+doc.headOf().Migration)
		case "wide":
			fmt.Fprintln(w)
			err = showStatus(w, doc, everyRow, a.name)
		default:
			fmt.Fprintln(w)
			err = showStatus(w, doc, shownRows, a.name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *set) pageOf(ctx context.Context, of member) (page, error) {
	if of.have == nil {
		return &unbegun{statusHead{
			objectHead: headed("MigrationStatus", of.m.Name), Migration: of.m.Name, Next: s.name + " apply -f FILE", summary: "not begun",
		}}, nil
	}
	j, err := s.silentJob(s.c, of.have)
	if err != nil {
		return nil, err
	}
	doc, err := statusOf(ctx, s.c, j)
	if err != nil {
		return nil, ofJob(j, err)
	}
	return doc, nil
}

// setReport is what happened in all Migrations of a set.
type setReport struct {
	objectHead `json:",inline"`
	Made       time.Time      `json:"made"`
	Summary    string         `json:"summary"`
	Migrations []setReportRow `json:"migrations"`
}

type setReportRow struct {
	Migration  string `json:"migration"`
	reportPart `json:",inline"`
}

// reportSet prints one report of all Migrations. For people it also writes the whole report of each as a file of HTML.
func (a *app) reportSet(ctx context.Context, to *reportFlags, s *set) error {
	if to.file != "" {
		return oneOnly("--file")
	}
	if err := s.reach(ctx); err != nil {
		return err
	}
	doc := setReport{objectHead: headed("SetReport", s.members[0].m.Name), Made: time.Now().UTC().Truncate(time.Second)}
	var parts []reportPart
	var files []string
	for _, of := range s.members {
		row := setReportRow{Migration: of.m.Name}
		if of.have != nil {
			page, err := a.reportOf(ctx, of.m.Name)
			if err != nil {
				return err
			}
			row.Summary = page.Summary
			if row.Report, err = json.Marshal(page); err != nil {
				return err
			}
			if page.Requests != nil {
				row.Sent, row.Failed = page.Requests.Sent, page.Requests.Failed
				row.Late, row.NotMeasured = page.Requests.Late, page.Requests.NotMeasured
			}
			if to.format.Name == "html" {
				if err := writeReport(of.m.Name+".html", page); err != nil {
					return err
				}
				files = append(files, of.m.Name+".html")
			}
		}
		doc.Migrations, parts = append(doc.Migrations, row), append(parts, row.reportPart)
	}
	doc.Summary = summarize(parts, "migration")
	if to.format.Name != "html" {
		return to.format.Print(a.Out.Verbatim(), doc)
	}
	rows := [][]string{{"MIGRATION", "WHAT HAPPENED"}}
	for _, row := range doc.Migrations {
		rows = append(rows, []string{row.Migration, cmp.Or(row.Summary, "not begun")})
	}
	fmt.Fprintln(a.out, doc.Summary)
	err := terminal.Table(a.out, rows)
	for _, file := range files {
		fmt.Fprintln(a.out, file)
	}
	return err
}
