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
	"github.com/replumb/replumb/internal/migrations"
)

// completionLimit is how long a shell waits for the names of Migrations.
const completionLimit = 3 * time.Second

// complete gives shells what they can complete, in all commands: names of Migrations, kinds, phases, files and output formats.
func (a *app) complete(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		a.complete(cmd)
	}
	if root.ValidArgsFunction == nil {
		root.ValidArgsFunction = a.arguments(root.Use)
	}
	for flag, choices := range map[string]cobra.CompletionFunc{
		"context":     a.contexts,
		"contexts":    a.contexts,
		"output":      a.formats,
		"filename":    yamlFiles,
		"plan":        yamlFiles,
		"until":       a.phases,
		"allow-calls": cobra.NoFileCompletions,
	} {
		if root.Flag(flag) != nil {
			_ = root.RegisterFlagCompletionFunc(flag, choices) // which fails for a flag that is not there, and for one that has its own
		}
	}
}

// arguments completes those of a command, by its use line.
func (a *app) arguments(use string) cobra.CompletionFunc {
	words := strings.Fields(use)
	first := ""
	if len(words) > 1 {
		first = strings.Trim(words[1], "[]")
	}
	switch first {
	case "NAME":
		return a.names
	case "KIND":
		return cobra.FixedCompletions(commandKinds(), cobra.ShellCompDirectiveNoFileComp)
	}
	return cobra.NoFileCompletions
}

// names are those of the Migrations in the cluster, with their phases. Only the first argument is one. What keeps them from being
// read is not a shell's business.
func (a *app) names(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionLimit)
	defer cancel()
	c, err := a.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := migration.List(ctx, c.Cluster)
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

// contexts are those of the kubeconfig.
func (a *app) contexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	kubeconfig, err := a.config.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(kubeconfig.Contexts)), cobra.ShellCompDirectiveNoFileComp
}

// phases are those of the Migration in the file, or of all kinds, each once, without one that can be read.
func (a *app) phases(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	slices.Sort(a.input.files)
	a.input.files = slices.Compact(a.input.files) // cobra reads the flags twice for this
	if a.input.given() && !slices.Contains(a.input.files, stdin) {
		if _, j, err := a.given(); err == nil {
			return j.about().phases, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
		}
	}
	var all []cobra.Completion
	for _, kind := range migrations.All() {
		for _, phase := range kind.Apply {
			if !slices.Contains(all, phase) {
				all = append(all, phase)
			}
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// formats are those that the usage of the flag lists; elsewhere -o names a file.
func (a *app) formats(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	list, found := strings.CutPrefix(cmd.Flags().Lookup("output").Usage, command.FormatsPrefix)
	if !found {
		return []cobra.Completion{"json"}, cobra.ShellCompDirectiveDefault
	}
	return strings.Split(list, ", "), cobra.ShellCompDirectiveNoFileComp
}

func yamlFiles(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return []cobra.Completion{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt
}
