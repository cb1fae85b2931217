// Package incluster has the programs of the pods that migrations start: people have no use for
// them.
package incluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/verify/agent"
	"github.com/replumb/replumb/internal/verify/conntrack"
	"github.com/replumb/replumb/internal/verify/memtrim"
)

type agentOptions struct {
	origin, migration, domain string
	api, ranges               []string
	serve                     bool
	interval                  time.Duration
}

// Agent runs on every node while a migration goes on.
func Agent(a *command.App) *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use: "agent", Short: "Watch over a migration from a node", Hidden: true, Args: command.NoArgs,
		Long: `agent runs on every node while a migration goes on; apply starts it, finish and rollback end it.

It probes the cluster, passes barriers, connects to Services that have moved, and reports who
still uses old addresses and what API servers show, all in the NodeReport of its node.

It learns from NODE_NAME, NODE_IPS, POD_IP and POD_UID in its environment where it runs, and reaches
the API servers at --api with the token of its ServiceAccount, without any Service as long as one of
them answers.`,
		Example: a.Example(`
  replumb agent --origin=host --migration=services-to-172-24 --api=192.0.2.10:6443,192.0.2.11:6443
  replumb agent --origin=pod --serve --migration=services-to-172-24 --api=192.0.2.10:6443`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			own, err := o.agent(os.Getenv, a.Build.Version)
			if err != nil {
				return err
			}
			own.Log = func(err error) { fmt.Fprintf(a.Err, "error: %v\n", err) }
			return o.run(cmd.Context(), own)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.origin, "origin", "", "network it is in: host or pod")
	flags.StringVar(&o.migration, "migration", "", "the Migration that goes on")
	flags.StringSliceVar(&o.api, "api", nil, "IP:port of the API servers")
	flags.StringSliceVar(&o.ranges, "ranges", nil, "ranges that addresses of Services leave and come to; none if Services do not move")
	flags.StringVar(&o.domain, "domain", "", "domain of the cluster; by default what its pods use")
	flags.DurationVar(&o.interval, "interval", 10*time.Second, "how often it reports when there are no news")
	flags.BoolVar(&o.serve, "serve", false, "also be what agents call, on ports 8080 (HTTP), 8081 (TCP) and 8082 (UDP); for origin pod")
	return cmd
}

func (o *agentOptions) agent(env func(string) string, version string) (*agent.Agent, error) {
	hint := "apply starts agents with all they need"
	origins := map[string]v1alpha1.ProbeOrigin{"host": v1alpha1.FromHost, "pod": v1alpha1.FromPod}
	own := &agent.Agent{
		Origin:    origins[o.origin],
		Migration: o.migration,
		Node:      env("NODE_NAME"),
		Instance:  env("POD_UID"),
		Version:   version,
		Domain:    o.domain,
		Interval:  o.interval,
	}
	var err error
	own.NodeIPs, err = addresses(env("NODE_IPS"))
	_, errPod := netip.ParseAddr(env("POD_IP"))
	var errRanges error
	own.Ranges, errRanges = prefixes(o.ranges)
	for _, c := range []struct {
		problem string
		is      bool
	}{
		{"--origin is neither host nor pod", own.Origin == ""},
		{"--migration is missing", o.migration == ""},
		{"--api does not name an API server as IP:port", !endpoints(o.api)},
		{fmt.Sprintf("--ranges is %q, and not all of them are ranges", o.ranges), errRanges != nil},
		{"--serve is for --origin=pod", o.serve && own.Origin != v1alpha1.FromPod},
		{"NODE_NAME is not in the environment", own.Node == ""},
		{fmt.Sprintf("NODE_IPS in the environment is %q, and not one or more addresses", env("NODE_IPS")), err != nil},
		{fmt.Sprintf("POD_IP in the environment is %q and no address", env("POD_IP")), errPod != nil},
		{"POD_UID is not in the environment", own.Instance == ""},
	} {
		if c.is {
			return nil, &command.UsageError{Problem: c.problem, Hint: hint}
		}
	}
	return own, nil
}

func addresses(text string) ([]netip.Addr, error) {
	var all []netip.Addr
	for one := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(one)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

func endpoints(texts []string) bool {
	wrong := func(text string) bool { _, err := netip.ParseAddrPort(text); return err != nil }
	return len(texts) > 0 && !slices.ContainsFunc(texts, wrong)
}

func (o *agentOptions) run(ctx context.Context, own *agent.Agent) error {
	config, _ := cluster.Direct(o.api, fallback(os.Getenv), cluster.ServiceAccountDir)
	c, err := cluster.Connect(config)
	if err != nil {
		return fmt.Errorf("agent on node %s: %w", own.Node, err)
	}
	own.Client, own.Domain = c, cmp.Or(o.domain, agent.DomainOf(agent.ResolvConf))
	own.NameServer = agent.NameServerOf(agent.ResolvConf)
	if own.Origin == v1alpha1.FromHost && len(own.Ranges) > 0 { // else there are no old addresses
		own.Flows = conntrack.New()
		each := rest.CopyConfig(config)
		each.Dial = nil // which leads to any of them
		inspector := apiserver.New(each)
		own.Servers = func(ctx context.Context) []v1alpha1.APIServerReport {
			return apiserver.Report(inspector.InspectAll(ctx, o.api), time.Now())
		}
	}
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { trim(ctx, own.Log); return nil })
	if o.serve {
		server, err := listenForAgents(ctx)
		if err != nil {
			return fmt.Errorf("agent on node %s: %w", own.Node, err)
		}
		all.Go(func() error { return server.Serve(ctx) })
	}
	all.Go(func() error { return own.Run(ctx) })
	if err := all.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("agent on node %s: %w", own.Node, err)
	}
	return nil
}

// settled is when an agent has read everything, and only watches and probes.
const settled = 20 * time.Second

// trim keeps an agent small: it runs beside others on every node.
func trim(ctx context.Context, log func(error)) {
	for _, after := range []time.Duration{0, settled} {
		select {
		case <-ctx.Done():
			return
		case <-time.After(after):
		}
		if err := memtrim.Trim(); err != nil {
			log(err)
		}
	}
}
