package migrationtest

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/replumb/replumb/internal/engine/findings"
)

// EveryCheck fails unless each check fires in one golden file, by a line of its section "findings"
// that begins with the code, and passes in another, whose comment names the code in a line
// "passes:", so that passing is meant and not by chance. Codes have to be unique, and every text
// has to be there. files is a pattern such as testdata/golden/*.txtar.
func EveryCheck[In any](t *testing.T, checks []findings.Check[In], files string) {
	t.Helper()
	fires, passes := outcomes(t, files)
	seen := map[string]bool{}
	for _, c := range checks {
		if seen[c.Code] || c.Group == "" || c.Claim == "" || c.Why == "" || c.Fix == "" || c.Run == nil {
			t.Errorf("check %s is used twice or lacks something", c.Code)
		}
		seen[c.Code] = true
		if !fires[c.Code] {
			t.Errorf("check %s fires in no golden file", c.Code)
		}
		if !passes[c.Code] {
			t.Errorf("no golden file says that check %s passes in it", c.Code)
		}
	}
	for code := range passes {
		if !seen[code] {
			t.Errorf("a golden file says that %s passes, and there is no such check", code)
		}
	}
}

// outcomes are the codes that fire in some golden file, and those that are said to pass in one.
func outcomes(t *testing.T, pattern string) (fires, passes map[string]bool) {
	t.Helper()
	fires, passes = map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden file is like %s: %v", pattern, err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		here := firing(archive)
		for code := range here {
			fires[code] = true
		}
		for line := range bytes.Lines(archive.Comment) {
			codes, _ := strings.CutPrefix(string(line), "passes:")
			if codes == string(line) {
				continue
			}
			for _, code := range strings.Fields(codes) {
				if passes[code] = true; here == nil || here[code] {
					t.Errorf("%s: check %s is said to pass and does not, or findings are not shown", file, code)
				}
			}
		}
	}
	return fires, passes
}

// firing are the codes with which the lines of the section "findings" begin; nil, if there is none.
func firing(archive *txtar.Archive) map[string]bool {
	var codes map[string]bool
	for _, f := range archive.Files {
		if f.Name != "findings" {
			continue
		}
		codes = map[string]bool{}
		for line := range bytes.Lines(f.Data) {
			if fields := strings.Fields(string(line)); len(fields) > 0 {
				codes[fields[0]] = true
			}
		}
	}
	return codes
}
