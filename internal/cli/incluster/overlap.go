package incluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/overlap"
)

type overlapOptions struct {
	migration string
	api       []string
}

// Overlap runs in the cluster as long as there are bridges.
func Overlap(a *command.App) *cobra.Command {
	var o overlapOptions
	cmd := &cobra.Command{
		Use: "overlap", Short: "Keep bridges up to date", Hidden: true, Args: command.NoArgs,
		Long: `overlap runs in the cluster from the first bridge of a migration of Services to the last; apply starts it,
finish and rollback end it.

It gives bridges the selectors and ports that their Services have, and copies of their endpoints where they have
no selector. An address that a Service keeps itself, and that its owner or a tool takes off, it puts back, and
says who wrote the Service last. A Service that a run has left without an address gets one once nobody is at
work. Of several replicas one writes, and the others make up for it.

It learns from POD_NAME and POD_UID in its environment who it is, and reaches the API servers at --api with the
token of its ServiceAccount, without any Service as long as one of them answers.`,
		Example: a.Example("  replumb overlap --migration=services-to-172-24 --api=192.0.2.10:6443,192.0.2.11:6443"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := o.replica(os.Getenv)
			if err != nil {
				return err
			}
			r.Log = func(err error) { fmt.Fprintf(a.Err, "error: %v\n", err) }
			r.Told = func(text string) { fmt.Fprintln(a.Out, text) }
			config, servers := cluster.Direct(o.api, fallback(os.Getenv), cluster.ServiceAccountDir)
			if r.Cluster, err = cluster.Connect(config); err != nil {
				return fmt.Errorf("replica %s: %w", r.Name, err)
			}
			r.Endpoints = servers
			r.Locked = func(ctx context.Context) (bool, error) { return migration.Locked(ctx, r.Cluster) }
			if err := r.Run(cmd.Context()); err != nil && !errors.Is(err, context.Canceled) {
				return fmt.Errorf("replica %s: %w", r.Name, err)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.migration, "migration", "", "the Migration whose bridges are kept in step")
	flags.StringSliceVar(&o.api, "api", nil, "IP:port of the API servers")
	return cmd
}

func (o *overlapOptions) replica(env func(string) string) (*overlap.Replica, error) {
	for _, c := range []struct {
		problem string
		is      bool
	}{
		{"--migration is missing", o.migration == ""},
		{"--api does not name an API server as IP:port", !endpoints(o.api)},
		{"POD_NAME is not in the environment", env("POD_NAME") == ""},
		{"POD_UID is not in the environment", env("POD_UID") == ""},
	} {
		if c.is {
			return nil, &command.UsageError{Problem: c.problem, Hint: "apply starts replicas with all they need"}
		}
	}
	// Replicas had better not depend on the same API server.
	rand.Shuffle(len(o.api), func(i, j int) { o.api[i], o.api[j] = o.api[j], o.api[i] }) //nolint:gosec // others may foresee it
	return &overlap.Replica{Migration: o.migration, Name: env("POD_NAME"), UID: types.UID(env("POD_UID"))}, nil
}

// fallback is the address of the Service kubernetes when the pod started.
func fallback(env func(string) string) []string {
	if host, port := env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT"); host != "" && port != "" {
		return []string{net.JoinHostPort(host, port)}
	}
	return nil
}
