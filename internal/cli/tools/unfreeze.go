package tools

import (
	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
)

// Unfreeze lifts what keeps others from changing Services and from deploying.
func Unfreeze(a *command.App) *cobra.Command {
	var format command.Format
	cmd := &cobra.Command{
		Use: "unfreeze", Short: "Lift the freeze of Services in flight and of deployments, and resume Argo CD and Flux", Args: command.NoArgs,
		Long: `Remove the policies that keep others from changing Services in flight, and from deploying while a migration is
in flight, and resume what it has suspended of Argo CD and Flux, as it was before. A field that its owner has changed
since is left as it is, and named.

The migration itself can go on: it follows changes by others where it can, and else stops and says so. The next
apply freezes again, unless the Migration says spec.freeze: Disabled, or has no spec.deploymentFreeze.`,
		Example: a.Example("  replumb unfreeze"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.Reach(cmd.Context())
			if err != nil {
				return err
			}
			lift, err := migration.Lift(c.Cluster)
			if err != nil {
				return err
			}
			plan := &engine.Plan{Name: "unfreeze", Phases: []engine.Phase{{
				Name: "unfreeze", Title: lift[0].Title(), Groups: []engine.Group{{Parallel: 1, Steps: lift}},
			}}}
			if err := a.Runner(format).Run(cmd.Context(), plan); err != nil {
				return err
			}
			return a.Done(format, "nothing is frozen")
		},
	}
	format.Declare(cmd, "table", "json")
	return cmd
}
