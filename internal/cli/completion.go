package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/migration"
)

const completionLimit = 3 * time.Second

// completion of what commands share. A command completes its own flags and arguments itself.
type completion struct{ *command.App }

func (c completion) complete(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		c.complete(cmd)
	}
	if root.ValidArgsFunction == nil {
		root.ValidArgsFunction = c.arguments(root.Use)
	}
	for flag, choices := range map[string]cobra.CompletionFunc{
		"context":     c.contexts,
		"contexts":    c.contexts,
		"output":      c.formats,
		"filename":    yamlFiles,
		"plan":        yamlFiles,
		"allow-calls": cobra.NoFileCompletions,
	} {
		if root.Flag(flag) != nil {
			_ = root.RegisterFlagCompletionFunc(flag, choices) // which fails for a flag that is not there, and for one that has its own
		}
	}
}

func (c completion) arguments(use string) cobra.CompletionFunc {
	words := strings.Fields(use)
	first := ""
	if len(words) > 1 {
		first = strings.Trim(words[1], "[]")
	}
	if first == "NAME" {
		return c.names
	}
	return cobra.NoFileCompletions
}

func (c completion) names(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionLimit)
	defer cancel()
	cluster, err := c.Connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := migration.List(ctx, cluster.Cluster)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for i := range all {
		if m := &all[i]; strings.HasPrefix(m.Name, begun) {
			names = append(names, cobra.CompletionWithDesc(m.Name, strings.TrimSpace(m.Spec.Type()+" "+string(m.Status.Phase))))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (c completion) contexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	kubeconfig, err := c.Config.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(kubeconfig.Contexts)), cobra.ShellCompDirectiveNoFileComp
}

// formats are those that the usage of the flag lists.
func (c completion) formats(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	list := strings.TrimPrefix(cmd.Flags().Lookup("output").Usage, command.FormatsPrefix)
	return strings.Split(list, ", "), cobra.ShellCompDirectiveNoFileComp
}

func yamlFiles(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return []cobra.Completion{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt
}
