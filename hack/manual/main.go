// Manual writes the man pages of replumb. Its tests hold the pages of reference in docs to the code, and write them with -update.
//
//	go run ./hack/manual -o build/man
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/replumb/replumb/internal/cli"
)

// generated says of a page that it is not written by hand.
const generated = "Generated: `make generate` writes it."

func main() {
	dir := flag.String("o", "build/man", "folder that is written to")
	flag.Parse()
	if err := manPages(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// manPages makes the folder and fills it.
func manPages(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	return doc.GenManTree(root(), &doc.GenManHeader{Section: "1", Source: "replumb", Manual: "replumb"}, dir)
}

// pages are what makes the pages of reference, of the folder of the source, by their files.
func pages() map[string]func(source string) (string, error) {
	return map[string]func(string) (string, error){
		"annotations.md": annotations,
		"api.md":         api,
		"metrics.md":     metricsPage,
		"phases.md":      phases,
		"reference.md":   reference,
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
func reference(string) (string, error) {
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
	visit(root())
	return b.String(), nil
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
