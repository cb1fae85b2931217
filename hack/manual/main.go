// Manual writes the manual of replumb: man pages, or the pages of reference as Markdown. Pages that need the source, for what its comments
// say, find it in the folder that is given.
//
//	go run ./hack/manual -format man -o build/man
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/replumb/replumb/hack/manual/page"
	"github.com/replumb/replumb/internal/cli"
)

// generated says of a page that no one writes it.
const generated = "Generated: `make generate` writes it."

func main() {
	format := flag.String("format", "man", "man, or markdown")
	dir := flag.String("o", "build/man", "folder that is written to")
	source := flag.String("source", ".", "folder of the source of replumb")
	flag.Parse()
	if err := write(*format, *source, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// write makes the folder and fills it.
func write(format, source, dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	switch format {
	case "man":
		return doc.GenManTree(root(), &doc.GenManHeader{Section: "1", Source: "replumb", Manual: "replumb"}, dir)
	case "markdown":
		for name, text := range pages() {
			body, err := text(source)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(page.Wrapped(body)), 0o600); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("format %q is neither man nor markdown", format)
}

// pages are what makes the pages of reference, of the folder of the source, by their files.
func pages() map[string]func(source string) (string, error) {
	return map[string]func(string) (string, error){
		"annotations.md": annotations,
		"api.md":         api,
		"exit-codes.md":  exitCodes,
		"metrics.md":     metricsPage,
		"phases.md":      phases,
		"reference.md":   func(string) (string, error) { return reference(root()), nil },
	}
}

// root is replumb as its users see it. The manual is the same on every day and for every version.
func root() *cobra.Command {
	root := cli.NewCommand("replumb", strings.NewReader(""), io.Discard, io.Discard)
	root.Version = ""
	root.DisableAutoGenTag = true
	return root
}

// reference is the manual as one page, the commands in the order of the help.
func reference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# Commands\n\nWhat `--help` prints, of every command. " + generated + "\n")
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		manual(&b, cmd)
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				visit(sub)
			}
		}
	}
	visit(root)
	return b.String()
}

// manual is that of one command. Flags that all commands have are in the section of replumb itself.
func manual(b *strings.Builder, cmd *cobra.Command) {
	long := cmd.Long
	if long == "" {
		long = cmd.Short
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n    %s\n", cmd.CommandPath(), strings.TrimSpace(long), cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```\n%s\n```\n", strings.TrimRight(cmd.Example, "\n"))
	}
	flags := cmd.NonInheritedFlags()
	if flags.HasAvailableFlags() {
		fmt.Fprintf(b, "\n```\n%s```\n", flags.FlagUsages())
	}
}
