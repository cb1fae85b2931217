package incluster

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/network/tunneladdr"
)

// Tunnels runs on every node, in a pod on its network, while tunnels change their addresses.
func Tunnels(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "tunnels", Short: "Keep old addresses of a node's tunnels alive", Hidden: true, Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "hold RANGE...", Short: "Give the loopback interface the addresses of tunnels that lie in the ranges",
			Args: cobra.MinimumNArgs(1),
			RunE: func(_ *cobra.Command, args []string) error { return onLoopback(a, "holding", tunneladdr.Hold, args) },
		},
		&cobra.Command{
			Use: "succeed DEVICE ADDRESS RANGE...", Short: "Hold, and give the interface the address that takes over", Args: cobra.MinimumNArgs(3),
			RunE: func(_ *cobra.Command, args []string) error {
				to, err := netip.ParseAddr(args[1])
				if err != nil {
					return err
				}
				if err := onLoopback(a, "holding", tunneladdr.Hold, args[2:]); err != nil {
					return err
				}
				return tunneladdr.Give(args[0], to)
			},
		},
		&cobra.Command{
			Use: "keep RANGE...", Short: "Wait until interrupted, and take them off again", Args: cobra.MinimumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				<-cmd.Context().Done()
				return errors.Join(onLoopback(a, "released", tunneladdr.Release, args), tunneladdr.RemoveRoutes()) // of a ferry that was killed
			},
		},
		&cobra.Command{
			Use: "board FILE", Short: "Make routes to the pods of other nodes that do not change with tunnels", Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				f, err := ferryOf(args[0])
				if err != nil {
					return err
				}
				return f.Add()
			},
		},
		&cobra.Command{
			Use: "ferry FILE", Short: "Keep them until interrupted and Calico has set its own", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				f, err := ferryOf(args[0])
				if err != nil {
					return err
				}
				return f.Run(cmd.Context(), func(err error) { fmt.Fprintln(a.Err, err) })
			},
		},
	)
	return cmd
}

// ferryOf reads the address that the node's tunnel gets. A node without such a file keeps its own.
func ferryOf(file string) (*tunneladdr.RouteKeeper, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return &tunneladdr.RouteKeeper{}, nil
	}
	if err != nil {
		return nil, err
	}
	at, err := netip.ParseAddr(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &tunneladdr.RouteKeeper{Fresh: at}, nil
}

func onLoopback(a *command.App, verb string, change func([]netip.Prefix) ([]netip.Addr, error), texts []string) error {
	var ranges []netip.Prefix
	for _, text := range texts {
		p, err := cidr.Parse(text)
		if err != nil {
			return err
		}
		ranges = append(ranges, p)
	}
	changed, err := change(ranges)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Out, "%s %v\n", verb, changed)
	return err
}
