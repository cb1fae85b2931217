package incluster

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// Node runs on a node, in a pod on its network, while what the node has is changed.
func Node(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "node", Short: "Run on a node that is changed", Hidden: true, Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	n := node{a}
	cmd.AddCommand(
		n.network("clean", "Remove what a network has left on the node", nodecleanup.Host.Clean),
		n.network("residue", "Find what a network has left on the node", nodecleanup.Host.Residue),
		n.traffic(),
		n.network("standing",
			"Find what keeps the node from having two networks, and from being switched to this one",
			nodecleanup.Host.Inspect),
		n.network("origin",
			"Find whether pods of the node have their network from files alone, and what keeps it from leaving that",
			nodecleanup.Host.Origin),
		n.network("adopt", "Have the node go by the configuration that a network itself writes", adopt),
		n.network("prefer", "Give new pods of the node the network whose configuration lies ready", prefer),
		n.unprefer(),
		n.cross(),
		n.crossed(),
		n.uncross(),
		n.services(),
		n.cilium(),
		n.copyRules(),
		n.compareRules(),
		n.copyProgram(),
		n.ipvs(),
		n.kubeadm(),
		n.etcd(),
	)
	return cmd
}

type node struct{ *command.App }

func (n node) network(
	use, short string, do func(nodecleanup.Host, nodecleanup.NetworkTraces) (*nodecleanup.TracesReport, error),
) *cobra.Command {
	var h nodecleanup.Host
	var pods []string
	cmd := &cobra.Command{Use: use + " NETWORK", Short: short, Args: cobra.ExactArgs(1)}
	n.reporting(cmd, func(cmd *cobra.Command) (*nodecleanup.TracesReport, error) {
		name := cmd.Flags().Arg(0)
		network, ok := nodecleanup.Find(name)
		if !ok {
			return nil, &command.UsageError{
				Problem: fmt.Sprintf("no network is called %q", name),
				Hint:    "known are " + strings.Join(nodecleanup.Names(), " and "),
			}
		}
		var err error
		if h.Pods, err = prefixes(pods); err != nil {
			return nil, err
		}
		return do(h, network)
	})
	rootFlag(cmd, &h.Root)
	cmd.Flags().StringSliceVar(&pods, "pods", nil, "ranges of the network's pods")
	return cmd
}

func rootFlag(cmd *cobra.Command, root *string) {
	cmd.Flags().StringVar(root, "root", "/host", "where the root of the node is mounted")
}

func (n node) reporting(cmd *cobra.Command, do func(*cobra.Command) (*nodecleanup.TracesReport, error)) {
	var file string
	cmd.Flags().StringVar(&file, "report", "", "file to write the report to; none means stdout")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := do(cmd)
		if err != nil {
			return err
		}
		body, err := r.Marshal()
		if err != nil {
			return err
		}
		if file != "" {
			return os.WriteFile(file, body, 0o600)
		}
		_, err = fmt.Fprintln(n.Out.Verbatim(), string(body))
		return err
	}
}

func (n node) silent(use, short string, do func() error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: command.NoArgs}
	n.reporting(cmd, func(*cobra.Command) (*nodecleanup.TracesReport, error) { return &nodecleanup.TracesReport{}, do() })
	return cmd
}

func (n node) traffic() *cobra.Command {
	var w nodecleanup.Watcher
	var inside, ignore, served []string
	var ports []uint
	cmd := &cobra.Command{Use: "traffic", Short: "Find clients from outside whom the node serves", Args: command.NoArgs}
	n.reporting(cmd, func(cmd *cobra.Command) (_ *nodecleanup.TracesReport, err error) {
		for _, p := range ports {
			w.Ports = append(w.Ports, uint16(p)) //nolint:gosec // ports of containers
		}
		for into, texts := range map[*[]netip.Prefix][]string{&w.Inside: inside, &w.Ignore: ignore, &w.Served: served} {
			if *into, err = prefixes(texts); err != nil {
				return nil, err
			}
		}
		return w.Watch(cmd.Context())
	})
	flags := cmd.Flags()
	flags.DurationVar(&w.Window, "window", 30*time.Second, "how long to look")
	flags.StringSliceVar(&inside, "inside", nil, "addresses and ranges that are no clients because they are of the cluster")
	flags.StringSliceVar(&ignore, "ignore", nil, "ranges outside that are no clients")
	flags.StringSliceVar(&served, "served", nil, "ranges of pods and Services")
	flags.UintSliceVar(&ports, "ports", nil, "ports that pods answer on at the address of their node")
	return cmd
}

func prefixes(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			out = append(out, netip.PrefixFrom(address, address.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}
