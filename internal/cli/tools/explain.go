package tools

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrationset"
)

// Explain prints what a finding means.
func Explain(a *command.App) *cobra.Command {
	var format command.Format
	cmd := &cobra.Command{
		Use: "explain CODE", Short: "Explain a finding by its code",
		Long: `Explain a finding by its code: what is checked, why it matters and what to do. No cluster is needed.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &command.UsageError{Problem: "name one code", Hint: "known codes: " + codes()}
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return strings.Fields(codes()), cobra.ShellCompDirectiveNoFileComp
		},
		Example: a.Example("  replumb explain RP1203\n  replumb explain RP1203 -o json"),
		RunE: func(_ *cobra.Command, args []string) error {
			e, ok := explanations()[strings.ToUpper(args[0])]
			if !ok {
				return &command.UsageError{Problem: fmt.Sprintf("code %q is not known", args[0]), Hint: "known codes: " + codes()}
			}
			if format.Name != "table" {
				return format.Print(a.Out.Verbatim(), e)
			}
			_, err := fmt.Fprintf(a.Out, "%s (%s, %s)\n\nclaim: %s\nwhy:   %s\nfix:   %s\n",
				e.Code, e.Group, e.Severity, e.Claim, e.Why, command.Spoken(a.Name, e.Fix))
			return err
		},
	}
	format.DeclareDocument(cmd, "table", "json", "yaml")
	return cmd
}

func codes() string { return strings.Join(slices.Sorted(maps.Keys(explanations())), " ") }

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
