package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/network/masquerade"
	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// nodeInPlace are commands for nodes that have both networks, the old one and the new one.
func (a *app) nodeInPlace() []*cobra.Command {
	return []*cobra.Command{
		a.nodeLeft(
			"standing",
			"Find what keeps the node from having two networks, and from being switched to this one",
			nodecleanup.Host.Inspect,
		),
		a.nodeLeft(
			"origin",
			"Find whether pods of the node have their network from files alone, and what keeps it from leaving that",
			nodecleanup.Host.Origin,
		),
		a.nodeLeft("adopt", "Have the node go by the configuration that a network itself writes", adopt),
		a.nodeLeft("prefer", "Give new pods of the node the network whose configuration lies ready", prefer),
		a.nodeUnprefer(),
		a.nodeCross(),
		a.nodeCrossed(),
		a.nodeUncross(),
		a.nodeServices(),
		a.nodeCilium(),
	}
}

// prefer fails unless the node goes by the network afterwards. It has nothing to report.
func prefer(h nodecleanup.Host, n nodecleanup.Network) (*nodecleanup.Report, error) {
	if err := h.Prefer(n); err != nil {
		return nil, err
	}
	done, err := h.Prefers(n)
	if err == nil && !done {
		err = fmt.Errorf(
			"the node does not go by /etc/cni/net.d/%s, which was just written: did something remove it?",
			nodecleanup.Preferred,
		)
	}
	return &nodecleanup.Report{}, err
}

// adopt has nothing to report.
func adopt(h nodecleanup.Host, n nodecleanup.Network) (*nodecleanup.Report, error) {
	return &nodecleanup.Report{}, h.Adopt(n)
}

func (a *app) nodeUnprefer() *cobra.Command {
	var root, file string
	cmd := &cobra.Command{
		Use: "unprefer", Short: "Give new pods of the node the network that its own files say", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := (nodecleanup.Host{Root: root}).Unprefer(); err != nil {
				return err
			}
			return a.reportTo(file, &nodecleanup.Report{})
		},
	}
	cmd.Flags().StringVar(&root, "root", "/host", "where the root of the node is mounted")
	cmd.Flags().StringVar(&file, "report", "", "file to write the report to; none means stdout")
	return cmd
}

func (a *app) nodeCross() *cobra.Command {
	return between("cross", "Keep the addresses of pods on their way to the other network, until interrupted, and after",
		func(cmd *cobra.Command, pairs []masquerade.Pair) error {
			return masquerade.Maintain(cmd.Context(), pairs, masquerade.Every, func(err error) { fmt.Fprintln(a.err, err) })
		})
}

func (a *app) nodeCrossed() *cobra.Command {
	return between("crossed", "Succeed if the node keeps them", func(_ *cobra.Command, pairs []masquerade.Pair) error {
		return masquerade.Check(pairs)
	})
}

// between is a command about the ways between ranges of pods.
func between(use, short string, do func(*cobra.Command, []masquerade.Pair) error) *cobra.Command {
	var texts []string
	cmd := &cobra.Command{
		Use: use, Short: short, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ranges, err := prefixes(texts)
			var pairs []masquerade.Pair
			if err == nil {
				pairs, err = masquerade.Pairs(ranges)
			}
			if err != nil {
				return &UsageError{
					Problem: "--ranges: " + err.Error(),
					Hint:    "it takes those of the pods of both networks, such as 10.244.0.0/16,192.168.0.0/16",
				}
			}
			return do(cmd, pairs)
		},
	}
	cmd.Flags().StringSliceVar(&texts, "ranges", nil, "ranges of pods between which addresses stay as they are")
	return cmd
}

func (a *app) nodeUncross() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "uncross", Short: "Keep them no more", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := masquerade.Remove(); err != nil {
				return err
			}
			return a.reportTo(file, &nodecleanup.Report{})
		},
	}
	cmd.Flags().StringVar(&file, "report", "", "file to write the report to; none means stdout")
	return cmd
}
