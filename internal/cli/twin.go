package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/mirror/installerconfig"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/spec"
)

func (a *app) mirror() *cobra.Command {
	cmd := &cobra.Command{
		Use: "mirror", Short: "Prepare a mirror of a cluster", Args: noArgs,
		Long: `Prepare a mirror of a cluster. The mirror itself is a Migration with spec.mirror: plan, apply and finish run it.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.mirrorConfig())
	return cmd
}

// twinFlags say what of the mirror differs from the source.
type twinFlags struct {
	name, endpoint, kops  string
	services, pods, nodes []string
}

func (a *app) mirrorConfig() *cobra.Command {
	var flags twinFlags
	cmd := &cobra.Command{
		Use:   "config --name NAME",
		Args:  noArgs,
		Short: "Make the configuration of a cluster's mirror from the cluster's own",
		Long: `Print the configuration of a cluster's mirror, made from that of the cluster. Nothing is written anywhere, and no cluster is made.

Of a cluster of kubeadm, it reads what kubeadm keeps in kube-system: the ConfigMaps kubeadm-config, kubelet-config and kube-proxy. What comes
of them is for kubeadm init --config. Of one of kOps, it reads the file that --kops-cluster names, which kops get -o yaml prints: the Cluster and
its InstanceGroups. What comes of that is for kops create -f; no cluster is asked.

The mirror has the same version, feature gates, and flags that decide how workloads run. It has another name, and the ranges that flags or a
Migration (-f) name: of Services spec.serviceCIDR.to, of pods spec.podCIDR.to or spec.cni.podCIDR, of nodes spec.nodes.new.cidrs; flags win.
Left out are certificates, keys, tokens, passwords, the source's etcd and its backups, and what in a cloud belongs to the source. Lines with
"FILL IN:" are for you to complete, lines with "CHECK:" to look at.

Exit code: 0 printed, 1 the source could not be read, or is not what kubeadm or kOps have, 2 the command line is wrong.`,
		Example: a.example(`
  replumb mirror config --name mirror --endpoint api.mirror.example.com:6443 --pod-cidr 10.245.0.0/16 > mirror.yaml
  kops get --name prod.example.com -o yaml > prod.yaml
  replumb mirror config --name mirror.example.com --kops-cluster prod.yaml --node-cidr 172.30.0.0/16 > mirror.yaml`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := a.twinWanted(&flags)
			if err != nil {
				return err
			}
			body, err := a.twin(cmd.Context(), flags.kops, wanted)
			if err != nil {
				return err
			}
			_, err = verbatim{a.out}.Write(body)
			return err
		},
	}
	cmd.Flags().StringVar(&flags.name, "name", "", "name of the mirror: with kOps, one in DNS")
	cmd.Flags().StringVar(&flags.endpoint, "endpoint", "", "host:port of the mirror's API, with kubeadm")
	cmd.Flags().StringVar(&flags.kops, "kops-cluster", "", "file that kops get -o yaml prints, or - for stdin")
	cmd.Flags().
		StringSliceVar(&flags.services, "service-cidr", nil, "range of the mirror's Services, one of each family (default that of the source)")
	cmd.Flags().StringSliceVar(&flags.pods, "pod-cidr", nil, "the same for pods")
	cmd.Flags().StringSliceVar(&flags.nodes, "node-cidr", nil, "the same for the network of nodes, with kOps")
	cmd.Flags().StringArrayVarP(&a.input.files, "filename", "f", nil, "Migration that names ranges, if flags do not")
	return cmd
}

// twinWanted reads the flags, and what a Migration says where they say nothing.
func (a *app) twinWanted(f *twinFlags) (w installerconfig.Overrides, err error) {
	if f.name == "" {
		return w, &UsageError{Problem: "the mirror has no name", Hint: "add --name NAME"}
	}
	if f.kops != "" && f.endpoint != "" {
		return w, &UsageError{Problem: "--endpoint is for kubeadm", Hint: "leave it out: kOps makes names of the cluster's"}
	}
	if f.kops == "" && len(f.nodes) > 0 {
		return w, &UsageError{Problem: "--node-cidr is for kOps", Hint: "leave it out: kubeadm takes machines as they are"}
	}
	w.Name, w.Endpoint = f.name, f.endpoint
	for _, r := range []struct {
		flag  string
		texts []string
		to    *[]netip.Prefix
	}{{"--service-cidr", f.services, &w.Services}, {"--pod-cidr", f.pods, &w.Pods}, {"--node-cidr", f.nodes, &w.Nodes}} {
		for _, text := range r.texts {
			p, err := cidr.Parse(text)
			if err != nil {
				return w, &UsageError{Problem: r.flag + ": " + err.Error(), Hint: "write a range such as 10.245.0.0/16"}
			}
			*r.to = append(*r.to, p)
		}
	}
	if a.input.given() {
		if err := a.twinRanges(&w, f.kops != ""); err != nil {
			return w, err
		}
	}
	if err := w.Validate(); err != nil {
		return w, &UsageError{Problem: err.Error(), Hint: fault.Advice(err)}
	}
	return w, nil
}

// twinRanges takes ranges from a Migration.
func (a *app) twinRanges(w *installerconfig.Overrides, nodes bool) error {
	m, err := a.read()
	if err != nil {
		return err
	}
	var leads migration.Targets
	if of := a.kinds.Of(m).Targets; of != nil {
		leads = of(&m.Spec)
	}
	for _, r := range []struct {
		texts []string
		to    *[]netip.Prefix
		takes bool
	}{{leads.Services, &w.Services, true}, {leads.Pods, &w.Pods, true}, {leads.Nodes, &w.Nodes, nodes}} {
		if len(*r.to) == 0 && r.takes {
			*r.to = spec.Prefixes(r.texts)
		}
	}
	return nil
}

// twin makes the configuration.
func (a *app) twin(ctx context.Context, kops string, w installerconfig.Overrides) ([]byte, error) {
	if kops != "" {
		body, err := a.readAll(kops)
		if err != nil {
			return nil, &UsageError{Problem: "--kops-cluster: " + err.Error(), Hint: "kops get --name NAME -o yaml > FILE makes one"}
		}
		out, err := installerconfig.KOps(body, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kops, err)
		}
		return out, nil
	}
	c, err := a.reach(ctx)
	if err != nil {
		return nil, err
	}
	has, err := kubeadmOf(ctx, c.Cluster)
	if err != nil {
		return nil, err
	}
	out, err := has.Configuration(w)
	if err != nil {
		return nil, fmt.Errorf("configmap %s/%s: %w", metav1.NamespaceSystem, controlplane.KubeadmConfig, err)
	}
	return out, nil
}

// readAll reads a file, or stdin.
func (a *app) readAll(name string) ([]byte, error) {
	if name == stdin {
		return io.ReadAll(a.in)
	}
	return os.ReadFile(name)
}

// kubeadmOf reads what kubeadm keeps in a cluster. What it keeps of kubelets and of kube-proxy may not be there.
func kubeadmOf(ctx context.Context, c client.Reader) (has installerconfig.Kubeadm, err error) {
	for _, part := range []struct {
		name, key string
		to        *string
		must      bool
	}{
		{controlplane.KubeadmConfig, "ClusterConfiguration", &has.Cluster, true},
		{"kubelet-config", "kubelet", &has.Kubelet, false},
		{"kube-proxy", "config.conf", &has.Proxy, false},
	} {
		config := &corev1.ConfigMap{}
		err := c.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: part.name}, config)
		if err != nil && !apierrors.IsNotFound(err) {
			return has, fmt.Errorf("configmap %s/%s: %w", metav1.NamespaceSystem, part.name, err)
		}
		if *part.to = strings.TrimSpace(config.Data[part.key]); part.must && *part.to == "" {
			return has, &fault.Hinted{
				Err: errors.New(
					"the cluster has no ConfigMap kube-system/kubeadm-config with a ClusterConfiguration: kubeadm did not make it",
				),
				Hint: "of a cluster of kOps, name what kops get -o yaml prints with --kops-cluster; other installers keep their configuration elsewhere",
			}
		}
	}
	return has, nil
}
