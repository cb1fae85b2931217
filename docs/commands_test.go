package docs_test

import (
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/internal/cli"
	"github.com/replumb/replumb/internal/migrations"
)

// labCommands lists the commands of replumb-lab with their flags. The lab is another module, of which a test holds the list.
const labCommands = "testdata/replumb-lab.txt"

// manual has the flags of commands, by the commands' whole names.
type manual map[string][]string

// commands are those of replumb and of replumb-lab.
func commands(t *testing.T) manual {
	t.Helper()
	all := manual{}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.InitDefaultHelpFlag()
		var flags []string
		for _, set := range []string{cmd.LocalFlags().FlagUsages(), cmd.InheritedFlags().FlagUsages()} {
			for _, found := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+)`).FindAllStringSubmatch(set, -1) {
				flags = append(flags, found[1])
			}
		}
		all[cmd.CommandPath()] = flags
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	root := cli.NewCommand("replumb", strings.NewReader(""), io.Discard, io.Discard)
	root.InitDefaultCompletionCmd()
	visit(root)
	list, err := os.ReadFile(labCommands)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		name, flags, _ := strings.Cut(strings.TrimSpace(line), ":")
		all[name] = strings.Fields(flags)
	}
	return all
}

// call is a command as it is written somewhere: its whole name, and its flags with what follows each.
type call struct {
	name  string
	flags [][2]string
}

// word of a line of shell, with what is in quotes in one.
var word = regexp.MustCompile(`(?:"[^"]*"|'[^']*'|[^\s"'])+`)

// shellCalls are the calls of some programs in a line of shell: the program's own name, and its words up to a comment or a redirection.
func shellCalls(line string, programs ...string) [][]string {
	var all [][]string
	ends := strings.NewReplacer("&&", ";", "|", ";", "$(", ";", "<(", ";", "(", ";", ")", ";", "`", ";")
	for part := range strings.SplitSeq(ends.Replace(line), ";") {
		var words []string
		for _, w := range word.FindAllString(part, -1) {
			if strings.HasPrefix(w, "#") || strings.HasPrefix(w, ">") || strings.HasPrefix(w, "2>") || w == "&" {
				break
			}
			words = append(words, strings.Trim(w, `"'`))
		}
		for len(words) > 0 && (slices.Contains([]string{"$", "sudo", "time", "-"}, words[0]) || regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0])) {
			words = words[1:]
		}
		if len(words) > 1 && words[0] == "kubectl" && words[1] == "replumb" {
			words = words[1:]
		}
		if len(words) > 0 && slices.Contains(programs, path.Base(words[0])) {
			all = append(all, append([]string{path.Base(words[0])}, words[1:]...))
		}
	}
	return all
}

// calls are those of replumb and of replumb-lab in a line of code.
func (m manual) calls(code string) []call {
	var all []call
	for _, words := range shellCalls(code, "replumb", "replumb-lab") {
		all = append(all, m.call(words[0], words[1:]))
	}
	return all
}

// call reads the words after the name of a program. What stands in brackets may be left out.
func (m manual) call(name string, words []string) call {
	c := call{name: name}
	for i, word := range words {
		w := strings.Trim(word, "[](),.")
		flag, isFlag := strings.CutPrefix(w, "--")
		_, isCommand := m[c.name+" "+w]
		switch {
		case w == "--": // what follows is another program's
			return c
		case isFlag:
			flag, value, ok := strings.Cut(flag, "=")
			if !ok && i+1 < len(words) {
				value = strings.Trim(words[i+1], "[](),.")
			}
			c.flags = append(c.flags, [2]string{flag, value})
		case isCommand && len(c.flags) == 0, i == 0 && regexp.MustCompile(`^[a-z]+$`).MatchString(word): // there may be no such command
			c.name += " " + w
		}
	}
	return c
}

// wrongCalls are the commands and flags in a file that do not exist, and the phases that apply does not have.
func (m manual) wrongCalls(f textFile, phases []string) []string {
	var wrong []string
	for _, code := range snippets(f) {
		for _, c := range m.calls(code) {
			flags, ok := m[c.name]
			if !ok {
				wrong = append(wrong, fmt.Sprintf("there is no command %q, in: %s", c.name, code))
				continue
			}
			for _, flag := range c.flags {
				if !slices.Contains(flags, flag[0]) {
					wrong = append(wrong, fmt.Sprintf("%s has no flag --%s, in: %s", c.name, flag[0], code))
				}
				if flag[0] == "until" && flag[1] != strings.ToUpper(flag[1]) && !slices.Contains(phases, flag[1]) {
					wrong = append(wrong, fmt.Sprintf("apply has no phase %q, in: %s", flag[1], code))
				}
			}
		}
	}
	return wrong
}

// TestCommands: every command, flag and phase that pages and examples show exists.
func TestCommands(t *testing.T) {
	all := commands(t)
	seen := 0
	problems(t, func(f textFile) []string {
		for _, code := range snippets(f) {
			seen += len(all.calls(code))
		}
		return all.wrongCalls(f, applyPhases())
	})
	if seen < 200 {
		t.Errorf("only %d commands were found", seen)
	}
}

// applyPhases are those of apply, of all kinds of migrations.
func applyPhases() []string {
	var all []string
	for _, kind := range migrations.All() {
		all = append(all, kind.Apply...)
	}
	return all
}

// TestWrongCalls shows what is found.
func TestWrongCalls(t *testing.T) {
	all := commands(t)
	for text, want := range map[string]int{
		"`replumb apply -f x.yaml --yes`":                          0,
		"`kubectl replumb status --watch`":                         0,
		"`replumb backup NAME DIR --context x`":                    0,
		"`replumb-lab exec node1 -- ip --json`":                    0,
		"`helm install replumb --atomic`":                          0,
		"`replumb status NAME | grep --count x`":                   0,
		"`replumb apply -f x.yaml --until PHASE`":                  0,
		"`replumb apply -f x.yaml --unless x`":                     1,
		"`kubectl replumb status --yes-please`":                    1,
		"    sudo bin/replumb-lab up --nodez 3":                    1,
		"    replumb apply -f x.yaml \\\n      --unless x":         1,
		"`replumb aply -f x.yaml`":                                 1,
		"`replumb apply -f x.yaml --until dance`":                  1,
		"`replumb apply -f x.yaml --until=dance --yes --and=more`": 2,
	} {
		if got := all.wrongCalls(textFile{"x.md", text}, applyPhases()); len(got) != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}
