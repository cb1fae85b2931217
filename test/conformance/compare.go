package conformance

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// State is one of those that a cluster is in, with what passed in it.
type State struct {
	Name    string
	Results []Result
}

func (s State) outcomes() map[string]Outcome {
	outcomes := map[string]Outcome{}
	for _, r := range s.Results {
		outcomes[r.Name] = r.Outcome
	}
	return outcomes
}

// Broken says of each test that passes in the first state and not in a later one what became of it there. It is not for tests that fail in
// the first: see Failing.
func Broken(states []State) []string {
	var broken []string
	first := states[0].outcomes()
	for _, later := range states[1:] {
		then := later.outcomes()
		for _, name := range slices.Sorted(maps.Keys(first)) {
			if first[name] == Passed && then[name] != Passed {
				broken = append(broken, fmt.Sprintf("%s: %s: %s", later.Name, name, said(then[name])))
			}
		}
	}
	return broken
}

// Failing are the tests that fail in a state, with why.
func (s State) Failing() []string {
	var failing []string
	for _, r := range s.Results {
		if r.Outcome == Failed {
			failing = append(failing, r.Name+": "+r.Message)
		}
	}
	return failing
}

// Count is how many tests came out so in a state.
func (s State) Count(o Outcome) int {
	n := 0
	for _, r := range s.Results {
		if r.Outcome == o {
			n++
		}
	}
	return n
}

func said(o Outcome) string {
	if o == "" {
		return "did not run"
	}
	return string(o)
}

// WriteTable writes what became of each test in each state, as a table in Markdown.
func WriteTable(w io.Writer, states []State) error {
	names := map[string]bool{}
	outcomes := make([]map[string]Outcome, len(states))
	head, line := "| test |", "|---|"
	for i, s := range states {
		outcomes[i] = s.outcomes()
		for name := range outcomes[i] {
			names[name] = true
		}
		head += " " + s.Name + " |"
		line += "---|"
	}
	rows := []string{head, line}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		row := "| " + escaped(name) + " |"
		for _, o := range outcomes {
			row += " " + said(o[name]) + " |"
		}
		rows = append(rows, row)
	}
	_, err := io.WriteString(w, strings.Join(rows, "\n")+"\n")
	return err
}

// escaped has nothing that Markdown takes for something else in a table.
func escaped(name string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(strings.TrimPrefix(name, "[sig-network] "))
}
