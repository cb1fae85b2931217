package cli

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// completed is what a shell is given for a command line whose last word has been begun.
func completed(t *testing.T, args ...string) []string {
	t.Helper()
	t.Setenv("KUBECONFIG", "/nonexistent")
	var out, errOut bytes.Buffer
	cmd := NewCommand("replumb", strings.NewReader(""), &out, &errOut)
	cmd.SetArgs(append([]string{cobra.ShellCompNoDescRequestCmd}, args...))
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	return lines[:len(lines)-1] // the last one is the directive
}

func TestCompletions(t *testing.T) {
	file := t.TempDir() + "/move.yaml"
	const move = "apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\nspec: {serviceCIDR: {to: [172.24.0.0/16]}}\n"
	if err := os.WriteFile(file, []byte(move), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		has  []string
	}{
		{[]string{"status", "-o", ""}, []string{"table", "json", "yaml"}},
		{[]string{"apply", "--until", ""}, []string{"check", "secure", "move"}},
		{[]string{"rbac", ""}, []string{"services", "pods", "nodes"}},
		{[]string{"rbac", "services", "--for", ""}, []string{"view", "operate"}},
		{[]string{"install", "--rbac", ""}, []string{"view", "operate"}},
		{[]string{"rollback", "m", "--late", ""}, []string{"Move", "Keep"}},
		{[]string{"apply", "-f", ""}, []string{"yaml", "json"}},
		{[]string{"explain", "RP10"}, []string{"RP1001"}},
		{[]string{"un"}, []string{"unfreeze", "uninstall"}},
	} {
		if got := completed(t, tt.args...); slices.ContainsFunc(tt.has, func(want string) bool { return !slices.Contains(got, want) }) {
			t.Errorf("%q: %q, want %q among them", tt.args, got, tt.has)
		}
	}
	if got := completed(t, "apply", "-f", file, "--until", ""); !slices.Contains(got, "extend") || slices.Contains(got, "drain") {
		t.Errorf("phases of another kind: %q", got)
	}
	if got := completed(t, "status", ""); len(got) > 0 {
		t.Errorf("names without a cluster: %q", got)
	}
}

// TestEveryFormatCompletes: wherever -o takes one of some formats, shells know them.
func TestEveryFormatCompletes(t *testing.T) {
	var visit func(cmd *cobra.Command, path ...string)
	visit = func(cmd *cobra.Command, path ...string) {
		for _, sub := range cmd.Commands() {
			visit(sub, append(slices.Clone(path), sub.Name())...)
		}
		if cmd.Flags().Lookup("output") == nil {
			return
		}
		if got := completed(t, append(path, "-o", "")...); !slices.Contains(got, "json") {
			t.Errorf("%q -o: %q", path, got)
		}
	}
	visit(NewCommand("replumb", strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{}))
}

// TestHelpIsProse: the texts of all commands are whole, without the seams of a program's source.
func TestHelpIsProse(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
		for _, text := range []string{cmd.Short, cmd.Long, cmd.Example} {
			for line := range strings.Lines(text) {
				if len(strings.TrimRight(line, "\n")) > 120 {
					t.Errorf("%s: longer than a terminal is wide: %s", cmd.CommandPath(), line)
				}
				line = strings.TrimSpace(line)
				if strings.HasSuffix(line, "+") || strings.HasPrefix(line, `"`) && strings.Count(line, `"`)%2 > 0 {
					t.Errorf("%s: %s", cmd.CommandPath(), line)
				}
			}
		}
	}
	visit(NewCommand("replumb", strings.NewReader(""), &bytes.Buffer{}, &bytes.Buffer{}))
}
