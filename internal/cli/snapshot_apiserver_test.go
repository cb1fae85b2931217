//go:build apiserver

package cli

import (
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"
)

// ofSnapshots begins what is said of snapshots alone.
var ofSnapshots = regexp.MustCompile(`^([a-z-]+ +)?RP000[123]\b`)

// alike runs check and plan of a file on the cluster, and on a snapshot of it without the cluster,
// for people and for programs. What they find is the same, but for what is said of the snapshot,
// which is always said and never of the cluster. Further arguments are flags for the cluster alone.
func alike(ts *testscript.TestScript, _ bool, args []string) {
	file, snapshot, flags := args[0], args[1], args[2:]
	for command, formats := range map[string][]string{"check": {"table", "json"}, "plan": {"wide", "yaml"}} {
		for _, format := range formats {
			run := []string{command, "-f", file, "-o", format}
			live := said(ts, append(slices.Clone(run), flags...)...)
			kubeconfig := ts.Getenv("KUBECONFIG")
			ts.Setenv("KUBECONFIG", "nowhere")
			from := said(ts, append(slices.Clone(run), "--from", snapshot)...)
			ts.Setenv("KUBECONFIG", kubeconfig)
			if live.failed != from.failed || !slices.Equal(live.errors(), from.errors()) {
				ts.Fatalf("%s -o %s: live %v %q, from the snapshot %v %q",
					command, format, live.failed, live.errors(), from.failed, from.errors())
			}
			if live.stdout == "" && from.stdout == "" { // neither could look
				continue
			}
			if strings.Contains(live.stdout, "RP0001") || !strings.Contains(from.stdout, "RP0001") {
				ts.Fatalf("%s -o %s: it is not told apart: live\n%s\nfrom the snapshot\n%s", command, format, live.stdout, from.stdout)
			}
			if a, b := live.comparable(command, format), from.comparable(command, format); !reflect.DeepEqual(a, b) {
				ts.Fatalf("%s -o %s: live\n%s\nfrom the snapshot\n%s", command, format, shown(a), shown(b))
			}
		}
	}
}

// answer is what a command said.
type answer struct {
	failed         bool
	stdout, stderr string
}

func said(ts *testscript.TestScript, args ...string) answer {
	err := ts.Exec("replumb", args...)
	return answer{err != nil, ts.ReadFile("stdout"), ts.ReadFile("stderr")}
}

// errors are lines with errors and hints.
func (a answer) errors() (all []string) {
	for line := range strings.Lines(a.stderr) {
		if strings.HasPrefix(line, "error: ") {
			line, _, _ = strings.Cut(line, "not ready: ") // what is of snapshots is counted as well
			all = append(all, line)
		}
	}
	return all
}

// comparable is what was said, without what is of snapshots, of the moment, and of the width of
// columns.
func (a answer) comparable(command, format string) any {
	if format == "json" || format == "yaml" {
		var doc any
		if err := yaml.Unmarshal([]byte(a.stdout), &doc); err != nil {
			return err.Error()
		}
		return stripped(doc)
	}
	var lines []string
	left := false
	for line := range strings.Lines(a.stdout) {
		if below := command == "check" && strings.HasPrefix(line, "    "); !below {
			left = ofSnapshots.MatchString(line) || strings.HasPrefix(line, "ready: ") || strings.HasPrefix(line, "not ready: ")
		}
		if !left {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
	}
	return lines
}

// stripped is a document without findings of snapshots, and without when it was made.
func stripped(doc any) any {
	switch doc := doc.(type) {
	case map[string]any:
		delete(doc, "time")
		delete(doc, "verdict")
		delete(doc, "counts")
		for key, value := range doc {
			doc[key] = stripped(value)
		}
	case []any:
		out := []any{}
		for _, item := range doc {
			finding, _ := item.(map[string]any)
			if code, _ := finding["code"].(string); !ofSnapshots.MatchString(code) {
				out = append(out, stripped(item))
			}
		}
		return out
	}
	return doc
}

func shown(of any) string {
	if lines, ok := of.([]string); ok {
		return strings.Join(lines, "\n")
	}
	body, err := json.MarshalIndent(of, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(body)
}
