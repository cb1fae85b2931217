package incluster

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/network/masquerade"
	"github.com/replumb/replumb/internal/network/nodecleanup"
)

func prefer(h nodecleanup.Host, n nodecleanup.NetworkTraces) (*nodecleanup.TracesReport, error) {
	if err := h.Prefer(n); err != nil {
		return nil, err
	}
	done, err := h.Prefers(n)
	if err == nil && !done {
		err = fmt.Errorf("the node does not go by /etc/cni/net.d/%s, which was just written: did something remove it?",
			nodecleanup.Preferred)
	}
	return &nodecleanup.TracesReport{}, err
}

func adopt(h nodecleanup.Host, n nodecleanup.NetworkTraces) (*nodecleanup.TracesReport, error) {
	return &nodecleanup.TracesReport{}, h.Adopt(n)
}

func (n node) unprefer() *cobra.Command {
	var root string
	cmd := n.silent("unprefer", "Give new pods of the node the network that its own files say", func() error {
		return nodecleanup.Host{Root: root}.Unprefer()
	})
	rootFlag(cmd, &root)
	return cmd
}

func (n node) cross() *cobra.Command {
	return between("cross", "Keep the addresses of pods on their way to the other network, until interrupted, and after",
		func(cmd *cobra.Command, pairs []masquerade.RangePair) error {
			return masquerade.Maintain(cmd.Context(), pairs, masquerade.Every, func(err error) { fmt.Fprintln(n.Err, err) })
		})
}

func (node) crossed() *cobra.Command {
	return between("crossed", "Succeed if the node keeps them", func(_ *cobra.Command, pairs []masquerade.RangePair) error {
		return masquerade.Check(pairs)
	})
}

func (n node) uncross() *cobra.Command {
	return n.silent("uncross", "Keep them no more", masquerade.Remove)
}

func between(use, short string, do func(*cobra.Command, []masquerade.RangePair) error) *cobra.Command {
	var texts []string
	cmd := &cobra.Command{
		Use: use, Short: short, Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ranges, err := prefixes(texts)
			var pairs []masquerade.RangePair
			if err == nil {
				pairs, err = masquerade.Pairs(ranges)
			}
			if err != nil {
				return &command.UsageError{
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
