package labcli

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/lab/demo"
	"github.com/replumb/replumb/lab/lab"
)

func newDemo(s streams) *cobra.Command {
	var replumb, result string
	topology := lab.Default()
	topology.Name = "demo"
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Move a lab's Service range under traffic, beside the naive way",
		Long: `Bring a lab up, run a small shop in it with clients on every node, move every Service to another range with replumb,
and one Service beside it the naive way. Ends with a table of what clients lived through, and with exit code 0 only if
replumb lost nothing and the naive way lost something. The lab is taken down at the end, always.`,
		Example: "  replumb-lab demo --replumb bin/replumb --result build/demo/result.json",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			binary, err := filepath.Abs(replumb)
			if err != nil {
				return err
			}
			r := newReporter(s.err)
			l, err := lab.Up(cmd.Context(), topology, lab.Options{Progress: r.say, Line: r.liner()})
			if err != nil {
				return err
			}
			defer func() {
				// Not the command's context: an interrupted demo is taken down too.
				if _, downErr := lab.Down(context.WithoutCancel(cmd.Context()), topology.Name); downErr != nil && err == nil {
					err = downErr
				}
				_, _ = fmt.Fprintln(s.err, "the lab is down")
			}()
			return demo.Run(cmd.Context(), demo.Options{
				Cluster: l.Workers(), Replumb: binary, From: topology.ServiceCIDR, ProxyModes: l.ProxyModes(), Result: result,
				Out: s.out, Progress: s.err,
			})
		},
	}
	cmd.Flags().StringVar(&replumb, "replumb", "bin/replumb", "the replumb binary to show")
	cmd.Flags().StringVar(&result, "result", "build/demo/result.json", "file to write the result to")
	return cmd
}
