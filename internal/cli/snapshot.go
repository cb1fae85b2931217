package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/offline"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/network/ranges/inventory"
)

// onlyMine is the mode of a file that no one else may read.
const onlyMine = 0o600

func (a *app) snapshot() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "snapshot -o FILE",
		Short: "Keep what check, plan and ranges read of a cluster in a file",
		Args:  noArgs,
		Long: `Read a cluster with your own rights, and keep in one file what check, plan and ranges read of it. Nothing is written to the cluster.
check, plan and ranges answer from the file with --from, without the cluster.

No value of a Secret is in the file: of each key it has the addresses, ranges and reverse zones in the value, in which checks look for old
ones. Everything else is as it is in the cluster, ConfigMaps and the environment of workloads included, with passwords that are in there.
Only you can read the file. A file that is there already is not overwritten.

What you may not read is named, and is not known later either. The role to view of those who move Services reads all that is needed for
that kind (replumb rbac services --for view).`,
		Example: a.example(`
  replumb snapshot -o cluster.tar.gz
  replumb check -f move.yaml --from cluster.tar.gz
  replumb plan -f move.yaml --from cluster.tar.gz
  replumb ranges --from cluster.tar.gz`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return &UsageError{Problem: "name the file to write", Hint: a.name + " snapshot -o cluster.tar.gz"}
			}
			return a.takeSnapshot(cmd.Context(), file)
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write, such as cluster.tar.gz")
	return cmd
}

// takeSnapshot writes a file that is whole, or none. A process that is killed leaves one that is refused later.
func (a *app) takeSnapshot(ctx context.Context, file string) error {
	c, err := a.reach(ctx)
	if err != nil {
		return err
	}
	to, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, onlyMine)
	if errors.Is(err, fs.ErrExist) {
		return &UsageError{Problem: file + " is there already", Hint: "name another file, or remove it"}
	}
	if err != nil {
		return &UsageError{Problem: err.Error(), Hint: "name a file in a folder that you can write to"}
	}
	taker := &offline.Taker{
		Cluster: c.Cluster, Inspector: c.inspector, Rights: readable(), Replumb: versionText(), Now: time.Now,
	}
	head, m, err := taker.Take(ctx, to)
	if err = errors.Join(err, to.Sync(), to.Close()); err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", file, err), os.Remove(file))
	}
	a.tellSnapshot(file, head, m)
	return nil
}

func (a *app) tellSnapshot(file string, head *offline.Head, m *offline.Manifest) {
	fmt.Fprintf(a.out, "%s: %s of %s, server %s, Kubernetes %s\n", file, english.Plural(m.Objects(), "object", ""),
		english.Plural(len(m.Kinds()), "resource", ""), head.Server, head.Kubernetes)
	if len(m.NotRead) > 0 {
		fmt.Fprintf(a.err, "warning: not read, for lack of rights to list them: %s\n", strings.Join(m.NotRead, ", "))
	}
	a.hint("%s check -f FILE --from %s", a.name, file)
}

// readable are the rights that migrations of one cluster, and ranges, ask for.
func readable() []cluster.Right {
	all := inventory.Rights()
	for _, k := range migrations.All() {
		if k.Field != mirrorField {
			all = append(all, k.Roles.Rights()...)
		}
	}
	return slices.DeleteFunc(all, func(r cluster.Right) bool { return r.Group == "*" || r.Resource == "*" })
}

const mirrorField = "mirror"

func (a *app) fromFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.from, "from", "", "snapshot to read in place of the cluster, a file of the command snapshot")
}

// noContext refuses flags that name a cluster beside a snapshot.
func (a *app) noContext() error {
	if a.config.Context != nil && *a.config.Context != "" {
		return &UsageError{Problem: "--from and --context do not go together", Hint: "name a snapshot, or a cluster"}
	}
	return nil
}

// connectTo connects to a snapshot.
func (a *app) connectTo(file string) (*connection, error) {
	if err := a.noContext(); err != nil {
		return nil, err
	}
	kept, err := offline.Open(file)
	if err != nil {
		return nil, err
	}
	server := offline.Serve(kept)
	c, err := server.Connect()
	if err != nil {
		return nil, err
	}
	if !a.settings.quiet {
		fmt.Fprintf(a.err, "snapshot %s of %s, taken at %s\n", file, c.Known(), kept.Head.Time.Format(time.RFC3339))
	}
	return &connection{Cluster: c, inspector: server.Inspector(), snapshot: server}, nil
}

// examined looks at the cluster, or at a snapshot of one: then what is found begins with that, and with what it does not tell.
func (a *app) examined(ctx context.Context, c *connection, j migrations.Job) (migration.Inspection, error) {
	look, err := j.Inspect(ctx)
	if err != nil || c.snapshot == nil {
		return look, err
	}
	r := c.snapshot.Reading()
	look.Findings = append(r.Found(), look.Findings...)
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
