package labcli

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write docs/testdata/replumb-lab.txt")

// TestCommandsAreListed holds the list of commands and flags by which a test of docs, in a module that does not know the lab, looks at what
// pages show of replumb-lab.
func TestCommandsAreListed(t *testing.T) {
	const list = "../../docs/testdata/replumb-lab.txt"
	var b strings.Builder
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.InitDefaultHelpFlag()
		fmt.Fprintf(&b, "%s:", cmd.CommandPath())
		add := func(f *pflag.Flag) { b.WriteString(" " + f.Name) }
		cmd.LocalFlags().VisitAll(add)
		cmd.InheritedFlags().VisitAll(add)
		b.WriteString("\n")
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRoot(streams{}))
	if *update {
		if err := os.WriteFile(list, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(list)
	if err != nil || string(have) != b.String() {
		t.Errorf("%s is not up to date (%v); run this test with -update", list, err)
	}
}
