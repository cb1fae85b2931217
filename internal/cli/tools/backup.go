// Package tools is the commands beside migrations: what is in a cluster, what goes into it, probes.
package tools

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/safety/backup"
)

// Backup writes the backups of a migration as files.
func Backup(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use: "backup NAME DIR", Short: "Write what a migration has changed, as it was before, as files that kubectl apply accepts",
		Long: `Write every object as it was before the migration NAME first changed it, one file each, into the directory DIR.

The cluster keeps them until the migration is over, and afterwards if it says spec.backups: Keep. The directory
is made if it is not there. Only you can read the files: they may hold Secrets. No file is overwritten.`,
		Example: a.Example("  replumb backup services-to-172-24 ./backup\n  kubectl diff -f ./backup"),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return &command.UsageError{Problem: "name one Migration and a directory", Hint: cmd.CommandPath() + " --help"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.Reach(cmd.Context())
			if err != nil {
				return err
			}
			files, err := backup.Export(cmd.Context(), c.Cluster, args[0], args[1])
			for _, f := range files {
				fmt.Fprintln(a.Out, f)
			}
			return err
		},
	}
}
