package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

func (a *app) report() *cobra.Command {
	target := ""
	cmd := &cobra.Command{
		Use: "report NAME", Short: "Write what happened in a migration, for people", Args: oneName,
		Long: `Write what happened in a migration as one file of HTML, which opens in a browser without a network: a summary, a timeline of
phases and batches above availability and latency, every loss, every Service, gates, findings, and who still uses old
addresses. It can be made while the migration goes on, and afterwards for as long as the Migration is in the cluster.

-o names the file; without it, it is NAME.html. A file that is there is replaced. -o - writes the HTML to stdout, -o json
the same as a document for programs.`,
		Example: a.example(`
  replumb report services-to-172-24                  # writes services-to-172-24.html
  replumb report services-to-172-24 -o /tmp/move.html
  replumb report services-to-172-24 -o json | jq .requests`),
		RunE: func(cmd *cobra.Command, args []string) error {
			doc, err := a.reportOf(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			switch target {
			case "json":
				return terminal.Document(verbatim{a.out}, "json", doc)
			case "-":
				return doc.HTML(verbatim{a.out})
			case "":
				target = args[0] + ".html"
			}
			if err := writeReport(target, doc); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.out, "%s\n%s\n", doc.Summary, target)
			return err
		},
	}
	cmd.Flags().StringVarP(&target, "output", "o", "", "file to write, - for stdout, or json (default NAME.html)")
	return cmd
}

func (a *app) reportOf(ctx context.Context, name string) (*htmlreport.Document, error) {
	j, c, err := a.lookingJob(ctx, name)
	if err != nil {
		return nil, err
	}
	in, err := htmlreport.Collect(ctx, c.Cluster, j.about().migration)
	if err != nil {
		return nil, ofJob(j, err)
	}
	if s, ok := j.(serviceJob); ok {
		doc, err := s.status(ctx)
		if err != nil {
			return nil, err
		}
		in.Services = htmlreport.Placed(in.Services, reported(doc.(*servicePage)))
	}
	return htmlreport.Build(in), nil
}

// reported are the Services of a status page, as a report has them.
func reported(page *servicePage) []htmlreport.Service {
	var out []htmlreport.Service
	for _, s := range page.Services {
		out = append(out, htmlreport.Service{Name: s.Service, From: s.Old, To: s.New, State: string(s.State), Reason: s.Reason})
	}
	return out
}

// writeReport replaces the file at once: no one gets to see half a report, and the old one stays if this one cannot be written.
func writeReport(path string, doc *htmlreport.Document) error {
	var page bytes.Buffer
	if err := doc.HTML(&page); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".replumb-report-*")
	if err != nil {
		return &fault.Hinted{Err: err, Hint: "name a file in a folder that you may write to, with -o"}
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
