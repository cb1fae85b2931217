package labcli

import (
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/lab/lab"
)

func newManifests(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "manifests",
		Short: "Print what a lab can be given with kubectl apply",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var name, podCIDR string
	calico := &cobra.Command{
		Use:   "calico",
		Short: "Print the manifests of Calico, for a lab with flannel",
		Long: `Print the manifests of Calico, for a lab with flannel: its definitions, rights, a DaemonSet, and a pool. kubectl does not
take resources of kinds that it is given in the same breath: apply them twice.`,
		Example: `  replumb-lab manifests calico --name flannel --pod-cidr 10.245.0.0/16 > calico.yaml
  kubectl apply --server-side -f calico.yaml || kubectl apply --server-side -f calico.yaml`,
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			cidr, err := netip.ParsePrefix(podCIDR)
			if err != nil {
				return &lab.InvalidError{
					Field: "pod-cidr", Problem: fmt.Sprintf("%q is not a range of addresses", podCIDR), Hint: "write it like 10.245.0.0/16",
				}
			}
			manifests, err := lab.CalicoManifests(l, cidr)
			if err != nil {
				return err
			}
			_, err = s.out.Write(manifests)
			return err
		},
	}
	calico.Flags().StringVar(&podCIDR, "pod-cidr", "10.245.0.0/16", "range of the pool")
	nameFlag(calico, &name)
	cmd.AddCommand(calico)
	return cmd
}
