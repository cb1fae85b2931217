package incluster

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/proxyrules"
)

func (n node) copyRules() *cobra.Command {
	var mode string
	var by proxyrules.Programs
	cmd := &cobra.Command{Use: "copy-rules", Short: "Keep a copy of kube-proxy's rules while it changes its mode", Args: command.NoArgs}
	n.reporting(cmd, func(cmd *cobra.Command) (*nodecleanup.TracesReport, error) {
		return by.Copy(cmd.Context(), mode)
	})
	cmd.Flags().StringVar(&mode, "mode", "", "the mode that kube-proxy is to have: iptables or nftables")
	programsFlag(cmd, &by.Root)
	return cmd
}

func (n node) compareRules() *cobra.Command {
	var mode string
	var timeout time.Duration
	var refresh bool
	var against string
	var by proxyrules.Programs
	cmd := &cobra.Command{Use: "compare-rules", Short: "Find what the copy leads from and kube-proxy does not", Args: command.NoArgs}
	n.reporting(cmd, func(cmd *cobra.Command) (*nodecleanup.TracesReport, error) {
		if refresh {
			if err := by.Refresh(cmd.Context(), mode); err != nil {
				return nil, err
			}
		}
		return by.Await(cmd.Context(), mode, proxyrules.Against(against), timeout)
	})
	cmd.Flags().StringVar(&mode, "mode", "", "the mode that kube-proxy has now: iptables, nftables or ipvs")
	programsFlag(cmd, &by.Root)
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long it may take")
	cmd.Flags().StringVar(&against, "against", "", "what the other of iptables and ipvs has (ipvs), also while both are written (by-turns); none means a copy")
	cmd.Flags().BoolVar(&refresh, "refresh", false, "make the copy once more before, while kube-proxy has the rules of its other mode")
	return cmd
}

// ipvs leaves mode ipvs of kube-proxy.
func (n node) ipvs() *cobra.Command {
	var h nodecleanup.Host
	var timeout time.Duration
	cmd := &cobra.Command{Use: "ipvs", Short: "Leave mode ipvs of kube-proxy", Args: command.NoArgs}
	leave := &cobra.Command{Use: "leave", Short: "Have nothing new use what mode ipvs has left, and find what does", Args: command.NoArgs}
	n.reporting(leave, func(cmd *cobra.Command) (*nodecleanup.TracesReport, error) {
		return proxyrules.LeaveIPVS(cmd.Context(), h, timeout)
	})
	leave.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait until nothing does")
	remove := &cobra.Command{Use: "remove", Short: "Remove what mode ipvs has left, if nothing uses it", Args: command.NoArgs}
	n.reporting(remove, func(*cobra.Command) (*nodecleanup.TracesReport, error) { return h.RemoveIPVS() })
	quiesce := &cobra.Command{Use: "quiesce", Short: "Have virtual servers keep their connections, and take no new ones", Args: command.NoArgs}
	n.reporting(quiesce, func(*cobra.Command) (*nodecleanup.TracesReport, error) { return h.QuiesceIPVS() })
	for _, sub := range []*cobra.Command{leave, quiesce, remove} {
		rootFlag(sub, &h.Root)
		cmd.AddCommand(sub)
	}
	return cmd
}

func programsFlag(cmd *cobra.Command, root *string) {
	cmd.Flags().StringVar(root, "root", "", "where the root of the node is mounted whose programs are run; none means those of the pod's image")
}

// copyProgram has replumb's program beside those of another image.
func (n node) copyProgram() *cobra.Command {
	var to string
	cmd := n.silent("copy-program", "Copy this program to where another container of the pod has it", func() error { return copyProgram(to) })
	cmd.Flags().StringVar(&to, "to", "", "file to write")
	return cmd
}

func copyProgram(to string) error {
	name, err := os.Executable()
	if err != nil {
		return err
	}
	from, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	const executable = 0o755
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, executable)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, from); err != nil {
		return fmt.Errorf("writing %s: %w", to, err)
	}
	return out.Close()
}
