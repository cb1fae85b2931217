package incluster

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/network/nodecleanup"
)

func (n node) services() *cobra.Command {
	var programmed, unprogrammed string
	var ask nodecleanup.ServiceQuery
	cmd := &cobra.Command{Use: "services", Short: "Find out who leads to Services on the node", Args: command.NoArgs}
	n.reporting(cmd, func(cmd *cobra.Command) (_ *nodecleanup.TracesReport, err error) {
		for into, text := range map[*netip.Addr]string{&ask.Programmed: programmed, &ask.Unprogrammed: unprogrammed} {
			if text == "" {
				continue
			}
			if *into, err = netip.ParseAddr(text); err != nil {
				return nil, &command.UsageError{
					Problem: fmt.Sprintf("%q is not an address", text), Hint: "it takes that of a Service, such as 10.96.0.10",
				}
			}
		}
		return ask.Check(cmd.Context())
	})
	rootFlag(cmd, &ask.Root)
	flags := cmd.Flags()
	flags.StringSliceVar(&ask.Reach, "reach", nil, "addresses with ports that have to take connections over TCP from the node")
	flags.StringVar(&programmed, "programmed", "", "address of a Service that kube-proxy has to have rules for")
	flags.BoolVar(&ask.InIPVS, "in-ipvs", false, "kube-proxy has mode ipvs")
	flags.StringVar(&unprogrammed, "unprogrammed", "", "address of a new Service that kube-proxy must have no rules for")
	flags.DurationVar(&ask.Timeout, "timeout", time.Minute, "how long what has to hold may take")
	flags.DurationVar(&ask.Quiet, "quiet", 20*time.Second, "how long kube-proxy must not write rules for a new Service")
	return cmd
}

func (n node) cilium() *cobra.Command {
	var ask nodecleanup.CiliumAgent
	cmd := &cobra.Command{
		Use: "cilium", Short: "Ask Cilium's agent of the node whether it replaces kube-proxy", Args: command.NoArgs,
	}
	n.reporting(cmd, func(cmd *cobra.Command) (*nodecleanup.TracesReport, error) { return ask.Ask(cmd.Context()) })
	flags := cmd.Flags()
	flags.StringVar(&ask.Socket, "socket", "/host/run/cilium/cilium.sock", "where the agent's socket is")
	flags.StringVar(&ask.Healthz, "healthz", "", "address with a port that it says that it is well at; empty is not asked")
	flags.DurationVar(&ask.Timeout, "timeout", time.Minute, "how long it may take to answer")
	return cmd
}
