package migrationtest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/reporting/terminal"
)

// Shows fails for every step of a plan that does not show beforehand what it writes: each only
// waits, or has a preview that works.
func Shows(t testing.TB, p *engine.Plan) {
	t.Helper()
	for _, s := range p.Steps() {
		_, waits := s.(engine.Waiter)
		_, shows := s.(engine.Previewer)
		if !waits && !shows {
			t.Errorf("step %s (%T) neither waits nor shows what it writes", s.ID(), s)
		}
		if _, err := engine.Preview(s); err != nil {
			t.Error(err)
		}
	}
}

// Plan is what the command plan prints of a plan, for golden files. It fails for one that is
// invalid, or that Shows fails for.
func Plan(t testing.TB, p *engine.Plan) string {
	t.Helper()
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	Shows(t, p)
	phases, err := terminal.PlanPhases(p)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	terminal.Phases(&b, phases)
	return b.String()
}

// Written is an archive of what steps would write, each under its ID, for golden files.
func Written(t testing.TB, steps ...engine.Step) []byte {
	t.Helper()
	all := &txtar.Archive{}
	for _, s := range steps {
		changes, err := engine.Preview(s)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "# %s\n", s.Title())
		for _, c := range changes {
			fmt.Fprintf(&b, "--- # %s %s\n", c.Verb, c.Object)
			if c.Body == nil {
				continue
			}
			body, err := yaml.Marshal(c.Body)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(body)
		}
		all.Files = append(all.Files, txtar.File{Name: s.ID(), Data: b.Bytes()})
	}
	return txtar.Format(all)
}

// skips begins the last line of findings in golden files, with the codes that did not look.
const skips = "skipped:"

// Found are the findings about which there is something to do, for golden files, one a line, and
// the codes of checks that had nothing to look at.
func Found(all findings.Findings) string {
	var b strings.Builder
	var skipped []string
	for _, f := range all {
		switch {
		case f.Open():
			fmt.Fprintf(&b, "%s %s %s: %s\n", f.Code, f.Severity, f.Outcome, f.Message)
		case f.Outcome == findings.Skipped:
			skipped = append(skipped, f.Code)
		}
	}
	if len(skipped) > 0 {
		fmt.Fprintln(&b, skips, strings.Join(skipped, " "))
	}
	return b.String()
}
