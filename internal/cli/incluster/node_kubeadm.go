package incluster

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/kube/kubeadm/onnode"
	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// kubeadm does on a node that kubeadm made what gates ask for.
func (n node) kubeadm() *cobra.Command {
	cmd := &cobra.Command{
		Use: "kubeadm", Short: "Change what kubeadm has written on the node", Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	k := onKubeadm{n}
	cmd.AddCommand(k.look(), k.certificate(), k.flags(), k.kubelet(),
		k.task("uncertificate", "Put the former certificate of the API server back", func(_ context.Context, h onnode.NodeFiles) error { return h.RemoveNames() }),
		k.task("forget", "Remove the backups of the migration", func(_ context.Context, h onnode.NodeFiles) error { return h.Forget() }))
	return cmd
}

type onKubeadm struct{ node }

func (k onKubeadm) task(use, short string, do func(context.Context, onnode.NodeFiles) error) *cobra.Command {
	h := onnode.NodeFiles{Proc: "/proc"}
	cmd := &cobra.Command{Use: use, Short: short, Args: command.NoArgs}
	k.reporting(cmd, func(cmd *cobra.Command) (*nodecleanup.TracesReport, error) {
		h.Run = onnode.InHost(h.Root)
		return &nodecleanup.TracesReport{}, do(cmd.Context(), h)
	})
	rootFlag(cmd, &h.Root)
	cmd.Flags().StringVar(&h.Migration, "migration", "", "name of the migration, which its backups are kept under")
	cmd.Flags().DurationVar(&h.Patience, "patience", 5*time.Minute, "how long a program may take to be ready with a changed file")
	_ = cmd.MarkFlagRequired("migration")
	return cmd
}

func (k onKubeadm) look() *cobra.Command {
	var changes []string
	var certificate bool
	var from, to []string
	cmd := k.task("look", "Refuse a node that is not as kubeadm makes it", func(ctx context.Context, h onnode.NodeFiles) error {
		var all []onnode.FlagChange
		for _, text := range changes {
			c, err := onnode.ParseFlagChange(text)
			if err != nil {
				return usage("--change", err)
			}
			all = append(all, c)
		}
		if len(all) > 0 || certificate {
			if err := h.LookAtControlPlane(certificate, all...); err != nil {
				return err
			}
		}
		if len(from) > 0 {
			return h.LookAtKubelet(ctx, from, to)
		}
		return nil
	})
	cmd.Flags().StringArrayVar(&changes, "change", nil, "a change of flags to come, as for flags")
	cmd.Flags().BoolVar(&certificate, "certificate", false, "whether the certificate of the API server is to be changed")
	addDNSFlags(cmd, &from, &to)
	return cmd
}

func (k onKubeadm) certificate() *cobra.Command {
	var texts []string
	cmd := k.task("certificate", "Have the API server serve a certificate for more addresses", func(ctx context.Context, h onnode.NodeFiles) error {
		var all []netip.Addr
		for _, text := range texts {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return usage("--address", err)
			}
			all = append(all, a)
		}
		return h.AddNames(ctx, all)
	})
	cmd.Flags().StringSliceVar(&texts, "address", nil, "an address that the certificate has to name")
	return cmd
}

func (k onKubeadm) flags() *cobra.Command {
	var text string
	cmd := k.task("flags", "Give a program of the control plane other flags", func(ctx context.Context, h onnode.NodeFiles) error {
		c, err := onnode.ParseFlagChange(text)
		if err != nil {
			return usage("--change", err)
		}
		return h.SetFlags(ctx, c)
	})
	cmd.Flags().StringVar(&text, "change", "", "the program and its flags, such as 'kube-apiserver service-cluster-ip-range=10.96.0.0/16>172.24.0.0/16'")
	return cmd
}

func (k onKubeadm) kubelet() *cobra.Command {
	var from, to []string
	cmd := k.task("kubelet", "Have the kubelet name other addresses of cluster DNS", func(ctx context.Context, h onnode.NodeFiles) error {
		if len(from) == 0 || len(from) != len(to) {
			return usage("--from", fmt.Errorf("it and --to name %d and %d addresses", len(from), len(to)))
		}
		return h.SetClusterDNS(ctx, from, to)
	})
	addDNSFlags(cmd, &from, &to)
	return cmd
}

func addDNSFlags(cmd *cobra.Command, from, to *[]string) {
	cmd.Flags().StringSliceVar(from, "from", nil, "addresses of cluster DNS that the kubelet names")
	cmd.Flags().StringSliceVar(to, "to", nil, "addresses in their place")
}

func usage(flag string, err error) error {
	return &command.UsageError{Problem: flag + ": " + strings.TrimSpace(err.Error()), Hint: "replumb writes it by itself"}
}
