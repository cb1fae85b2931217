package labcli

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/lab/lab"
)

func newRestart(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restart",
		Short: "Reconfigure and restart programs of a lab, as a cluster's operator does",
		Args:  args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("restart what?\nhint: replumb-lab restart apiserver, kubelet, controller-manager or kube-proxy")}
		},
	}
	cmd.AddCommand(newRestartAPIServer(s), newRestartKubelet(s), newRestartControllerManager(s), newRestartProxy(s))
	return cmd
}

func newRestartAPIServer(s streams) *cobra.Command {
	var name, serviceCIDR, controlPlane string
	var sans []string
	cmd := &cobra.Command{
		Use:   "apiserver",
		Short: "Restart the API servers one by one, with another range of Services if asked",
		Long: `Restart the API servers, one control plane after the other: issue a serving certificate that is also good for the
first address of the range of Services, change the flag of API server and controller manager, end the API server
gracefully, start it, and wait until it is ready and pods are led to it again. Without --service-cidr each keeps the
range it has; a lab of both families is given one of each. With --san alone certificates are issued, and nothing is restarted.`,
		Example: `  replumb-lab restart apiserver --service-cidr 172.24.0.0/16
  replumb-lab restart apiserver --san 172.24.0.1`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			to, addresses, err := parseRestart(serviceCIDR, sans)
			if err != nil {
				return err
			}
			var planes []string
			if controlPlane != "all" {
				planes = []string{controlPlane}
			}
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			start, what := time.Now(), "restarted the API servers"
			if len(addresses) > 0 && len(to) == 0 {
				what = "issued certificates"
				err = l.ControlPlaneNodes().IssueCertificates(cmd.Context(), addresses, planes...)
			} else {
				err = l.ControlPlaneNodes().RestartAPIServers(cmd.Context(), to, addresses, planes...)
			}
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(s.err, "%s (%s) in %s\n", what, controlPlane, time.Since(start).Round(100*time.Millisecond))
			return nil
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().StringVar(&serviceCIDR, "service-cidr", "", "range of Service addresses from now on, or one of each family")
	cmd.Flags().StringSliceVar(&sans, "san", nil, "address that the serving certificates shall be good for, too")
	cmd.Flags().StringVar(&controlPlane, "control-plane", "all", "the only control plane to do it on, such as cp1")
	return cmd
}

func parseRestart(serviceCIDR string, sans []string) (to []netip.Prefix, addresses []netip.Addr, err error) {
	if to, err = parseRanges("service-cidr", serviceCIDR, "10.96.0.0/16"); err != nil {
		return nil, nil, err
	}
	for _, san := range sans {
		a, err := parseAddress("san", san)
		if err != nil {
			return to, nil, err
		}
		addresses = append(addresses, a)
	}
	return to, addresses, nil
}

// parseRanges reads one range, or one of each family with a comma between them; no text is none.
func parseRanges(field, text, example string) ([]netip.Prefix, error) {
	if text == "" {
		return nil, nil
	}
	texts := strings.Split(text, ",")
	var all []netip.Prefix
	for _, one := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(one))
		if err != nil || len(texts) > 2 {
			return nil, &lab.InvalidError{
				Field:   field,
				Problem: fmt.Sprintf("%q is not a range of addresses, nor one of each family", text),
				Hint:    "write it like " + example,
			}
		}
		if p != p.Masked() {
			return nil, &lab.InvalidError{Field: field, Problem: p.String() + " has host bits set", Hint: "write " + p.Masked().String()}
		}
		all = append(all, p)
	}
	return all, nil
}

func parseAddress(field, text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, &lab.InvalidError{
			Field: field, Problem: fmt.Sprintf("%q is not an address", text), Hint: "write it like 10.96.0.1",
		}
	}
	return a, nil
}

func newRestartKubelet(s streams) *cobra.Command {
	var name, dns string
	cmd := &cobra.Command{
		Use:   "kubelet [NODE...]",
		Short: "Restart the kubelets of nodes one by one, with another address of cluster DNS if asked",
		Long: `Restart the kubelets of the nodes named, or of all, one after the other, and wait until each node is Ready again. Pods
keep running. With --cluster-dns, pods that start from then on are given that name server.`,
		Example: `  replumb-lab restart kubelet --cluster-dns 172.24.0.10
  replumb-lab restart kubelet node2`,
		Args: args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, nodes []string) error {
			var address netip.Addr
			if dns != "" {
				var err error
				if address, err = parseAddress("cluster-dns", dns); err != nil {
					return err
				}
			}
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			start := time.Now()
			if err := l.Workers().RestartKubelets(cmd.Context(), address, nodes...); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(s.err, "restarted kubelet in %s\n", time.Since(start).Round(100*time.Millisecond))
			return nil
		},
	}
	nameFlag(cmd, &name)
	cmd.Flags().StringVar(&dns, "cluster-dns", "", "address of cluster DNS from now on")
	return cmd
}
