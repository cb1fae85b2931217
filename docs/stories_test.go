package docs_test

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// storyStates are those of items, in the order in which the page counts them.
var storyStates = []string{"proven", "equivalent", "left to you", "partial (outside)", "partial (inside)", "not yet"}

var (
	storyBegin = regexp.MustCompile(`(?m)^\| S\d\.`)
	storyItem  = regexp.MustCompile(`(?m)^\| (S\d)\.\d\d: [^|]+ \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`)
	storyCount = regexp.MustCompile(`(?m)^\| (S\d|all)(?:: \[[^|]+)? \| ([\d |]+) \|$`)
	// proofOf is a test with its package, and a part of it.
	proofOf = regexp.MustCompile("^`([a-z0-9]+)\\.(Test\\w+)(?:/([\\w.-]+))?`$")
)

// miscounted are the numbers of a page of stories that are not those of its rows, and rows whose state says something that they lack.
func miscounted(text string) []string {
	var wrong []string
	items := storyItem.FindAllStringSubmatch(text, -1)
	if n := len(storyBegin.FindAllString(text, -1)); n != len(items) {
		wrong = append(wrong, fmt.Sprintf("of %d rows %d have the form of an item", n, len(items)))
	}
	counts := map[string][]int{"all": make([]int, len(storyStates)+1)}
	for _, i := range items {
		story, how, proof, state := i[1], i[2], i[3], i[4]
		at := slices.Index(storyStates, state)
		if at < 0 {
			wrong = append(wrong, fmt.Sprintf("%q is no state", state))
			continue
		}
		if counts[story] == nil {
			counts[story] = make([]int, len(storyStates)+1)
		}
		for _, of := range [][]int{counts[story], counts["all"]} {
			of[at]++
			of[len(storyStates)]++
		}
		if at < 2 && strings.Contains(strings.ToLower(how), "no test ") {
			wrong = append(wrong, fmt.Sprintf("it is %s, and says that a part of it has no test: %s", state, how))
		}
		if partly := at > 2; partly != strings.Contains(how, "Missing: ") || at < 2 && proof == "none" {
			wrong = append(wrong, fmt.Sprintf("it is %s: %s (%s)", state, how, proof))
		}
	}
	for _, found := range storyCount.FindAllStringSubmatch(text, -1) {
		if want := strings.Trim(fmt.Sprint(counts[found[1]]), "[]"); strings.ReplaceAll(found[2], " |", "") != want {
			wrong = append(wrong, fmt.Sprintf("counts of %s are %s, and its rows make %s", found[1], found[2], want))
		}
	}
	return wrong
}

// TestStories holds the numbers of the page to its rows, what rows say to their state, and their proofs to tests that exist.
func TestStories(t *testing.T) {
	text, err := readFile("docs/design/stories.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range miscounted(text) {
		t.Error(p)
	}
	tests := textFiles(t, func(name string) bool { return strings.HasSuffix(name, "_test.go") || path.Ext(name) == ".txtar" })
	proofs := 0
	for _, i := range storyItem.FindAllStringSubmatch(text, -1) {
		for proof := range strings.SplitSeq(i[3], "; ") {
			if proof == "none" {
				continue
			}
			proofs++
			if !proves(tests, proof) {
				t.Errorf("%s: there is no such test", proof)
			}
		}
	}
	if proofs < 150 {
		t.Errorf("only %d proofs", proofs)
	}
}

// proves reports whether files have a test, and of its part a script, or a test of the same folder that names it.
func proves(files []textFile, proof string) bool {
	parts := proofOf.FindStringSubmatch(proof)
	if parts == nil {
		return false
	}
	for _, f := range files {
		dir := path.Dir(f.name)
		if path.Base(dir) != parts[1] || !strings.Contains(f.text, "\nfunc "+parts[2]+"(t *testing.T)") {
			continue
		}
		if parts[3] == "" || slices.ContainsFunc(files, func(of textFile) bool {
			return strings.HasPrefix(of.name, dir+"/testdata/") && path.Base(of.name) == parts[3]+".txtar" ||
				path.Dir(of.name) == dir && strings.Contains(of.text, `"`+parts[3]+`"`)
		}) {
			return true
		}
	}
	return false
}

// TestMiscounted shows which numbers and proofs are found.
func TestMiscounted(t *testing.T) {
	row := func(number, how, proof, state string) string {
		return "| S0." + number + ": what | " + how + " | " + proof + " | " + state + " |\n"
	}
	const counts = "| S0: [a](#a) | 1 | 0 | 0 | 0 | 0 | 1 | 2 |\n| all | 1 | 0 | 0 | 0 | 0 | 1 | 2 |\n"
	first, second := row("01", "by a", "`a.TestA`", "proven"), row("02", "Missing: b", "none", "not yet")
	for text, want := range map[string]int{
		counts + first + second: 0,
		counts + first:          2, // both counts
		counts + first + row("02", "by b", "none", "soon"):                         3,
		counts + first + second + "| S0.03: what | by c | proven |\n":              1,
		counts + first + row("02", "Missing: b", "none", "left to you"):            3,
		counts + first + row("02", "by b", "none", "not yet"):                      1,
		counts + row("01", "by a", "none", "proven") + second:                      1,
		counts + row("01", "by a. No test sees b", "`a.TestA`", "proven") + second: 1,
	} {
		if got := miscounted(text); len(got) != want {
			t.Errorf("%s: %q", text, got)
		}
	}
	files := []textFile{{"x/a_test.go", "\nfunc TestA(t *testing.T) {\n\tt.Run(\"B\""}, {"x/testdata/c.txtar", ""}}
	for proof, want := range map[string]bool{
		"`x.TestA`": true, "`x.TestA/B`": true, "`x.TestA/c`": true, "`x.TestB`": false, "`y.TestA`": false, "`x.TestA/D`": false, "x.TestA": false,
	} {
		if got := proves(files, proof); got != want {
			t.Errorf("%s: %t", proof, got)
		}
	}
}
