package incluster

import (
	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/kube/etcdrelay"
)

// etcd has connections to the etcd of a control plane begin on it.
func (n node) etcd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "etcd", Short: "Reach the etcd of a control plane that kubeadm made", Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "wait", Short: "Do nothing until interrupted", Args: command.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				<-cmd.Context().Done()
				return nil
			},
		},
		&cobra.Command{
			Use: "connect", Short: "Connect stdin and stdout to it, with the certificate of its API server", Args: command.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return etcdrelay.Serve(cmd.Context(), etcdrelay.Files(), etcdrelay.Local(), n.In, n.Out.To)
			},
		},
	)
	return cmd
}
