package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
)

func (a *app) fromFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.from, "from", "", "snapshot to read in place of the cluster, a file of the command snapshot")
}

// connectTo connects to a snapshot.
func (a *app) connectTo(file string) (*connection, error) {
	c, err := a.OpenSnapshot(file)
	if err != nil {
		return nil, err
	}
	return &connection{Cluster: c.Cluster, inspector: c.Inspector, snapshot: c.Snapshot}, nil
}

// examined looks at the cluster, or at a snapshot of one: then what is found begins with that, and with what it does not tell.
func (a *app) examined(ctx context.Context, c *connection, j job) (outlook, error) {
	look, err := j.examine(ctx)
	if err != nil || c.snapshot == nil {
		return look, err
	}
	r := c.snapshot.Reading()
	look.findings = append(r.Found(), look.findings...)
	for _, line := range r.Warnings() {
		fmt.Fprintln(a.err, "warning: from a snapshot:", line)
	}
	return look, nil
}

// fitsSnapshot refuses Migrations that a snapshot cannot tell of.
func (a *app) fitsSnapshot(m *v1alpha1.Migration) error {
	if a.from != "" && m.Spec.Mirror != nil {
		return &UsageError{
			Problem: "a mirror is of two clusters, and a snapshot is of one", Hint: "leave --from out: check and plan write nothing",
		}
	}
	return nil
}
