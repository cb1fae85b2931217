package tools

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/mirror/installerconfig"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/spec"
)

type mirrorOptions struct {
	*command.App
	files                 command.InputFiles
	name, endpoint, kops  string
	services, pods, nodes []string
}

// MirrorConfig makes the configuration of a mirror's installer.
func MirrorConfig(a *command.App) *cobra.Command {
	o := &mirrorOptions{App: a}
	cmd := &cobra.Command{
		Use:   "mirror-config --name NAME",
		Args:  command.NoArgs,
		Short: "Make the configuration of a cluster's mirror from the cluster's own",
		Long: `Print the configuration of a cluster's mirror, made from that of the cluster. Nothing is written anywhere, and
no cluster is made. The mirror itself is a Migration with spec.mirror: plan, apply and finish run it.

Of a cluster of kubeadm, it reads what kubeadm keeps in kube-system: the ConfigMaps kubeadm-config,
kubelet-config and kube-proxy. The result is for kubeadm init --config. Of one of kOps, it reads the
file that --kops-cluster names, which kops get -o yaml prints: the Cluster and its InstanceGroups. The result of
that is for kops create -f; no cluster is asked.

The mirror has the same version, feature gates, and flags that decide how workloads run. It has another name,
and the ranges that flags or a Migration (-f) name: of Services spec.serviceCIDR.to, of pods spec.podCIDR.to or
spec.cni.podCIDR, of nodes spec.nodes.new.cidrs; flags win. Left out are certificates, keys, tokens, passwords,
the source's etcd and its backups, and what in a cloud belongs to the source. Lines with "FILL IN:" are for you
to complete, lines with "CHECK:" to look at.

Exit code: 0 printed, 1 the source could not be read, or is not what kubeadm or kOps have, 2 the command line is
wrong.`,
		Example: a.Example(`
  replumb mirror-config --name mirror --endpoint api.mirror.example.com:6443 --pod-cidr 10.245.0.0/16 > mirror.yaml
  kops get --name prod.example.com -o yaml > prod.yaml
  replumb mirror-config --name mirror.example.com --kops-cluster prod.yaml --node-cidr 172.30.0.0/16 > mirror.yaml`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := o.wanted()
			if err != nil {
				return err
			}
			body, err := o.configuration(cmd.Context(), wanted)
			if err != nil {
				return err
			}
			_, err = a.Out.Verbatim().Write(body)
			return err
		},
	}
	cmd.Flags().StringVar(&o.name, "name", "", "name of the mirror: with kOps, one in DNS")
	cmd.Flags().StringVar(&o.endpoint, "endpoint", "", "host:port of the mirror's API, with kubeadm")
	cmd.Flags().StringVar(&o.kops, "kops-cluster", "", "file that kops get -o yaml prints, or - for stdin")
	cmd.Flags().
		StringSliceVar(&o.services, "service-cidr", nil, "range of the mirror's Services, one of each family (default that of the source)")
	cmd.Flags().StringSliceVar(&o.pods, "pod-cidr", nil, "the same for pods")
	cmd.Flags().StringSliceVar(&o.nodes, "node-cidr", nil, "the same for the network of nodes, with kOps")
	cmd.Flags().StringArrayVarP(&o.files.Names, "filename", "f", nil, "Migration that names ranges, if flags do not")
	return cmd
}

func (o *mirrorOptions) wanted() (w installerconfig.Overrides, err error) {
	if o.name == "" {
		return w, &command.UsageError{Problem: "the mirror has no name", Hint: "add --name NAME"}
	}
	if o.kops != "" && o.endpoint != "" {
		return w, &command.UsageError{Problem: "--endpoint is for kubeadm", Hint: "leave it out: kOps makes names of the cluster's"}
	}
	if o.kops == "" && len(o.nodes) > 0 {
		return w, &command.UsageError{Problem: "--node-cidr is for kOps", Hint: "leave it out: kubeadm takes machines as they are"}
	}
	w.Name, w.Endpoint = o.name, o.endpoint
	for _, r := range []struct {
		flag  string
		texts []string
		to    *[]netip.Prefix
	}{{"--service-cidr", o.services, &w.Services}, {"--pod-cidr", o.pods, &w.Pods}, {"--node-cidr", o.nodes, &w.Nodes}} {
		for _, text := range r.texts {
			p, err := cidr.Parse(text)
			if err != nil {
				return w, &command.UsageError{Problem: r.flag + ": " + err.Error(), Hint: "write a range such as 10.245.0.0/16"}
			}
			*r.to = append(*r.to, p)
		}
	}
	if o.files.Given() {
		if err := o.ranges(&w); err != nil {
			return w, err
		}
	}
	if err := w.Validate(); err != nil {
		return w, &command.UsageError{Problem: err.Error(), Hint: fault.Advice(err)}
	}
	return w, nil
}

func (o *mirrorOptions) ranges(w *installerconfig.Overrides) error {
	sources, err := o.files.Sources(o.App)
	if err != nil {
		return err
	}
	m, _, err := spec.ReadFrom(sources...)
	if err != nil {
		return err
	}
	var leads migration.Targets
	if of := o.Kinds.Of(m).Targets; of != nil {
		leads = of(&m.Spec)
	}
	for _, r := range []struct {
		texts []string
		to    *[]netip.Prefix
		takes bool
	}{{leads.Services, &w.Services, true}, {leads.Pods, &w.Pods, true}, {leads.Nodes, &w.Nodes, o.kops != ""}} {
		if len(*r.to) == 0 && r.takes {
			*r.to = spec.Prefixes(r.texts)
		}
	}
	return nil
}

func (o *mirrorOptions) configuration(ctx context.Context, w installerconfig.Overrides) ([]byte, error) {
	if o.kops != "" {
		body, err := o.ReadAll(o.kops)
		if err != nil {
			return nil, &command.UsageError{Problem: "--kops-cluster: " + err.Error(), Hint: "kops get --name NAME -o yaml > FILE makes one"}
		}
		out, err := installerconfig.KOps(body, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.kops, err)
		}
		return out, nil
	}
	c, err := o.Reach(ctx)
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

// kubeadmOf reads what kubeadm keeps in a cluster; parts about kubelets and kube-proxy may be
// missing.
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
