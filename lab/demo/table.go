package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/replumb/replumb/internal/verify/probe"
)

// maxLosses bounds how many stretches of failures are printed; the result file has all.
const maxLosses = 20

// Table shows the result to people.
func (r Result) Table() string {
	var out strings.Builder
	sides := newTable(
		table.Row{"", "requests", "lost", "late", "not measured", "longest gap", "p50/p99 before", "p50/p99 during", "p50/p99 after"},
	)
	for _, of := range []struct {
		name, how string
		side      Side
	}{
		{replumbSide, "moved by replumb", r.Replumb}, {controlSide, "deleted and recreated", r.Control},
	} {
		sides.AppendRow(row(of.name+": "+of.how, of.side))
		for _, w := range r.Ways {
			if w.Of == of.name {
				sides.AppendRow(row("  "+w.Via, w.Side))
			}
		}
		sides.AppendSeparator()
	}
	out.WriteString(sides.Render() + "\n\n")

	clients := newTable(table.Row{"client on node", "kube-proxy", "requests during the move", "lost"})
	for _, c := range r.Clients {
		clients.AppendRow(table.Row{c.Node, c.Proxy, c.RequestsDuringMove, c.Failed})
	}
	out.WriteString(clients.Render() + "\n")
	fmt.Fprintf(
		&out,
		"\nthis machine: %s\nclients called at %.0f %% of their rates; before anything moved %d of %d requests were lost, and %d late\n",
		r.Machine,
		100*r.Share,
		r.Replumb.Before.Failed,
		r.Replumb.Before.Requests,
		r.Replumb.Before.Late,
	)
	r.writeLosses(&out)
	return out.String()
}

func newTable(header table.Row) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(header)
	var columns []table.ColumnConfig
	for i := range header[1:] {
		columns = append(columns, table.ColumnConfig{Number: i + 2, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	return t
}

func row(name string, s Side) table.Row {
	return table.Row{
		name,
		s.Requests,
		s.Failed,
		s.Late,
		s.NotMeasured,
		duration(s.LongestGapMs),
		percentiles(s.Before),
		percentiles(s.During),
		percentiles(s.After),
	}
}

func percentiles(p Phase) string {
	if p.Requests == p.Failed {
		return "-"
	}
	return fmt.Sprintf("%.1f/%.1f ms", p.P50Ms, p.P99Ms)
}

func duration(ms float64) string {
	if ms >= 10_000 {
		return fmt.Sprintf("%.1f s", ms/1000)
	}
	return fmt.Sprintf("%.0f ms", ms)
}

func (r Result) writeLosses(out *strings.Builder) {
	if len(r.Losses) == 0 {
		return
	}
	lost := newTable(table.Row{"lost", "from node", "from", "to", "failed", "why"})
	for _, l := range r.Losses[:min(maxLosses, len(r.Losses))] {
		lost.AppendRow(table.Row{l.Target, l.Node, clock(l.Start), clock(l.End), l.Failed, probe.FormatErrors(l.Errors)})
	}
	out.WriteString("\n" + lost.Render() + "\n")
	if more := len(r.Losses) - maxLosses; more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
}

func clock(t time.Time) string { return t.Format("15:04:05.000") }
