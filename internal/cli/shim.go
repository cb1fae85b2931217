package cli

import (
	"io"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/replumb/replumb/internal/cli/command"
)

// The names by which migrations' commands know what all commands share.
type (
	output     = command.Output
	UsageError = command.UsageError
	objectHead = command.Head
)

type verbatim struct{ *output }

func (v verbatim) Write(p []byte) (int, error) { return v.Verbatim().Write(p) }

func headed(kind, name string) objectHead     { return command.HeadOf(kind, name) }
func listOf[T any](items []T) command.List[T] { return command.ListOf(items) }

func oneDocument(pages []page) any {
	if len(pages) == 1 {
		return pages[0]
	}
	return listOf(pages)
}

var (
	hintOf         = command.HintOf
	spoken         = command.Spoken
	spokenFindings = command.SpokenFindings
	spokenEvent    = command.SpokenEvent
	noArgs         = command.NoArgs
	oneName        = command.OneName
	ExitCode       = command.ExitCode
	Report         = command.Report
)

const (
	standalone = command.Standalone
	plugin     = command.Plugin
)

func ofJob(j job, err error) error { return command.WithRights(err, j.about().rights) }

func (a *app) documentFlag(cmd *cobra.Command, formats ...string) *genericclioptions.PrintFlags {
	f := &command.Format{}
	f.DeclareDocument(cmd, formats...)
	a.keepFormat(cmd, f)
	return f.Templates()
}

func (a *app) outputFlag(cmd *cobra.Command, formats ...string) {
	f := &command.Format{}
	f.Declare(cmd, formats...)
	a.keepFormat(cmd, f)
}

func (a *app) keepFormat(cmd *cobra.Command, f *command.Format) {
	before := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		err := before(cmd, args)
		a.output = f.Name
		return err
	}
}

func printDocument(w io.Writer, format string, flags *genericclioptions.PrintFlags, v any) error {
	return command.FormatOf(format, flags).Print(w, v)
}

func (a *app) format() command.Format          { return command.Format{Name: a.output} }
func (a *app) example(text string) string      { return a.Example(text) }
func (a *app) asksPeople() bool                { return a.AsksPeople() }
func (a *app) stdout() io.Writer               { return a.Stdout(a.format()) }
func (a *app) confirm(question string) error   { return a.Confirm(a.yes, question) }
func (a *app) hint(format string, args ...any) { a.Hint(format, args...) }
func build() command.Build                     { return command.Build{Version: version, Digest: digest} }
func versionText() string                      { return build().Text() }
func image() string                            { return build().Image() }

type reportPart = command.ReportPart

var (
	summarize   = command.Summarize
	lacksRights = command.LacksRights
)
