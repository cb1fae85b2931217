package tools

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

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/offline"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/network/ranges/used"
)

const onlyMine = 0o600

// Snapshot keeps what check, plan and ranges read of a cluster in a file.
func Snapshot(a *command.App) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "snapshot --file FILE",
		Short: "Keep what check, plan and ranges read of a cluster in a file",
		Args:  command.NoArgs,
		Long: `Read a cluster with your own rights, and keep in one file what check, plan and ranges read of it. Nothing is
written to the cluster. check, plan and ranges answer from the file with --from, without the cluster.

No value of a Secret is in the file: of each key it has the addresses, ranges and reverse zones in the value, in
which checks look for old ones. Everything else is as it is in the cluster, ConfigMaps and the environment of
workloads included, with passwords that are in there. Only you can read the file. A file that is there already
is not overwritten.

Kinds that you may not read are named, and are not known later either. The role to view of those who move Services reads
all that is needed for that kind (replumb rbac services --for view).`,
		Example: a.Example(`
  replumb snapshot --file cluster.tar.gz
  replumb check -f move.yaml --from cluster.tar.gz
  replumb plan -f move.yaml --from cluster.tar.gz
  replumb ranges --from cluster.tar.gz`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return &command.UsageError{Problem: "name the file to write", Hint: a.Name + " snapshot --file cluster.tar.gz"}
			}
			return takeSnapshot(cmd.Context(), a, file)
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "file to write, such as cluster.tar.gz")
	return cmd
}

// takeSnapshot writes a whole file or none.
func takeSnapshot(ctx context.Context, a *command.App, file string) error {
	c, err := a.Reach(ctx)
	if err != nil {
		return err
	}
	to, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, onlyMine)
	if errors.Is(err, fs.ErrExist) {
		return &command.UsageError{Problem: file + " is there already", Hint: "name another file, or remove it"}
	}
	if err != nil {
		return &command.UsageError{Problem: err.Error(), Hint: "name a file in a folder that you can write to"}
	}
	taker := &offline.Taker{
		Cluster: c.Cluster, Inspector: c.Inspector, Rights: readable(), Replumb: a.Build.Text(), Now: time.Now,
	}
	head, m, err := taker.Take(ctx, to)
	if err = errors.Join(err, to.Sync(), to.Close()); err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", file, err), os.Remove(file))
	}
	describeSnapshot(a, file, head, m)
	return nil
}

func describeSnapshot(a *command.App, file string, head *offline.Head, m *offline.Manifest) {
	fmt.Fprintf(a.Out, "%s: %s of %s, server %s, Kubernetes %s\n", file, english.Plural(m.Objects(), "object", ""),
		english.Plural(len(m.Kinds()), "resource", ""), head.Server, head.Kubernetes)
	if len(m.NotRead) > 0 {
		fmt.Fprintf(a.Err, "warning: not read, for lack of rights to list them: %s\n", strings.Join(m.NotRead, ", "))
	}
	a.Hint("%s check -f FILE --from %s", a.Name, file)
}

func readable() []access.Right {
	all := used.Rights()
	for _, k := range migrations.All() {
		if k.Field != "mirror" {
			all = append(all, k.Roles.Rights()...)
		}
	}
	return slices.DeleteFunc(all, func(r access.Right) bool { return r.Group == "*" || r.Resource == "*" })
}
