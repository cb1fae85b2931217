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
// "passes:", so that passing is meant and not by chance. A check that has nothing to look at does
// not pass: one that does nothing else if it does not fire stands in a line "skips:". Codes have to
// be unique, and every text has to be there. files is a pattern such as testdata/golden/*.txtar.
func EveryCheck[In any](t *testing.T, checks []findings.Check[In], files string) {
	t.Helper()
	fires, quiet := outcomes(t, files)
	seen := map[string]bool{}
	for _, c := range checks {
		if seen[c.Code] || c.Group == "" || c.Claim == "" || c.Why == "" || c.Fix == "" || c.Run == nil {
			t.Errorf("check %s is used twice or lacks something", c.Code)
		}
		seen[c.Code] = true
		if !fires[c.Code] {
			t.Errorf("check %s fires in no golden file", c.Code)
		}
		if !quiet[c.Code] {
			t.Errorf("no golden file says that check %s passes in it, or has nothing to look at", c.Code)
		}
	}
	for code := range quiet {
		if !seen[code] {
			t.Errorf("a golden file says that %s passes or skips, and there is no such check", code)
		}
	}
}

// outcomes are the codes that fire in some golden file, and those that are said to be quiet in one.
func outcomes(t *testing.T, pattern string) (fires, quiet map[string]bool) {
	t.Helper()
	fires, quiet = map[string]bool{}, map[string]bool{}
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
		for code, fired := range here {
			fires[code] = fires[code] || fired
		}
		for line := range bytes.Lines(archive.Comment) {
			for _, code := range said(string(line), "passes:") {
				quiet[code] = true
				if _, told := here[code]; here == nil || told {
					t.Errorf("%s: check %s is said to pass and does not, or did not look, or findings are not shown", file, code)
				}
			}
			for _, code := range said(string(line), "skips:") {
				quiet[code] = true
				if fired, told := here[code]; !told || fired {
					t.Errorf("%s: check %s is said not to look, and does", file, code)
				}
			}
		}
	}
	return fires, quiet
}

// said are the codes in a line of a comment that begins with a word.
func said(line, word string) []string {
	codes, is := strings.CutPrefix(line, word)
	if !is {
		return nil
	}
	return strings.Fields(codes)
}

// firing are the codes in the section "findings": true for those that fire, and false for others,
// which did not look. It is nil if there is no such section.
func firing(archive *txtar.Archive) map[string]bool {
	var codes map[string]bool
	for _, f := range archive.Files {
		if f.Name != "findings" {
			continue
		}
		codes = map[string]bool{}
		for line := range bytes.Lines(f.Data) {
			fields := strings.Fields(string(line))
			switch {
			case len(fields) == 0:
			case fields[0] == skips:
				for _, code := range fields[1:] {
					codes[code] = false
				}
			default:
				codes[fields[0]] = true
			}
		}
	}
	return codes
}
