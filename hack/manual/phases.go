package main

import (
	"fmt"
	"strings"

	"github.com/replumb/replumb/hack/manual/page"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
)

// phases is the page of the phases of all kinds of migrations.
func phases(string) (string, error) {
	var b strings.Builder
	b.WriteString("# Phases\n\nWhat each command goes through, in order. `apply --until PHASE` ends after one, hooks name one, and " +
		"`status.stage` has the last that was run. A phase in which nothing is to do is left out of a plan. " + generated + "\n")
	for _, kind := range migrations.All() {
		for _, o := range kind.Outlines {
			title := "spec." + kind.Field
			if o.Where != "" {
				title += ", " + o.Where
			}
			fmt.Fprintf(&b, "\n## %s\n", title)
			outline(&b, "apply", o.Apply)
			outline(&b, "rollback", o.Rollback)
			outline(&b, "finish", o.Finish)
		}
	}
	return b.String(), nil
}

// outline is one command of one kind.
func outline(b *strings.Builder, name string, all []migration.PhaseTitle) {
	fmt.Fprintf(b, "\n### %s\n\n| phase | what it does |\n|---|---|\n", name)
	for _, p := range all {
		fmt.Fprintf(b, "| `%s` | %s |\n", p.Name, page.Cell(p.Title))
	}
}
