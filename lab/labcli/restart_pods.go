package labcli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/lab/lab"
)

func newRestartControllerManager(s streams) *cobra.Command {
	var name, clusterCIDR string
	var allocate bool
	cmd := &cobra.Command{
		Use:   "controller-manager",
		Short: "Restart the controller managers, with another range of pods, or giving nodes none",
		Long: `Restart the controller managers, one control plane after the other, with --allocate-node-cidrs as given and, if asked,
with another --cluster-cidr; and wait until one of them leads, which takes about 15 s. One that allocates does not start as
long as any Node has a range outside of --cluster-cidr.`,
		Example: `  replumb-lab restart controller-manager --allocate-node-cidrs=false
  replumb-lab restart controller-manager --allocate-node-cidrs --cluster-cidr 10.245.0.0/16`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			to, err := parseRanges("cluster-cidr", clusterCIDR, "10.244.0.0/16")
			if err != nil {
				return err
			}
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			start := time.Now()
			if err := l.ControlPlaneNodes().RestartControllerManagers(cmd.Context(), allocate, to...); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(s.err, "restarted the controller managers in %s\n", time.Since(start).Round(100*time.Millisecond))
			return nil
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().BoolVar(&allocate, "allocate-node-cidrs", true, "give nodes ranges from now on")
	cmd.Flags().StringVar(&clusterCIDR, "cluster-cidr", "", "range of pod addresses from now on")
	return cmd
}

func newRestartProxy(s streams) *cobra.Command {
	var name, clusterCIDR string
	cmd := &cobra.Command{
		Use:     "kube-proxy",
		Short:   "Restart kube-proxy on every node, with another range that it takes for pods",
		Example: "  replumb-lab restart kube-proxy --cluster-cidr 10.244.0.0/15",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			to, err := parseRanges("cluster-cidr", clusterCIDR, "10.244.0.0/16")
			if err != nil {
				return err
			}
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			if len(to) == 0 {
				to = l.Topology.PodCIDRs()
			}
			if err := l.Workers().RestartProxies(cmd.Context(), to...); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(s.err, "restarted kube-proxy on every node with %s\n", to)
			return nil
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().StringVar(&clusterCIDR, "cluster-cidr", "", "range taken for pods (default: the one the lab was born with)")
	return cmd
}
