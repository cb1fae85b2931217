// Manual writes the manual of replumb: man pages, or the reference of its commands as Markdown.
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

	"github.com/replumb/replumb/internal/cli"
)

func main() {
	format := flag.String("format", "man", "man, or markdown")
	dir := flag.String("o", "build/man", "folder that is written to")
	flag.Parse()
	if err := write(*format, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// write makes the folder and fills it.
func write(format, dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	switch root := command(); format {
	case "man":
		return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "replumb", Manual: "replumb"}, dir)
	case "markdown":
		return os.WriteFile(filepath.Join(dir, "reference.md"), []byte(reference(root)), 0o600)
	}
	return fmt.Errorf("format %q is neither man nor markdown", format)
}

// command is replumb as its users see it. The manual is the same on every day and for every version.
func command() *cobra.Command {
	root := cli.NewCommand("replumb", strings.NewReader(""), io.Discard, io.Discard)
	root.Version = ""
	root.DisableAutoGenTag = true
	return root
}

// reference is the manual as one page, the commands in the order of the help.
func reference(root *cobra.Command) string {
	var page strings.Builder
	page.WriteString("# Commands\n\nWhat `--help` prints, of every command. Generated: `make generate` writes it.\n")
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		section(&page, cmd)
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				visit(sub)
			}
		}
	}
	visit(root)
	return page.String()
}

// section is one command. Flags that all commands have are in the section of replumb itself.
func section(page *strings.Builder, cmd *cobra.Command) {
	long := cmd.Long
	if long == "" {
		long = cmd.Short
	}
	fmt.Fprintf(page, "\n## %s\n\n%s\n\n    %s\n", cmd.CommandPath(), strings.TrimSpace(long), cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(page, "\n```\n%s\n```\n", strings.TrimRight(cmd.Example, "\n"))
	}
	flags := cmd.NonInheritedFlags()
	if flags.HasAvailableFlags() {
		fmt.Fprintf(page, "\n```\n%s```\n", flags.FlagUsages())
	}
}
