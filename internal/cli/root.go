// Package cli is the commands of replumb: they parse, call and render, and decide nothing else.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/cli/fleet"
	"github.com/replumb/replumb/internal/cli/incluster"
	"github.com/replumb/replumb/internal/cli/migrate"
	"github.com/replumb/replumb/internal/cli/tools"
)

// Main runs replumb and returns its exit code.
func Main() int {
	// The first Ctrl-C lets the steps in hand finish. A second one has the default effect of the
	// signal and ends the process at once, which is as safe as any crash.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGPIPE) // a reader that went away would else end the process in the middle of a step
	context.AfterFunc(ctx, stop)
	noticeVanished()
	cobra.EnableCommandSorting = false // help has the commands as sections list them
	name := filepath.Base(os.Args[0])
	err := NewCommand(name, os.Stdin, os.Stdout, os.Stderr).ExecuteContext(ctx)
	command.Report(os.Stderr, command.CalledAs(name), err)
	return command.ExitCode(err)
}

// noticeVanished makes connections notice a vanished API server within five seconds and not 45,
// unless the environment says otherwise (SetTransportDefaults in k8s.io/apimachinery
// pkg/util/net/http.go): a Service may be between its patches for as long.
func noticeVanished() {
	for name, seconds := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "3", "HTTP2_PING_TIMEOUT_SECONDS": "2"} {
		if _, set := os.LookupEnv(name); !set {
			_ = os.Setenv(name, seconds) // a name like these cannot be refused
		}
	}
}

var version string

var digest string //nolint:gochecknoglobals // as version is

// NewCommand is the replumb command, which as a plugin is "kubectl replumb".
func NewCommand(argv0 string, in io.Reader, out, errOut io.Writer) *cobra.Command {
	a := command.New(argv0, in, out, errOut, command.Build{Version: version, Digest: digest})
	root := &cobra.Command{
		Use:   "replumb",
		Short: "Change the network under a live Kubernetes cluster without dropping a request",
		Long: `replumb changes the network under a live Kubernetes cluster without dropping a request: its Service range, its
pod range, the network of its nodes, its CNI, and the mode of its kube-proxy. It can lead all clients to a
second cluster, and back.

Describe the move in a Migration, look at the plan, apply it. Old addresses stay valid until
you finish; until then everything can be rolled back. Every command can be interrupted and run again.
Where only you can act, as on certificates, it prints what to do, waits, and verifies the result.`,
		Example: a.Example(`
  replumb check -f move.yaml        # is the cluster fit for it?
  replumb plan -f move.yaml         # what would be done, in order
  replumb apply -f move.yaml        # do it; old addresses keep answering
  replumb status                    # where everything stands, and what is next
  replumb finish services-to-172-24 # take old addresses away for good`),
		SilenceErrors: true,
		SilenceUsage:  true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: a.Name},
		Args:          command.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       a.Build.Text(),

		PersistentPostRunE: func(*cobra.Command, []string) error { return a.Out.Failed() },
	}
	root.SetIn(in)
	root.SetOut(a.Out)
	root.SetErr(errOut)
	root.Flags().Bool("version", false, "print the version of this program") // without a short form: -v is for more output
	root.SetVersionTemplate("replumb {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 120"))
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd.HasAvailableSubCommands() && cmd.Flags().NArg() > 0 { // the flag is of the command that was meant
			return command.UnknownCommand(cmd, cmd.Flags().Arg(0))
		}
		return &command.UsageError{Problem: err.Error(), Hint: cmd.CommandPath() + " --help"}
	})
	addConfigFlags(a, root.PersistentFlags())
	a.Settings.Declare(root.PersistentFlags())
	addCommands(a, root)
	completion{a}.complete(root)
	a.Settings.Govern(root)
	return root
}

// section is a heading of help, with the commands below it in their order.
type section struct {
	id, title string
	commands  []*cobra.Command
}

func sections(a *command.App) []section {
	return []section{
		{"look", "Look, and change nothing:", []*cobra.Command{
			migrate.Check(a), migrate.Plan(a), tools.Ranges(a), tools.Snapshot(a), tools.Explain(a),
		}},
		{"run", "Run a migration:", []*cobra.Command{
			migrate.Apply(a), migrate.Status(a), migrate.Pause(a), migrate.Resume(a), migrate.Rollback(a), migrate.Finish(a),
		}},
		{"record", "See what was done:", []*cobra.Command{migrate.Report(a), migrate.UI(a), tools.Backup(a)}},
		{"setup", "Set up:", []*cobra.Command{tools.Install(a), tools.Uninstall(a), migrate.RBAC(a), tools.Version(a), incluster.Operator(a)}},
		{"more", "More:", []*cobra.Command{fleet.Command(a), tools.MirrorConfig(a), tools.Unfreeze(a), tools.Probe(a)}},
	}
}

// addCommands adds all commands, in the order in which help lists them. Commands that run in pods
// are hidden.
func addCommands(a *command.App, root *cobra.Command) {
	for _, s := range sections(a) {
		root.AddGroup(&cobra.Group{ID: s.id, Title: s.title})
		for _, c := range s.commands {
			c.GroupID = s.id
			root.AddCommand(c)
		}
	}
	root.SetHelpCommandGroupID("more")
	root.AddCommand(
		incluster.TestPod(a), incluster.Tunnels(a), incluster.Node(a), incluster.Agent(a), incluster.Echo(a), incluster.Overlap(a),
	)
}

func addConfigFlags(a *command.App, flags *pflag.FlagSet) {
	a.Config.Namespace = nil // a migration is of a cluster
	a.Config.AddFlags(flags)
	shown := []string{"kubeconfig", "context", "request-timeout", "as"}
	flags.VisitAll(func(f *pflag.Flag) { f.Hidden = !slices.Contains(shown, f.Name) })
}
