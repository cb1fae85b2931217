package tools

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrationset"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// Explain prints what a finding means, or the findings that some words are about.
func Explain(a *command.App) *cobra.Command {
	var format command.Format
	cmd := &cobra.Command{
		Use: "explain [CODE | WORD...]", Short: "Explain a finding by its code, or search for one",
		Long: `Explain a finding by its code: what is checked, why it matters and what to do. With words it lists the findings
that are about all of them, and with nothing all of them. No cluster is needed.`,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return codes(), cobra.ShellCompDirectiveNoFileComp
		},
		Example: a.Example(`
  replumb explain RP1203
  replumb explain 1203 -o json
  replumb explain kube-proxy          # all that are about it
  replumb explain                     # all`),
		RunE: func(_ *cobra.Command, args []string) error {
			found, err := explained(args)
			switch {
			case err != nil:
				return err
			case format.Name == "table" && named(args):
				e := found[0]
				_, err := fmt.Fprintf(a.Out, "%s (%s, %s)\n\nclaim: %s\nwhy:   %s\nfix:   %s\n",
					e.Code, e.Group, e.Severity, e.Claim, e.Why, command.Spoken(a.Name, e.Fix))
				return err
			case format.Name == "table":
				rows := [][]string{{"CODE", "SEVERITY", "CLAIM"}}
				for _, e := range found {
					rows = append(rows, []string{e.Code, string(e.Severity), e.Claim})
				}
				return terminal.Table(a.Out, rows)
			case named(args):
				return format.Print(a.Out.Verbatim(), found[0])
			}
			return format.Print(a.Out.Verbatim(), command.ListOf(found))
		},
	}
	format.DeclareDocument(cmd, "table", "json", "yaml")
	return cmd
}

var codeLike = regexp.MustCompile(`(?i)^(RP)?\d+$`)

// named reports whether the arguments are one code, which may lack its letters.
func named(args []string) bool { return len(args) == 1 && codeLike.MatchString(args[0]) }

// explained are the finding of a code, or those that have all words in what is said of them.
func explained(args []string) ([]findings.Description, error) {
	all := explanations()
	if named(args) {
		code := "RP" + strings.TrimPrefix(strings.ToUpper(args[0]), "RP")
		if e, ok := all[code]; ok {
			return []findings.Description{e}, nil
		}
		return nil, &command.UsageError{Problem: fmt.Sprintf("code %q is not known", args[0]), Hint: "replumb explain lists all; replumb explain WORD searches"}
	}
	var found []findings.Description
	for _, code := range codes() {
		e := all[code]
		text := strings.ToLower(strings.Join([]string{e.Group, string(e.Severity), e.Claim, e.Why, e.Fix}, " "))
		if !slices.ContainsFunc(args, func(word string) bool { return !strings.Contains(text, strings.ToLower(word)) }) {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return nil, &command.UsageError{
			Problem: fmt.Sprintf("no finding is about %s", strings.Join(args, " ")), Hint: "replumb explain lists all",
		}
	}
	return found, nil
}

func codes() []string { return slices.Sorted(maps.Keys(explanations())) }

func explanations() map[string]findings.Description {
	all := map[string]findings.Description{}
	for _, kind := range append(migrations.All(), migrations.Shared()) {
		for _, c := range kind.Checks {
			all[c.Code] = c
		}
	}
	for _, c := range findings.Describe(migrationset.Checks()) {
		all[c.Code] = c
	}
	return all
}
