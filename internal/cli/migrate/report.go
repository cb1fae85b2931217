package migrate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/reporting/keptreports"
)

// Report writes what happened in a migration.
func Report(a *command.App) *cobra.Command {
	o := &reportOptions{source: source{App: a}}
	cmd := &cobra.Command{
		Use: "report NAME", Short: "Write what happened in a migration, for people", Args: o.nameOrFile,
		Long: `Write what happened in a migration as one file of HTML, which opens in a browser without a network. It has when
it was, how long it took and who ran it, how many requests failed, a timeline of phases and batches above
availability and latency, every loss, every Service, gates, findings, and who still uses old addresses. It can
be made while the migration goes on, and afterwards. Of a Migration that was deleted, the report is there as it
was when the last command that ran it ended: the cluster keeps those of the last 20 migrations, in namespace
replumb-journal.

Without flags it is written to NAME.html. --file names another file; one that is there is replaced; - is stdout.
-o markdown is its short form, for a ticket; -o json, -o yaml and templates print the same as a document for
programs. -o FILE.html is --file FILE.html.

With -f and several Migrations it prints what happened in each, and how many requests were sent and lost in all,
and writes a file for each.`,
		Example: a.Example(`
  replumb report services-to-172-24                  # writes services-to-172-24.html
  replumb report -f both.yaml                        # of several Migrations, as one report
  replumb report services-to-172-24 --file /tmp/move.html
  replumb report services-to-172-24 -o markdown      # to close a change ticket with
  replumb report services-to-172-24 -o json | jq .requests`),
		RunE: func(cmd *cobra.Command, args []string) error { return o.report(cmd.Context(), args) },
	}
	o.format.DeclareDocument(cmd, "html", "markdown", "json", "yaml")
	o.files.Declare(cmd)
	cmd.Flags().StringVar(&o.file, "file", "", "file to write the HTML to, - for stdout (default NAME.html)")
	known := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		return o.complete(func() error { return known(cmd, args) })
	}
	return cmd
}

const stdout = "-"

type reportOptions struct {
	source
	file   string
	format command.Format
}

// report writes that of one Migration, or of several from files.
func (o *reportOptions) report(ctx context.Context, args []string) error {
	one, several, err := o.fromFiles(o.format, args)
	if err != nil {
		return err
	}
	if several != nil {
		return o.reportSet(ctx, several)
	}
	name := nameIn(args)
	if one != nil {
		name = one.Name
	}
	doc, err := o.reportOf(ctx, name)
	switch {
	case err != nil:
		return err
	case o.format.Name == "markdown":
		return doc.Markdown(o.Out)
	case o.format.Name != "html":
		return o.format.Print(o.Out.Verbatim(), doc)
	case o.file == stdout:
		return doc.HTML(o.Out.Verbatim())
	}
	file := cmp.Or(o.file, name+".html")
	if err := writeReport(file, doc); err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.Out, "%s\n%s\n", doc.Summary, file)
	return err
}

// complete takes what is no format for the file that it names: one of HTML, or stdout.
func (o *reportOptions) complete(known func() error) error {
	if o.format.Name == stdout || strings.HasSuffix(o.format.Name, ".html") {
		if o.file != "" {
			return &command.UsageError{Problem: "-o and --file both name a file", Hint: "leave one of them out"}
		}
		o.file, o.format.Name = o.format.Name, "html"
	}
	if err := known(); err != nil {
		return err
	}
	if o.file != "" && o.format.Name != "html" {
		return &command.UsageError{Problem: "--file is for HTML, and not for -o " + o.format.Name, Hint: "leave it out: other formats go to stdout"}
	}
	return nil
}

func keptReport(ctx context.Context, c *command.Connection, name string) (*htmlreport.Document, error) {
	doc, err := keptreports.NewStore(c.Cluster).Load(ctx, name)
	if apierrors.IsForbidden(err) {
		return nil, &AbsentError{Name: name, Cluster: c.Name()}
	}
	return doc, err
}

func (o *source) reportOf(ctx context.Context, name string) (*htmlreport.Document, error) {
	c, err := o.reach(ctx)
	if err != nil {
		return nil, err
	}
	m, err := migration.Get(ctx, c.Cluster, name)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return keptReport(ctx, c, name)
	}
	j, err := o.silentJob(c, m)
	if err != nil {
		return nil, err
	}
	m = j.About().Migration
	in, err := htmlreport.Collect(ctx, c.Cluster, m, o.Kinds.Of(m).Report(m))
	if err != nil {
		return nil, ofJob(j, err)
	}
	if _, ok := j.(*servicecidr.Job); ok {
		doc, err := migrations.StatusOf(ctx, j)
		if err != nil {
			return nil, err
		}
		in.Counts = &doc.Counts
		if page, ok := doc.Body.(*servicecidr.StatusBody); ok {
			in.Services = htmlreport.Placed(in.Services, reported(page))
		}
	}
	return htmlreport.Build(in), nil
}

func reported(page *servicecidr.StatusBody) []htmlreport.Service {
	var out []htmlreport.Service
	for _, s := range page.Services {
		out = append(out, htmlreport.Service{Name: s.Service, From: s.Old, To: s.New, State: string(s.State), Reason: s.Reason})
	}
	return out
}

// writeReport replaces the file at once: the old one stays if this one cannot be written.
func writeReport(path string, doc *htmlreport.Document) error {
	var page bytes.Buffer
	if err := doc.HTML(&page); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".replumb-report-*")
	if err != nil {
		cause := errors.Unwrap(err) // which does not name the temporary file
		return &fault.Hinted{
			Err: fmt.Errorf("writing %s: %w", path, cmp.Or(cause, err)), Hint: "name a file in a folder that you may write to, with --file",
		}
	}
	_, err = f.Write(page.Bytes())
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
