package cli

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// node is what runs on a node, in a pod on its network, while the network of pods is replaced. People have no use for it.
func (a *app) node() *cobra.Command {
	cmd := &cobra.Command{
		Use: "node", Short: "Run on a node whose network for pods is replaced", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		a.nodeLeft("clean", "Remove what a network has left on the node", nodecleanup.Host.Clean),
		a.nodeLeft("residue", "Find what a network has left on the node", nodecleanup.Host.Residue),
		a.nodeTraffic(),
	)
	cmd.AddCommand(a.nodeInPlace()...)
	return cmd
}

// nodeLeft is a command about what a network has left. It reports in JSON.
func (a *app) nodeLeft(use, short string, do func(nodecleanup.Host, nodecleanup.Network) (*nodecleanup.Report, error)) *cobra.Command {
	var root, file string
	var pods []string
	cmd := &cobra.Command{
		Use: use + " NETWORK", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			n, ok := nodecleanup.Find(args[0])
			if !ok {
				return &UsageError{
					Problem: fmt.Sprintf(
						"no network is called %q",
						args[0],
					),
					Hint: "known are " + strings.Join(nodecleanup.Names(), " and "),
				}
			}
			h := nodecleanup.Host{Root: root}
			var err error
			if h.Pods, err = prefixes(pods); err != nil {
				return err
			}
			r, err := do(h, n)
			if err != nil {
				return err
			}
			return a.reportTo(file, r)
		},
	}
	cmd.Flags().StringVar(&root, "root", "/host", "where the root of the node is mounted")
	cmd.Flags().StringVar(&file, "report", "", "file to write the report to; none means stdout")
	cmd.Flags().StringSliceVar(&pods, "pods", nil, "ranges of the network's pods")
	return cmd
}

func (a *app) nodeTraffic() *cobra.Command {
	var file string
	var window time.Duration
	var inside, ignore, served []string
	var ports []uint
	cmd := &cobra.Command{
		Use: "traffic", Short: "Find clients from outside whom the node serves", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			w := nodecleanup.Watcher{Window: window}
			for _, p := range ports {
				w.Ports = append(w.Ports, uint16(p)) //nolint:gosec // ports of containers
			}
			for into, texts := range map[*[]netip.Prefix][]string{&w.Inside: inside, &w.Ignore: ignore, &w.Served: served} {
				if *into, err = prefixes(texts); err != nil {
					return err
				}
			}
			r, err := w.Watch(cmd.Context())
			if err != nil {
				return err
			}
			return a.reportTo(file, r)
		},
	}
	cmd.Flags().StringVar(&file, "report", "", "file to write the report to; none means stdout")
	cmd.Flags().DurationVar(&window, "window", 30*time.Second, "how long to look")
	cmd.Flags().StringSliceVar(&inside, "inside", nil, "addresses and ranges that are no clients because they are of the cluster")
	cmd.Flags().StringSliceVar(&ignore, "ignore", nil, "ranges outside that are no clients")
	cmd.Flags().StringSliceVar(&served, "served", nil, "ranges of pods and Services")
	cmd.Flags().UintSliceVar(&ports, "ports", nil, "ports that pods answer on at the address of their node")
	return cmd
}

// reportTo writes a report where the kubelet reads it, or to stdout.
func (a *app) reportTo(file string, r *nodecleanup.Report) error {
	body, err := r.Marshal()
	if err != nil {
		return err
	}
	if file != "" {
		return os.WriteFile(file, body, 0o600)
	}
	_, err = fmt.Fprintln(verbatim{a.out}, string(body))
	return err
}

// prefixes reads ranges, and addresses as ranges of one.
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
