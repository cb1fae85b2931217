package docs_test

import (
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// storiesPage has what stories ask for, and where it is.
const storiesPage = "docs/stories.md"

// storyStates are those of items, in the order in which the page counts them.
var storyStates = []string{"proven", "equivalent", "left to you", "partial (outside)", "partial (inside)", "not yet"}

var (
	storyItem  = regexp.MustCompile(`(?m)^\| S(\d)\.(\d\d): ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`)
	storyBegin = regexp.MustCompile(`(?m)^\| S\d\.`)
	storyCount = regexp.MustCompile(`(?m)^\| (?:S(\d): \[[^|]+|all) \| ([\d |]+) \|$`)
	// proofOf is a test with its package, and the target that runs it.
	proofOf = regexp.MustCompile("^`([a-z0-9]+)\\.(Test\\w+)(?:/([\\w.-]+))?` \\(`([a-z-]+)`\\)$")
)

// item is a row of the page.
type item struct {
	story, number int
	how, state    string
	proofs        []string
}

func (i item) name() string { return fmt.Sprintf("S%d.%02d", i.story, i.number) }

func items(text string) []item {
	var all []item
	for _, cells := range storyItem.FindAllStringSubmatch(text, -1) {
		i := item{how: cells[4], state: cells[6]}
		i.story, _ = strconv.Atoi(cells[1]) // they are digits
		i.number, _ = strconv.Atoi(cells[2])
		if cells[5] != "none" {
			i.proofs = strings.Split(cells[5], "; ")
		}
		all = append(all, i)
	}
	return all
}

// miscounted are the numbers of the page that are not those of its rows, and rows that are no such, twice, or out of order.
func miscounted(text string) []string {
	all := items(text)
	var wrong []string
	if n := len(storyBegin.FindAllString(text, -1)); n != len(all) {
		wrong = append(wrong, fmt.Sprintf("of %d rows %d have the form of an item", n, len(all)))
	}
	rows := map[string][]int{"": make([]int, len(storyStates)+1)}
	next := map[int]int{}
	for _, i := range all {
		next[i.story]++
		if i.number != next[i.story] {
			wrong = append(wrong, fmt.Sprintf("%s comes where S%d.%02d should", i.name(), i.story, next[i.story]))
		}
		at := slices.Index(storyStates, i.state)
		if at < 0 {
			wrong = append(wrong, fmt.Sprintf("%s is %q, which is no state", i.name(), i.state))
			continue
		}
		story := strconv.Itoa(i.story)
		if rows[story] == nil {
			rows[story] = make([]int, len(storyStates)+1)
		}
		for _, of := range [][]int{rows[story], rows[""]} {
			of[at]++
			of[len(storyStates)]++
		}
	}
	said := map[string]string{}
	for _, found := range storyCount.FindAllStringSubmatch(text, -1) {
		said[found[1]] = found[2]
	}
	for _, story := range slices.Sorted(maps.Keys(rows)) {
		want := strings.Join(strings.Fields(strings.Trim(fmt.Sprint(rows[story]), "[]")), " | ")
		if said[story] != want {
			wrong = append(wrong, fmt.Sprintf("counts of story %q are %s, and its rows make %s", story, said[story], want))
		}
	}
	return wrong
}

// unsaid are items whose state says something that their other cells lack.
func unsaid(all []item) []string {
	var wrong []string
	for _, i := range all {
		partly := strings.HasPrefix(i.state, "partial") || i.state == "not yet"
		if partly != strings.Contains(i.how, "Missing: ") {
			wrong = append(wrong, fmt.Sprintf("%s is %s: %s", i.name(), i.state, i.how))
		}
		if (i.state == "proven" || i.state == "equivalent") && len(i.proofs) == 0 {
			wrong = append(wrong, i.name()+" has no proof")
		}
	}
	return wrong
}

// TestStories holds the numbers of the page to its rows, and what rows say to their state.
func TestStories(t *testing.T) {
	text, err := readFile(storiesPage)
	if err != nil {
		t.Fatal(err)
	}
	all := items(text)
	if len(all) < 100 {
		t.Fatalf("only %d items", len(all))
	}
	for _, p := range append(miscounted(text), unsaid(all)...) {
		t.Error(p)
	}
}

// testFile is a file of tests.
type testFile struct {
	// dir from the top of the repository, and the tag that it is compiled with.
	dir, tag string
	text     string
}

var (
	buildTag = regexp.MustCompile(`(?m)^//go:build (.+)$`)
	recipe   = regexp.MustCompile(`(?m)^([a-z][a-z-]*):.*\n((?:\t.*\n)*)`)
	runs     = regexp.MustCompile(`-run '([^']+)'`)
	pattern  = regexp.MustCompile(`(?m)^\w+='([^']*Test[^']*)'$`)
)

// suite is all tests, and how make runs them.
type suite struct {
	files   []testFile
	recipes map[string]string
	// versions are the patterns of tests that run with every version of Kubernetes.
	versions []string
	// scripts are the files in folders testdata.
	scripts []string
}

func suiteOf(t *testing.T) suite {
	t.Helper()
	s := suite{recipes: map[string]string{}}
	for _, f := range textFiles(t, func(name string) bool { return strings.HasSuffix(name, "_test.go") }) {
		file := testFile{dir: path.Dir(f.name), text: f.text}
		if found := buildTag.FindStringSubmatch(f.text); found != nil {
			file.tag = found[1]
		}
		s.files = append(s.files, file)
	}
	for _, f := range textFiles(t, func(name string) bool { return path.Ext(name) == ".txtar" }) {
		s.scripts = append(s.scripts, f.name)
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range recipe.FindAllStringSubmatch(string(makefile), -1) {
		s.recipes[found[1]] = found[2]
	}
	script, err := os.ReadFile("../hack/test-versions.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range pattern.FindAllStringSubmatch(string(script), -1) {
		s.versions = append(s.versions, found[1])
	}
	if len(s.versions) == 0 || len(s.scripts) < 100 {
		t.Fatalf("%d patterns of versions, %d scripts", len(s.versions), len(s.scripts))
	}
	return s
}

// refuted says why a proof is none; empty, if it is one.
func (s suite) refuted(proof string) string {
	parts := proofOf.FindStringSubmatch(proof)
	if parts == nil {
		return "it has not the form of a proof"
	}
	pkg, name, sub, target := parts[1], parts[2], parts[3], parts[4]
	if _, ok := s.recipes[target]; !ok {
		return "make has no target " + target
	}
	why := "there is no such test"
	for _, f := range s.files {
		if path.Base(f.dir) != pkg || !strings.Contains(f.text, "\nfunc "+name+"(t *testing.T)") {
			continue
		}
		switch {
		case sub != "" && !s.has(f.dir, sub):
			why = "the test has no part " + sub
		case !s.run(target, f, name):
			why = target + " does not run it"
		default:
			return ""
		}
	}
	return why
}

// has reports whether tests of a folder have a part of that name: a script, or one that they name.
func (s suite) has(dir, sub string) bool {
	script := func(name string) bool {
		return strings.HasPrefix(name, dir+"/testdata/") && path.Base(name) == sub+".txtar"
	}
	named := func(f testFile) bool { return f.dir == dir && strings.Contains(f.text, `"`+sub+`"`) }
	return slices.ContainsFunc(s.scripts, script) || slices.ContainsFunc(s.files, named)
}

// run reports whether a target runs a test.
func (s suite) run(target string, f testFile, name string) bool {
	lines := s.recipes[target]
	inside, isTest := strings.CutPrefix(f.dir, "test/")
	tagged := func(tags ...string) bool {
		return slices.ContainsFunc(tags, func(tag string) bool { return strings.Contains(f.tag, tag) })
	}
	switch {
	case isTest && inside == "e2e":
		found := runs.FindStringSubmatch(lines)
		return strings.Contains(lines, "$(E2E)") && found != nil && regexp.MustCompile(found[1]).MatchString(name)
	case isTest:
		return strings.Contains(lines, " ./"+inside+"\n")
	case target == "check":
		return !tagged("apiserver", "programs", "root")
	case target == "test-api":
		return tagged("apiserver", "programs")
	case target == "test-root":
		return tagged("root") && strings.Contains(lines, "./"+f.dir)
	case target == "test-versions":
		return f.dir == "internal/migrations/servicecidr" &&
			slices.ContainsFunc(s.versions, func(p string) bool { return regexp.MustCompile(p).MatchString(name) })
	}
	return false
}

// TestStoriesAreProven: every test that the page names exists, and its target runs it.
func TestStoriesAreProven(t *testing.T) {
	text, err := readFile(storiesPage)
	if err != nil {
		t.Fatal(err)
	}
	s := suiteOf(t)
	seen := 0
	for _, i := range items(text) {
		for _, proof := range i.proofs {
			seen++
			if why := s.refuted(proof); why != "" {
				t.Errorf("%s: %s: %s", i.name(), proof, why)
			}
		}
	}
	if seen < 150 {
		t.Errorf("only %d proofs", seen)
	}
}

// TestRefuted shows which proofs are none.
func TestRefuted(t *testing.T) {
	s := suiteOf(t)
	for proof, ok := range map[string]bool{
		"`e2e.TestTwoNodes/Barrier` (`test-lab`)":              true,
		"`cli.TestClusterLong/extend` (`test-api`)":            true,
		"`docs.TestNames` (`check`)":                           true,
		"`kill.TestKillAnywhere` (`test-kill`)":                true,
		"`servicecidr.TestBitmapKilled` (`test-versions`)":     true,
		"`nodecleanup.TestTables` (`test-root`)":               true,
		"`e2e.TestTwoNodes/Barriers` (`test-lab`)":             false,
		"`e2e.TestTwoNodes` (`test-edge`)":                     false,
		"`e2e.TestThreeNodes` (`test-lab`)":                    false,
		"`cli.TestCluster/extended` (`test-api`)":              false,
		"`cli.TestCluster` (`check`)":                          false,
		"`docs.TestNames` (`test-api`)":                        false,
		"`docs.TestNames` (`checks`)":                          false,
		"`kill.TestKillAnywhere` (`test-hostile`)":             false,
		"`servicecidr.TestRewriteKilled` (`test-versions`)":    false,
		"`docs.TestNames`":                                     false,
		"TestNames (check)":                                    false,
		"`docs.TestNames` (`check`) `docs.TestWord` (`check`)": false,
	} {
		if why := s.refuted(proof); (why == "") != ok {
			t.Errorf("%s: %q", proof, why)
		}
	}
}

// TestMiscounted shows which numbers are found, and which rows say too little.
func TestMiscounted(t *testing.T) {
	row := func(number, how, proof, state string) string {
		return "| S0." + number + ": what | " + how + " | " + proof + " | " + state + " |\n"
	}
	const counts = "| S0: [a](#a) | 1 | 0 | 0 | 0 | 0 | 1 | 2 |\n| all | 1 | 0 | 0 | 0 | 0 | 1 | 2 |\n"
	first, second := row("01", "by a", "`a.TestA` (`check`)", "proven"), row("02", "Missing: b", "none", "not yet")
	for text, want := range map[string]int{
		counts + first + second: 0,
		counts + first:          2, // both counts
		counts + second + first: 2, // both are out of order
		counts + first + row("02", "by b", "none", "soon"):              3,
		counts + first + second + "| S0.03: what | by c | proven |\n":   1,
		counts + first + row("02", "Missing: b", "none", "left to you"): 3,
		counts + first + row("02", "by b", "none", "not yet"):           1,
		counts + row("01", "by a", "none", "proven") + second:           1,
	} {
		if got := append(miscounted(text), unsaid(items(text))...); len(got) != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}
