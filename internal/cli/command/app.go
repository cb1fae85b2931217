package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/engine/printable"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// App is what every command is given. The flags of a command are the command's own.
type App struct {
	// Name is what the user calls the program.
	Name     string
	In       io.Reader
	Out      *Output
	Err      printable.Writer
	Config   *genericclioptions.ConfigFlags
	Settings Settings
	Build    Build
	Kinds    migrations.Kinds
}

// New is the App of a process, or of a test.
func New(argv0 string, in io.Reader, out, errOut io.Writer, build Build) *App {
	return &App{
		Name: CalledAs(argv0), In: in, Out: &Output{To: out}, Err: printable.Writer{To: errOut},
		Config: genericclioptions.NewConfigFlags(true), Build: build, Kinds: migrations.All(),
	}
}

// Example has the commands of an example as the user types them.
func (a *App) Example(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(text, "\n"), "  replumb ", "  "+a.Name+" ")
}

// NoArgs refuses arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasAvailableSubCommands() {
		return UnknownCommand(cmd, args[0])
	}
	hint := cmd.CommandPath() + " --help"
	if cmd.Flags().Lookup(fileFlag) != nil {
		hint = fmt.Sprintf("name the file with -f: %s -f %s", cmd.CommandPath(), args[0])
	}
	return &UsageError{Problem: fmt.Sprintf("%s takes no argument %q", cmd.CommandPath(), args[0]), Hint: hint}
}

// UnknownCommand refuses a word that is no command below one, and names what was probably meant.
func UnknownCommand(parent *cobra.Command, word string) error {
	var names []string
	meant := ""
	for _, c := range parent.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
			if slices.Contains(c.SuggestFor, word) {
				meant = c.Name()
			}
		}
	}
	hint := parent.CommandPath() + " --help lists the commands"
	if meant = cmp.Or(meant, lists.Closest(word, names)); meant != "" {
		hint = fmt.Sprintf("did you mean %s %s?", parent.CommandPath(), meant)
	}
	return &UsageError{Problem: fmt.Sprintf("unknown command %q", word), Hint: hint}
}

// OneName wants the name of a Migration.
func OneName(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return &UsageError{Problem: "name one Migration", Hint: "replumb status lists them"}
	}
	return nil
}

// YesFlag declares --yes, which answers what Confirm asks.
func YesFlag(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "don't ask")
}

// AsksPeople reports whether stdin is a terminal.
func (a *App) AsksPeople() bool {
	f, ok := a.In.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Terminal is stderr to draw on; nil if it is no terminal, or a dumb one.
func (a *App) Terminal() *os.File {
	if f, ok := a.Err.To.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		return f
	}
	return nil
}

// paints reports whether what is written to a stream may have colours: on a terminal, unless
// NO_COLOR is set.
func paints(to io.Writer) bool {
	f, ok := to.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" && os.Getenv("NO_COLOR") == ""
}

// Checklist writes findings for people to stdout, in colours where it may. The writer is for it
// alone, which escapes by itself what others wrote.
func (a *App) Checklist(all bool) (terminal.Checklist, io.Writer) {
	if paints(a.Out.To) {
		return terminal.Checklist{All: all, Color: true}, a.Out.Verbatim()
	}
	return terminal.Checklist{All: all}, a.Out
}

// Confirm asks on a terminal. Elsewhere --yes must have answered.
func (a *App) Confirm(yes bool, question string) error {
	return a.confirmed(yes, question+" [y/N] ", "answer y, or add --yes", func(answer string) bool {
		return strings.EqualFold(answer, "y") || strings.EqualFold(answer, "yes")
	})
}

// ConfirmByName asks for a name to be typed, where a mistake about which one it is has no way back.
func (a *App) ConfirmByName(yes bool, question, what, name string) error {
	prompt := fmt.Sprintf("%s Type the name of the %s, %s: ", question, what, name)
	return a.confirmed(yes, prompt, "type "+name+" as it stands there, or add --yes", func(answer string) bool { return answer == name })
}

func (a *App) confirmed(yes bool, prompt, hint string, agrees func(answer string) bool) error {
	if yes {
		return nil
	}
	if !a.AsksPeople() {
		return &UsageError{Problem: "stdin is not a terminal, so there is no one to ask", Hint: "add --yes if you are sure"}
	}
	answer, err := a.Ask(prompt)
	if err != nil {
		return err
	}
	if !agrees(answer) {
		return &fault.Hinted{Err: errors.New("not confirmed; nothing was changed"), Hint: hint}
	}
	return nil
}

// Ask reads one line from a terminal; empty for a bare Enter.
func (a *App) Ask(prompt string) (string, error) {
	fmt.Fprint(a.Err, prompt)
	var line []byte
	for next := make([]byte, 1); ; { // no more than the line, so that the next question finds its answer
		n, err := a.In.Read(next)
		if n > 0 && next[0] == '\n' || errors.Is(err, io.EOF) {
			return strings.TrimSpace(string(line)), nil
		}
		if err != nil {
			return "", fmt.Errorf("reading the answer: %w", err)
		}
		line = append(line, next[:n]...)
	}
}

// Hint says what to do next, unless --quiet leaves that out.
func (a *App) Hint(format string, args ...any) {
	if !a.Settings.Quiet {
		fmt.Fprintf(a.Err, "hint: "+format+"\n", args...)
	}
}

// Done ends a command with one line; with -o json the events have said it.
func (a *App) Done(f Format, message string) error {
	if f.Name == "json" {
		return nil
	}
	_, err := fmt.Fprintln(a.Out, message)
	return err
}

// Stdout is for people or for programs, as the output format says.
func (a *App) Stdout(f Format) io.Writer {
	if f.ForPeople() {
		return a.Out
	}
	return a.Out.Verbatim()
}

// Runner renders events as the flags and the terminal ask for.
func (a *App) Runner(f Format) *engine.Runner {
	if f.Name == "json" {
		return &engine.Runner{Sink: terminal.JSONLines(a.Out.Verbatim())}
	}
	if a.Settings.Quiet {
		return &engine.Runner{Sink: func(engine.Event) {}}
	}
	if f := a.Terminal(); f != nil {
		return &engine.Runner{Sink: terminal.NewProgress(f, int(f.Fd())).Event}
	}
	return &engine.Runner{Sink: terminal.Plain(a.Err)}
}

// Build is what the linker set; both are empty in a build without make.
type Build struct {
	Version string
	// Digest of the image of this release (sha256:…): pods run that, wherever its tag leads by
	// then.
	Digest string
}

// Text is the version for people: that of the linker, else that of the module.
func (b Build) Text() string {
	if b.Version != "" {
		return b.Version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// Image is where pods find this version of replumb; empty if it was not released.
func (b Build) Image() string {
	if !Released(b.Version) {
		return ""
	}
	image := "ghcr.io/replumb/replumb:" + b.Version
	if b.Digest != "" {
		image += "@" + b.Digest
	}
	return image
}

// Released reports whether a version is one of a release.
func Released(version string) bool {
	return regexp.MustCompile(`^v\d+\.\d+\.\d+$`).MatchString(version)
}
