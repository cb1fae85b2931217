package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/migrations"
)

// Main runs replumb and returns its exit code.
func Main() int {
	// The first Ctrl-C lets the steps in hand finish. After it the signal has its default effect again, so a second one
	// ends the process at once, which is as safe as any crash.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGPIPE) // a reader that went away would else end the process in the middle of a step
	context.AfterFunc(ctx, stop)
	noticeVanished()
	name := filepath.Base(os.Args[0])
	err := NewCommand(name, os.Stdin, os.Stdout, os.Stderr).ExecuteContext(ctx)
	Report(os.Stderr, calledAs(name), err)
	return ExitCode(err)
}

// noticeVanished has all connections to API servers of this process notice within five seconds, and not within 45, that the API server has
// vanished without a word, unless the environment says otherwise (SetTransportDefaults in k8s.io/apimachinery pkg/util/net/http.go). A Service may
// be between its patches for as long.
func noticeVanished() {
	for name, seconds := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "3", "HTTP2_PING_TIMEOUT_SECONDS": "2"} {
		if _, set := os.LookupEnv(name); !set {
			_ = os.Setenv(name, seconds) // a name like these cannot be refused
		}
	}
}

// app is what the commands share.
type app struct {
	name string
	in   io.Reader
	out  *output
	// err is stderr, for people.
	err    printable.Writer
	config *genericclioptions.ConfigFlags
	kinds  migrations.Kinds
	output string
	input  input
	// from is the file with the snapshot that is read in place of a cluster; empty for none.
	from string
	// dir is the folder of the file with the Migration.
	dir string
	yes bool
	// passEnv are variables that programs get beside those that all get.
	passEnv []string
	// allowCalls is the digest of calls that the operator agrees to.
	allowCalls string
	// insecureTarget takes the kubeconfig of a Secret as it is.
	insecureTarget bool
	// acceptDowntime says that clients may be cut off.
	acceptDowntime bool
	// withoutAgent overrides spec.proof.agents.
	withoutAgent bool
	// local runs migrations in this process whether or not there is an operator.
	local bool
	// metricsAddress is where Prometheus finds metrics; empty for nowhere.
	metricsAddress string
	settings       settings
}

// NewCommand is the replumb command. As a kubectl plugin (kubectl-replumb) it calls itself "kubectl replumb".
func NewCommand(argv0 string, in io.Reader, out, errOut io.Writer) *cobra.Command {
	a := &app{
		name:   calledAs(argv0),
		in:     in,
		out:    &output{w: out},
		err:    printable.Writer{To: errOut},
		config: genericclioptions.NewConfigFlags(true),
		kinds:  migrations.All(),
	}
	root := &cobra.Command{
		Use:   "replumb",
		Short: "Change the network under a live Kubernetes cluster without dropping a request",
		Long: `replumb changes the network under a live Kubernetes cluster without dropping a request: its Service range, its pod
range, the network of its nodes, and, while a second cluster serves, its CNI.

Describe the move in a Migration, look at the plan, apply it. Old addresses stay valid until
you finish; until then everything can be rolled back. Every command can be interrupted and run again.
Where only you can act, as on certificates, it prints what to do, waits, and verifies the result.`,
		Example: a.example(`
  replumb check -f move.yaml        # is the cluster fit for it?
  replumb plan -f move.yaml         # what would be done, in order
  replumb apply -f move.yaml        # do it; old addresses keep answering
  replumb status                    # where everything stands, and what is next
  replumb finish services-to-172-24 # take old addresses away for good`),
		SilenceErrors: true,
		SilenceUsage:  true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: a.name},
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       versionText(),

		PersistentPostRunE: func(*cobra.Command, []string) error { return a.out.failed() },
	}
	root.SetIn(in)
	root.SetOut(a.out)
	root.SetErr(errOut)
	root.Flags().Bool("version", false, "print the version of this program") // without a short form: -v is for more output
	root.SetVersionTemplate("replumb {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &UsageError{Problem: err.Error(), Hint: cmd.CommandPath() + " --help"}
	})
	a.addConfigFlags(root.PersistentFlags())
	a.settings.declare(root.PersistentFlags())
	root.AddCommand(a.commands()...)
	a.complete(root)
	a.govern(root)
	return root
}

// commands are all of them, in the order in which help lists them.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.check(),
		a.explainCode(),
		a.plan(),
		a.apply(),
		a.status(),
		a.pause(),
		a.resume(),
		a.rollback(),
		a.finish(),
		a.fleet(),
		a.report(),
		a.ui(),
		a.ranges(),
		a.mirror(),
		a.snapshot(),
		a.rbac(),
		a.unfreeze(),
		a.backup(),
		a.probe(),
		a.canary(),
		a.tunnels(),
		a.node(),
		a.agent(),
		a.answer(),
		a.overlap(),
		a.operator(),
		a.install(),
		a.uninstall(),
		a.version(),
	}
}

// addConfigFlags takes kubectl's flags; those rarely used stay out of the help.
func (a *app) addConfigFlags(flags *pflag.FlagSet) {
	a.config.Namespace = nil // a migration is of a cluster
	a.config.AddFlags(flags)
	shown := []string{"kubeconfig", "context", "request-timeout", "as"}
	flags.VisitAll(func(f *pflag.Flag) { f.Hidden = !slices.Contains(shown, f.Name) })
}

func (a *app) example(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(text, "\n"), "  replumb ", "  "+a.name+" ")
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &UsageError{Problem: fmt.Sprintf("unknown command or argument %q", args[0]), Hint: cmd.CommandPath() + " --help"}
	}
	return nil
}

func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return &UsageError{Problem: "name one Migration", Hint: "kubectl get migrations.replumb.dev lists them"}
	}
	return nil
}

func (a *app) outputFlag(cmd *cobra.Command, formats ...string) {
	usage := formatsPrefix + strings.Join(formats, ", ")
	cmd.Flags().StringVarP(&a.output, "output", "o", formats[0], usage)
	before := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("output") {
			a.output = formats[0] // and not what the flag of the command is by default that was declared last
		}
		if !slices.Contains(formats, a.output) {
			return &UsageError{
				Problem: fmt.Sprintf("output format %q is not known", a.output),
				Hint:    "use one of " + strings.Join(formats, ", "),
			}
		}
		if before != nil {
			return before(cmd, args)
		}
		return nil
	}
}

// asksPeople says that stdin is a terminal.
func (a *app) asksPeople() bool {
	f, ok := a.in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// terminal is stderr, to draw on; nil if it is none, or a dumb one.
func (a *app) terminal() *os.File {
	if f, ok := a.err.To.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		return f
	}
	return nil
}

// stdout is for people or for programs, as the output format says.
func (a *app) stdout() io.Writer {
	switch a.output {
	case "", "table", "wide", "name":
		return a.out
	}
	return verbatim{a.out}
}

// confirm asks on a terminal. Elsewhere the answer must have been given by --yes.
func (a *app) confirm(question string) error {
	if a.yes {
		return nil
	}
	if !a.asksPeople() {
		return &UsageError{Problem: "stdin is not a terminal, so there is no one to ask", Hint: "add --yes if you are sure"}
	}
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	var answer string
	if _, err := fmt.Fscanln(a.in, &answer); err != nil && !errors.Is(err, io.EOF) && err.Error() != "unexpected newline" {
		return fmt.Errorf("reading the answer: %w", err)
	}
	if answer != "y" && answer != "yes" {
		return &fault.Hinted{Err: errors.New("not confirmed; nothing was changed"), Hint: "answer y, or add --yes"}
	}
	return nil
}
