package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/reporting/metrics"
)

func (a *app) metricsFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.metricsAddress, "metrics-address", "",
		"[HOST:]PORT to serve Prometheus metrics at, as /metrics, to anyone who reaches it; HOST is 127.0.0.1 unless given (default: none)")
}

// measure serves metrics, if someone asked for them, until stop is called. Without an address there are none, and no port.
func (a *app) measure(ctx context.Context, of engine.Identity, look metrics.Look) (m *metrics.Metrics, stop func(), err error) {
	if a.metricsAddress == "" {
		return nil, func() {}, nil
	}
	m = metrics.New(look)
	m.About(of)
	server, err := m.Serve(ctx, a.metricsAddress)
	if err != nil {
		return nil, nil, &fault.Hinted{Err: err, Hint: "give --metrics-address a HOST:PORT that is free, or leave it out"}
	}
	fmt.Fprintf(a.err, "metrics at http://%s/metrics\n", server.Address)
	return m, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushLimit)
		defer cancel()
		if err := server.Stop(last); err != nil {
			fmt.Fprintf(a.err, "warning: %v\n", err)
		}
	}, nil
}

// migrationOf reads one Migration, as far as it is recorded.
func migrationOf(c *connection, name string) metrics.Look {
	return func(ctx context.Context) ([]v1alpha1.Migration, error) {
		m, err := migration.Get(ctx, c.Cluster, name)
		if err != nil || m == nil {
			return nil, err
		}
		return []v1alpha1.Migration{*m}, nil
	}
}
