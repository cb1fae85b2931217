package main

import (
	"fmt"
	"strings"

	"github.com/replumb/replumb/hack/manual/page"
	"github.com/replumb/replumb/internal/reporting/metrics"
)

// metricsPage is the page of the metrics.
func metricsPage(string) (string, error) {
	all, err := metrics.Descriptions()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("# Metrics\n\nWhat a run serves with `--metrics-address`, and the operator with `--metrics-bind-address`. " + generated +
		" `deploy/monitoring` has alerts and a dashboard that go by these.\n\n| name | type | labels | meaning |\n|---|---|---|---|\n")
	for _, d := range all {
		labels := make([]string, len(d.Labels))
		for i, l := range d.Labels {
			labels[i] = page.Code(l)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, strings.Join(labels, ", "), page.Cell(d.Help))
	}
	return b.String(), nil
}
