package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations/cni"
	"github.com/replumb/replumb/internal/migrations/mirror"
	"github.com/replumb/replumb/internal/migrations/nodes"
	"github.com/replumb/replumb/internal/migrations/podcidr"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// explanation is what the registry says of a check.
type explanation struct {
	Code     string            `json:"code"`
	Group    string            `json:"group"`
	Severity findings.Severity `json:"severity"`
	Claim    string            `json:"claim"`
	Why      string            `json:"why"`
	Fix      string            `json:"fix"`
}

func (a *app) explainCode() *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain CODE", Short: "Explain a finding by its code",
		Long: `Explain a finding by its code: what is checked, why it matters and what to do. No cluster is needed.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &UsageError{Problem: "name one code", Hint: "known codes: " + codes()}
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return strings.Fields(codes()), cobra.ShellCompDirectiveNoFileComp
		},
		Example: a.example("  replumb explain RP1203\n  replumb explain RP1203 -o json"),
		RunE: func(_ *cobra.Command, args []string) error {
			e, ok := explanations()[strings.ToUpper(args[0])]
			if !ok {
				return &UsageError{Problem: fmt.Sprintf("code %q is not known", args[0]), Hint: "known codes: " + codes()}
			}
			if a.output != "table" {
				return terminal.Document(a.out, a.output, e)
			}
			fmt.Fprintf(a.out, "%s (%s, %s)\n\nclaim: %s\nwhy:   %s\nfix:   %s\n", e.Code, e.Group, e.Severity, e.Claim, e.Why, e.Fix)
			return nil
		},
	}
	a.outputFlag(cmd, "table", "json", "yaml")
	return cmd
}

// codes lists the codes of all checks.
func codes() string { return strings.Join(slices.Sorted(maps.Keys(explanations())), " ") }

// explanations of all kinds of migrations, by code.
func explanations() map[string]explanation {
	all := map[string]explanation{}
	explain(all, servicecidr.Checks())
	explain(all, podcidr.Checks())
	explain(all, nodes.Checks())
	explain(all, mirror.Checks())
	explain(all, cni.Checks())
	return all
}

func explain[Input any](all map[string]explanation, checks []findings.Check[Input]) {
	for _, c := range checks {
		all[c.Code] = explanation{Code: c.Code, Group: c.Group, Severity: c.Severity, Claim: c.Claim, Why: c.Why, Fix: c.Fix}
	}
}
