package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

func (a *app) controller() *cobra.Command {
	cmd := &cobra.Command{
		Use: "controller", Short: "Keep bridges like their Services between commands", Args: noArgs,
		Long: `Copy the endpoints of Services without selector, kubernetes among them, to their bridges whenever they change, until
interrupted. apply, rollback and finish do so themselves while they run; this is for the time in between, in a terminal
or in the cluster.`,
		Example: a.example("  replumb controller\n  replumb controller --context production"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.reach(cmd.Context())
			if err != nil {
				return err
			}
			_, stop, err := a.measure(cmd.Context(), c.identity(cmd.Context()), countsOf(c, ""))
			if err != nil {
				return err
			}
			defer stop()
			fmt.Fprintln(a.err, "following the endpoints of Services without selector")
			bridge.Follow(cmd.Context(), c.Cluster, "", func(err error) {
				if err == nil {
					fmt.Fprintln(a.err, "all copies of endpoints are up to date again")
					return
				}
				fmt.Fprintln(a.err, "copies of endpoints are out of date:", err)
			})
			return engine.ErrInterrupted
		},
	}
	a.metricsFlag(cmd)
	return cmd
}
