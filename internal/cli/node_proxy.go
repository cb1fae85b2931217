package cli

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// nodeServices looks who leads to Services on the node, while kube-proxy is replaced.
func (a *app) nodeServices() *cobra.Command {
	var file, programmed, unprogrammed string
	var ask nodecleanup.Services
	cmd := &cobra.Command{
		Use: "services", Short: "Find out who leads to Services on the node", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			for into, text := range map[*netip.Addr]string{&ask.Programmed: programmed, &ask.Unprogrammed: unprogrammed} {
				if text == "" {
					continue
				}
				if *into, err = netip.ParseAddr(text); err != nil {
					return &UsageError{
						Problem: fmt.Sprintf("%q is not an address", text),
						Hint:    "it takes that of a Service, such as 10.96.0.10",
					}
				}
			}
			r, err := ask.Check(cmd.Context())
			if err != nil {
				return err
			}
			return a.reportTo(file, r)
		},
	}
	cmd.Flags().StringVar(&ask.Root, "root", "/host", "where the root of the node is mounted")
	cmd.Flags().StringVar(&file, "report", "", "file to write the report to; none means stdout")
	cmd.Flags().StringSliceVar(&ask.Reach, "reach", nil, "addresses with ports that have to take connections over TCP from the node")
	cmd.Flags().StringVar(&programmed, "programmed", "", "address of a Service that kube-proxy has to have rules for")
	cmd.Flags().StringVar(&unprogrammed, "unprogrammed", "", "address of a new Service that kube-proxy must have no rules for")
	cmd.Flags().DurationVar(&ask.Timeout, "timeout", time.Minute, "how long what has to hold may take")
	cmd.Flags().DurationVar(&ask.Quiet, "quiet", 20*time.Second, "how long kube-proxy must not write rules for a new Service")
	return cmd
}

// nodeCilium asks Cilium's agent of the node whether it replaces kube-proxy.
func (a *app) nodeCilium() *cobra.Command {
	var file string
	var ask nodecleanup.Agent
	cmd := &cobra.Command{
		Use: "cilium", Short: "Ask Cilium's agent of the node whether it replaces kube-proxy", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := ask.Ask(cmd.Context())
			if err != nil {
				return err
			}
			return a.reportTo(file, r)
		},
	}
	cmd.Flags().StringVar(&ask.Socket, "socket", "/host/run/cilium/cilium.sock", "where the agent's socket is")
	cmd.Flags().StringVar(&ask.Healthz, "healthz", "", "address with a port that it says that it is well at; empty is not asked")
	cmd.Flags().StringVar(&file, "report", "", "file to write the report to; none means stdout")
	cmd.Flags().DurationVar(&ask.Timeout, "timeout", time.Minute, "how long it may take to answer")
	return cmd
}
