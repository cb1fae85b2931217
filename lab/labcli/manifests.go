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
	cmd.AddCommand(
		s.manifestsOf(&cobra.Command{
			Use:   "calico",
			Short: "Print the manifests of Calico, for a lab with flannel",
			Long: `Print the manifests of Calico, for a lab with flannel: its definitions, rights, a DaemonSet, and a pool. kubectl does not
take resources of kinds that it is given in the same breath: apply them twice.`,
			Example: `  replumb-lab manifests calico --name flannel --pod-cidr 10.245.0.0/16 > calico.yaml
  kubectl apply --server-side -f calico.yaml || kubectl apply --server-side -f calico.yaml`,
		}, "10.245.0.0/16", lab.CalicoManifests),
		s.manifestsOf(&cobra.Command{
			Use:   "cilium",
			Short: "Print the manifests of Cilium, for a lab with flannel that was made for it",
			Example: `  replumb-lab up --name flannel --cni flannel --beside cilium
  replumb-lab manifests cilium --name flannel --pod-cidr 10.246.0.0/16 > cilium.yaml`,
		}, "10.246.0.0/16", lab.CiliumManifests),
		s.manifestsOf(&cobra.Command{
			Use:     "flannel",
			Short:   "Print the manifests of flannel, for a lab that came up with flannel and has another network now",
			Example: `  replumb-lab manifests flannel --name flannel > flannel.yaml`,
		}, "", lab.FlannelManifests),
	)
	return cmd
}

// manifestsOf has a command print the manifests of a network, with the range of its flag or, without such a flag, that of the lab's pods.
func (s streams) manifestsOf(cmd *cobra.Command, podCIDR string, of func(*lab.Lab, netip.Prefix) ([]byte, error)) *cobra.Command {
	var name string
	nameFlag(cmd, &name)
	text := podCIDR
	if podCIDR != "" {
		cmd.Flags().StringVar(&text, "pod-cidr", podCIDR, "range of pods")
	}
	cmd.Args = args(cobra.NoArgs)
	cmd.RunE = func(*cobra.Command, []string) error {
		l, err := lab.Open(name)
		if err != nil {
			return err
		}
		cidr := l.Topology.PodCIDR
		if text != "" {
			if cidr, err = netip.ParsePrefix(text); err != nil {
				return &lab.InvalidError{
					Field: "pod-cidr", Problem: fmt.Sprintf("%q is not a range of addresses", text), Hint: "write it like " + podCIDR,
				}
			}
		}
		manifests, err := of(l, cidr)
		if err != nil {
			return err
		}
		_, err = s.out.Write(manifests)
		return err
	}
	return cmd
}
