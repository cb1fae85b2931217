package tools

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/network/ranges"
	"github.com/replumb/replumb/internal/network/ranges/used"
)

type rangesOptions struct {
	*command.App
	format                                           command.Format
	contexts, from, networks, serviceSizes, podSizes []string
	count                                            int
}

type rangesAsked struct {
	networks []ranges.Range
	sizes    ranges.Sizes
	count    int
}

// Ranges shows which address ranges clusters use, where they overlap, and which are free.
func Ranges(a *command.App) *cobra.Command {
	o := &rangesOptions{App: a}
	cmd := &cobra.Command{
		Use:   "ranges",
		Short: "Show which address ranges clusters use, where they overlap, and which are free",
		Args:  command.NoArgs,
		Long: `Show which address ranges one or several clusters use, where they overlap, and which are free for Services and
pods. Nothing is written. Each range has its source, an object and its field.

Ranges of Services are those of ServiceCIDRs, or the flag of API servers. Ranges of pods are those of Nodes, of
Calico's IPPools, used or not, of Cilium's pools, and those that controller managers, kube-proxy, kubeadm and
flannel are configured with. Of nodes the addresses are known, and not the network, so proposals stay clear of
the /24, or the /64 of IPv6, around each. Networks that Migrations name are read too. No object of Kubernetes
names the networks of a cloud, an office or a VPN: name them with --network.

An overlap is two ranges that share addresses: in a cluster, between clusters, or with a network. Nodes may be
in a network. A range in 100.64.0.0/10 (shared address space, RFC 6598) is a warning, since Tailscale and some
clouds give machines addresses of it.

Proposals are private addresses (RFC 1918, and fd00::/8 of IPv6) that overlap with nothing that was read, nor
with each other. They are as wide as what the cluster has, unless you say.

Exit code: 0 no overlap, 3 overlaps, or rights are missing to read everything, 1 a cluster could not be looked
at; what the others have is shown.`,
		Example: a.Example(`
  replumb ranges
  replumb ranges --contexts prod,staging --network vpc=10.0.0.0/16 --network vpn=100.64.0.0/10
  replumb ranges --service-size /20 --pod-size /14 --count 5
  replumb ranges --from prod.tar.gz --from staging.tar.gz   # of snapshots, without the clusters
  replumb ranges -o jsonpath='{.clusters[*].free[*].ranges}'`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			asked, err := o.asked()
			if err != nil {
				return err
			}
			sides, err := o.sides()
			if err != nil {
				return err
			}
			looks, err := o.read(cmd.Context(), sides)
			if err != nil {
				return err
			}
			return o.print(newRangesPage(looks, asked))
		},
	}
	cmd.Flags().
		StringSliceVar(&o.contexts, "contexts", nil, "contexts of the kubeconfig, separated by commas (default the current one)")
	cmd.Flags().
		StringArrayVar(&o.from, "from", nil, "snapshot to read in place of a cluster, a file of the command snapshot; may be repeated")
	cmd.Flags().StringArrayVar(&o.networks, "network", nil, "NAME=CIDR of a network beside the clusters; may be repeated")
	cmd.Flags().StringSliceVar(&o.serviceSizes, "service-size", nil,
		"prefix length of proposals for Services, such as /16; up to /32 it is for IPv4 (default that of the cluster)")
	cmd.Flags().StringSliceVar(&o.podSizes, "pod-size", nil, "the same for pods")
	cmd.Flags().IntVar(&o.count, "count", 3, "how many ranges to propose for each")
	o.format.DeclareDocument(cmd, "table", "json", "yaml")
	return cmd
}

func (o *rangesOptions) asked() (asked rangesAsked, err error) {
	const most = 100
	if asked.count = o.count; o.count < 1 || o.count > most {
		return asked, &command.UsageError{Problem: fmt.Sprintf("--count is %d", o.count), Hint: fmt.Sprintf("use 1 to %d", most)}
	}
	if asked.sizes.Services, err = sizesOf("--service-size", o.serviceSizes); err != nil {
		return asked, err
	}
	if asked.sizes.Pods, err = sizesOf("--pod-size", o.podSizes); err != nil {
		return asked, err
	}
	for _, text := range o.networks {
		network, err := networkOf(text)
		if err != nil {
			return asked, err
		}
		asked.networks = append(asked.networks, network)
	}
	return asked, nil
}

func sizesOf(flag string, texts []string) (all []int, err error) {
	hint := "use one of /9 to /30 for IPv4, and one of /33 to /126 for IPv6"
	for _, text := range texts {
		bits, err := strconv.Atoi(strings.TrimPrefix(text, "/"))
		if err != nil || !ranges.ValidSize(bits) {
			return nil, &command.UsageError{Problem: fmt.Sprintf("%s %q is no prefix length that can be proposed", flag, text), Hint: hint}
		}
		if slices.ContainsFunc(all, func(have int) bool { return ranges.IPv6Size(have) == ranges.IPv6Size(bits) }) {
			return nil, &command.UsageError{Problem: flag + " has two prefix lengths of one family", Hint: hint}
		}
		all = append(all, bits)
	}
	return all, nil
}

func networkOf(text string) (ranges.Range, error) {
	name, of, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return ranges.Range{}, &command.UsageError{
			Problem: fmt.Sprintf("--network %q has no name", text), Hint: "write NAME=CIDR, such as --network vpn=10.8.0.0/16",
		}
	}
	p, err := cidr.Parse(of)
	if err != nil {
		hint := "write a range such as 10.8.0.0/16"
		if host, err := netip.ParsePrefix(of); err == nil {
			hint = "write " + host.Masked().String()
		}
		return ranges.Range{}, &command.UsageError{Problem: fmt.Sprintf("--network %s: %v", name, err), Hint: hint}
	}
	return ranges.Range{Use: ranges.Network, Prefix: p, Source: "--network " + name}, nil
}

func (o *rangesOptions) contextsAsked(names []string) ([]*genericclioptions.ConfigFlags, error) {
	if len(names) == 0 {
		return []*genericclioptions.ConfigFlags{o.Config}, nil
	}
	if o.Config.Context != nil && *o.Config.Context != "" {
		return nil, &command.UsageError{Problem: "--context and --contexts do not go together", Hint: "name all contexts with --contexts"}
	}
	kubeconfig, err := o.Config.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, command.NoCluster(err)
	}
	if len(kubeconfig.Contexts) == 0 {
		return nil, command.NoKubeconfig(o.Config)
	}
	var all []*genericclioptions.ConfigFlags
	for i, name := range names {
		if _, known := kubeconfig.Contexts[name]; !known {
			return nil, &command.UsageError{
				Problem: fmt.Sprintf("context %q is not in the kubeconfig", name),
				Hint:    "it has " + english.OxfordWordSeries(slices.Sorted(maps.Keys(kubeconfig.Contexts)), "and"),
			}
		}
		if slices.Contains(names[:i], name) {
			return nil, &command.UsageError{Problem: fmt.Sprintf("context %q is named twice", name), Hint: "name it once"}
		}
		all = append(all, o.flagsOf(name))
	}
	return all, nil
}

func (o *rangesOptions) flagsOf(context string) *genericclioptions.ConfigFlags {
	flags := genericclioptions.NewConfigFlags(true)
	flags.Context, flags.Namespace = &context, nil
	flags.KubeConfig, flags.Timeout = o.Config.KubeConfig, o.Config.Timeout
	flags.Impersonate, flags.ImpersonateUID = o.Config.Impersonate, o.Config.ImpersonateUID
	flags.ImpersonateGroup, flags.ImpersonateUserExtra = o.Config.ImpersonateGroup, o.Config.ImpersonateUserExtra
	return flags
}

type rangesLook struct {
	context string
	of      *used.ClusterRanges
	err     error
	taken   time.Time
}

type rangesSide struct {
	name    string
	connect func() (*command.Connection, error)
}

// sides are the snapshots and the clusters of contexts. With a snapshot alone the current context
// is not meant.
func (o *rangesOptions) sides() ([]rangesSide, error) {
	var sides []rangesSide
	for _, file := range o.from {
		sides = append(sides, rangesSide{file, func() (*command.Connection, error) { return o.OpenSnapshot(file) }})
	}
	if len(sides) > 0 && len(o.contexts) == 0 {
		return sides, o.RefuseContext()
	}
	contexts, err := o.contextsAsked(o.contexts)
	if err != nil {
		return nil, err
	}
	for _, of := range contexts {
		sides = append(sides, rangesSide{command.ContextOf(of), func() (*command.Connection, error) { return o.ConnectBy(of) }})
	}
	return sides, nil
}

func (o *rangesOptions) read(ctx context.Context, sides []rangesSide) ([]rangesLook, error) {
	const atOnce = 4
	looks := make([]rangesLook, len(sides))
	var eg errgroup.Group
	eg.SetLimit(atOnce)
	for i, side := range sides {
		look := &looks[i]
		look.context = side.name
		c, err := side.connect()
		if err != nil {
			look.err = err
			continue
		}
		if c.Snapshot != nil {
			look.taken = c.Snapshot.Taken()
		}
		eg.Go(func() error {
			look.of, look.err = used.Read(ctx, c.Cluster)
			return nil
		})
	}
	if err := eg.Wait(); err != nil || ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return o.distinct(looks), nil
}

// distinct leaves out a context that leads to the cluster of another: it would overlap with itself.
func (o *rangesOptions) distinct(looks []rangesLook) []rangesLook {
	var out []rangesLook
	for _, look := range looks {
		i := slices.IndexFunc(out, func(l rangesLook) bool { return look.of != nil && l.of != nil && l.of.Seed == look.of.Seed })
		if i >= 0 {
			fmt.Fprintf(o.Err, "warning: context %s leads to the cluster of context %s, and is left out\n", look.context, out[i].context)
			continue
		}
		out = append(out, look)
	}
	return out
}

// RangesError says that ranges overlap, or were not all read.
type RangesError struct {
	// Overlaps are counted, as are the Unread clusters of Of, and sources NotRead in the others.
	Overlaps, Unread, Of, NotRead int
}

func (e *RangesError) Error() string {
	var all []string
	if e.Unread > 0 {
		all = append(all, fmt.Sprintf("%d of %s could not be read", e.Unread, english.Plural(e.Of, "cluster", "")))
	}
	if e.Overlaps > 0 {
		all = append(all, english.Plural(e.Overlaps, "overlap", ""))
	}
	if e.NotRead > 0 {
		all = append(all, english.Plural(e.NotRead, "source of ranges", "sources of ranges")+" not read")
	}
	return strings.Join(all, "; ")
}

func (e *RangesError) Advice() string {
	switch {
	case e.Unread > 0:
		return "what is shown as free may be in use where nothing was read"
	case e.Overlaps > 0:
		return "ranges that are shown as free are targets for spec.serviceCIDR.to and spec.podCIDR.to"
	}
	return "replumb rbac pods --for view --user NAME prints the role to read all of them"
}

func (e *RangesError) ExitCode() int {
	if e.Unread > 0 {
		return fault.ExitError
	}
	return fault.ExitBlocked
}
