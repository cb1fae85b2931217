package cli

import (
	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/safety/freeze"
)

func (a *app) unfreeze() *cobra.Command {
	cmd := &cobra.Command{
		Use: "unfreeze", Short: "Lift the freeze of Services in flight, and of deployments", Args: noArgs,
		Long: `Remove the policies that keep others from changing Services in flight, and from deploying to a cluster that is
being copied.

The migration itself can go on: it follows changes by others where it can, and else stops and says so. The next apply
freezes again, unless the Migration says spec.freeze: Disabled.`,
		Example: a.example("  replumb unfreeze"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.reach(cmd.Context())
			if err != nil {
				return err
			}
			lift := []engine.Step{(&freeze.Step{Client: c.Cluster}).Undo(), (&freeze.Deploys{Client: c.Cluster}).Undo()}
			plan := &engine.Plan{Name: "unfreeze", Phases: []engine.Phase{{
				Name: "unfreeze", Title: lift[0].Title(), Groups: []engine.Group{{Parallel: 1, Steps: lift}},
			}}}
			if err := a.runner().Run(cmd.Context(), plan); err != nil {
				return err
			}
			return a.done("nothing is frozen")
		},
	}
	a.outputFlag(cmd, "table", "json")
	return cmd
}
