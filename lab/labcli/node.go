package labcli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/lab/lab"
)

func newNode(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Add machines to a lab, reboot them and take them away, as a cloud does",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNodeAdd(s), newNodeReboot(s), newNodeRemove(s))
	return cmd
}

func newNodeAdd(s streams) *cobra.Command {
	var name, proxy, role string
	var j lab.Joining
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Start a worker or a control plane, and print its name",
		Long: `Start a worker, and print its name when its node is Ready; or a control plane, and print its name and the URL of its
etcd when its machine is up. That etcd is not made a member of the cluster's: as long as it is not, it and the API
server end and are started again.`,
		Example: `  replumb-lab node add
  replumb-lab node add --name vpc --network b --proxy nftables
  replumb-lab node add --name vpc --network b --role control-plane`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			j.Proxy = lab.ProxyMode(proxy)
			return addNode(cmd.Context(), s, l, lab.Role(role), j)
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().StringVar(&j.Network, "network", "", "network it is in (default: the first)")
	cmd.Flags().
		StringVar(&proxy, "proxy", "", "its kube-proxy's mode: iptables, nftables (default iptables, or none if other nodes have none)")
	cmd.Flags().StringVar(&role, "role", string(lab.Worker), "what it is: worker, control-plane")
	return cmd
}

func addNode(ctx context.Context, s streams, l *lab.Lab, role lab.Role, j lab.Joining) error {
	switch role {
	case lab.Worker:
		m, err := l.Workers().Add(ctx, j)
		if err != nil {
			return err
		}
		fmt.Fprintln(s.out, m.Name)
	case lab.ControlPlane:
		m, err := l.ControlPlaneNodes().Add(ctx, j.Network)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "%s\t%s\n", m.Name, m.PeerURL())
	default:
		return &lab.InvalidError{
			Field:   "role",
			Problem: fmt.Sprintf("%q is not a role of nodes", role),
			Hint:    "use worker or control-plane",
		}
	}
	return nil
}

func newNodeReboot(s streams) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "reboot NODE...",
		Short: "End all that runs on workers, at once, and start them again, one after the other",
		Long: `End all that runs on a worker at once, as a loss of power does, and start it again with its files. What is only in the kernel or in /run is
lost: interfaces, rules, routes, mounts. Ends when the node is Ready again.`,
		Example: `  replumb-lab node reboot node2`,
		Args:    args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, nodes []string) error {
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			for _, node := range nodes {
				if err := l.Workers().Reboot(cmd.Context(), node); err != nil {
					return err
				}
				_, _ = fmt.Fprintf(s.err, "%s is Ready again\n", node)
			}
			return nil
		},
	}
	nameFlag(cmd, &name)
	return cmd
}

func newNodeRemove(s streams) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "remove NODE...",
		Short: "End workers, at once, and control planes, gracefully, for good",
		Long: `End machines for good: workers at once, and control planes after their programs have ended gracefully. Node objects
and members of etcd stay: to remove those is the cluster's business.`,
		Example: `  kubectl drain node2 --ignore-daemonsets --delete-emptydir-data
  replumb-lab node remove node2
  kubectl delete node node2`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, nodes []string) error {
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			for _, node := range nodes {
				remove := l.Workers().Remove
				if slices.Contains(l.ControlPlanes(), node) {
					remove = l.ControlPlaneNodes().Remove
				}
				if err := remove(cmd.Context(), node); err != nil {
					return err
				}
				_, _ = fmt.Fprintf(s.err, "%s is gone\n", node)
			}
			return nil
		},
	}
	nameFlag(cmd, &name)
	return cmd
}

func newNetwork(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "network",
		Short: "Take networks of a lab away",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var name string
	remove := &cobra.Command{
		Use:     "remove NETWORK",
		Short:   "Take a network away that no node or control plane is in, and its load balancer with it",
		Example: "  replumb-lab network remove --name vpc a",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, networks []string) error {
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			if err := l.Fabrics().RemoveNetwork(cmd.Context(), networks[0]); err != nil {
				return err
			}
			fmt.Fprintf(s.err, "network %s is gone\n", networks[0])
			return nil
		},
	}
	nameFlag(remove, &name)
	cmd.AddCommand(remove)
	return cmd
}
