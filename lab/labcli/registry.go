package labcli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/lab/lab"
)

func newRegistry(s streams) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "registry",
		Short: "Print what pods need to pull from a lab's image registry",
		Long:  `Print the credentials of a lab's image registry, as Secrets of type kubernetes.io/dockerconfigjson have them.`,
		Example: `  replumb-lab registry | kubectl -n shop create secret generic pull --type kubernetes.io/dockerconfigjson \
      --from-file .dockerconfigjson=/dev/stdin`,
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			r, err := l.Addons().RequireRegistry()
			if err != nil {
				return err
			}
			config, err := r.DockerConfig()
			if err == nil {
				_, err = fmt.Fprintf(s.out, "%s\n", config)
			}
			return err
		},
	}
	nameFlag(cmd, &name)
	return cmd
}

func newPush(s streams) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     "push IMAGE NAME:TAG",
		Short:   "Put one of the lab's own images into its image registry",
		Example: "  replumb-lab push replumb.local/echo:lab shop/echo:1",
		Args:    args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, given []string) error {
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			if err := l.Addons().Push(cmd.Context(), given[0], given[1]); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(s.err, "pods can pull %s/%s, with credentials\n", l.Registry().Host, given[1])
			return nil
		},
	}
	nameFlag(cmd, &name)
	return cmd
}
