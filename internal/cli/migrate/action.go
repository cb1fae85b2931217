// Package migrate is the commands that plan, run and show migrations.
package migrate

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/reporting/metrics"
)

// action is what commands share that change something: apply, rollback, finish and resume.
type action struct {
	source
	format command.Format
	yes    bool
	// local runs migrations in this process whether or not there is an operator.
	local      bool
	allowCalls string
	// metricsAddress is where Prometheus finds metrics; empty for nowhere.
	metricsAddress string
}

func (o *action) declare(cmd *cobra.Command) {
	o.declareFiles(cmd)
	cmd.Flags().BoolVar(&o.local, "local", false,
		"run here even if an operator is installed; it takes over again afterwards")
	o.format.Declare(cmd, "table", "json")
	cmd.Flags().StringVar(&o.metricsAddress, "metrics-address", "",
		"[HOST:]PORT to serve Prometheus metrics at, as /metrics, to anyone who reaches it; HOST is 127.0.0.1 unless given (default: none)")
}

func (o *action) declareCalls(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.allowCalls, "allow-calls", "",
		"digest of the calls in the Migration that this machine may make (docs/hooks.md)")
}

func (o *action) hintAfter(hint string) {
	if hint != "" {
		o.Hint("%s", command.Spoken(o.Name, hint))
	}
}

func (o *action) measure(ctx context.Context, of engine.Identity, look metrics.Look) (m *metrics.Metrics, stop func(), err error) {
	if o.metricsAddress == "" {
		return nil, func() {}, nil
	}
	m = metrics.New(look)
	m.About(of)
	server, err := m.Serve(ctx, o.metricsAddress)
	if err != nil {
		return nil, nil, &fault.Hinted{Err: err, Hint: "give --metrics-address a HOST:PORT that is free, or leave it out"}
	}
	fmt.Fprintf(o.Err, "metrics at http://%s/metrics\n", server.Address)
	return m, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), command.FlushLimit)
		defer cancel()
		if err := server.Stop(last); err != nil {
			fmt.Fprintf(o.Err, "warning: %v\n", err)
		}
	}, nil
}

func migrationOf(c *command.Connection, name string) metrics.Look {
	return func(ctx context.Context) ([]v1alpha1.Migration, error) {
		m, err := migration.Get(ctx, c.Cluster, name)
		if err != nil || m == nil {
			return nil, err
		}
		return []v1alpha1.Migration{*m}, nil
	}
}
