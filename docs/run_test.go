package docs_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/hack/manual/page"
	"github.com/replumb/replumb/internal/cli"
)

// blocks are the lines of a page's blocks of code, each with what a backslash joins to it.
func blocks(f textFile) []string {
	var code []string
	for _, l := range page.Lines(f.text) {
		if l.Code {
			code = append(code, l.Text)
		}
	}
	return strings.Split(joined(strings.Join(code, "\n")), "\n")
}

// ofShell are the calls of replumb in a line of shell, as words, without the program's name and what may be left out.
func ofShell(line string) [][]string {
	var all [][]string
	for _, words := range shellCalls(line, "replumb") {
		if words = words[1:]; len(words) > 0 && regexp.MustCompile(`^[a-z-]+$`).MatchString(words[0]) {
			all = append(all, slices.DeleteFunc(words, func(w string) bool { return strings.HasPrefix(w, "[") }))
		}
	}
	return all
}

// parsed reads a call as replumb does, up to where it would run.
func parsed(words []string) error {
	root := cli.NewCommand("replumb", strings.NewReader(""), io.Discard, io.Discard)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if help, _ := cmd.Flags().GetBool("help"); help {
		return nil
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return err
	}
	if err := cmd.ValidateRequiredFlags(); err != nil {
		return err
	}
	return cmd.ValidateFlagGroups()
}

// TestCallsParse: what pages show in blocks of code is taken by replumb, with its arguments and the values of its flags. The reference is
// generated, and shows how calls are made up.
func TestCallsParse(t *testing.T) {
	seen := 0
	for _, f := range readers(t) {
		if !f.markdown() || f.name == "docs/reference.md" {
			continue
		}
		for _, line := range blocks(f) {
			for _, words := range ofShell(line) {
				seen++
				if err := parsed(words); err != nil {
					t.Errorf("%s: %s: %v", f.name, strings.TrimSpace(line), err)
				}
			}
		}
	}
	if seen < 80 {
		t.Errorf("only %d calls were found", seen)
	}
}

// TestParsed shows what is refused.
func TestParsed(t *testing.T) {
	for line, ok := range map[string]bool{
		"$ bin/replumb check -f move.yaml      # every finding":       true,
		"kubectl replumb status NAME --watch | cat":                   true,
		"replumb report NAME [flags]":                                 true,
		"replumb status NAME > out.txt":                               true,
		"replumb rbac -f move.yaml --user 'a b' | kubectl apply -f -": true,
		"replumb apply -f a.yaml b c":                                 false,
		"replumb finish NAME --leave-clients=maybe":                   false,
		"replumb apply -f a.yaml --timeout soon":                      false,
		"replumb rollback":                                            false,
		"replumb explode NAME":                                        false,
	} {
		calls := ofShell(line)
		if len(calls) != 1 {
			t.Errorf("%s: %q", line, calls)
			continue
		}
		if err := parsed(calls[0]); (err == nil) != ok {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// scripts are the tests that run commands of replumb: each folder of internal/cli/testdata has a test of internal/cli.
const scripts = "../internal/cli/testdata/*/*.txtar"

// pairs are a command, and each of its flags with it.
func pairs(words []string) []string {
	all := words[:1]
	for _, w := range words[1:] {
		if w == "--" {
			break
		}
		if flag, _, _ := strings.Cut(w, "="); regexp.MustCompile(`^(--[a-z]|-[a-zA-Z]$)`).MatchString(flag) {
			all = append(all, words[0]+" "+flag)
		}
	}
	return all
}

// scriptTest is the test of internal/cli that runs a folder of scripts: cluster-long is TestClusterLong's.
func scriptTest(folder string) string {
	if folder == "cni" {
		return "TestNetworks"
	}
	name := "Test"
	for part := range strings.SplitSeq(folder, "-") {
		name += strings.ToUpper(part[:1]) + part[1:]
	}
	return name
}

// ran are the pairs that scripts run, by the names of their tests.
func ran(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(scripts)
	if err != nil || len(files) < 30 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	all := map[string][]string{}
	call := regexp.MustCompile(`(?m)^[!?]? ?exec (?:sh -c ')?replumb (.*)$`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := scriptTest(filepath.Base(filepath.Dir(file)))
		for _, found := range call.FindAllStringSubmatch(string(text), -1) {
			for _, words := range ofShell("replumb " + found[1]) {
				all[name] = append(all[name], pairs(words)...)
			}
		}
	}
	return all
}

// commandPages are those that show what to type.
func commandPages(t *testing.T) []textFile {
	t.Helper()
	return slices.DeleteFunc(readers(t), func(f textFile) bool {
		dir := filepath.Dir(f.name)
		return f.name != "README.md" && (!f.markdown() || dir != "docs/howto" && dir != "docs/runbooks" && dir != "docs/platforms")
	})
}

// TestCallsAreRun: a test runs every command of replumb that README, runbooks, how-tos and platforms show, with each of its flags. If a page
// says which tests of internal/cli do, it is one of those.
func TestCallsAreRun(t *testing.T) {
	byTest := ran(t)
	for _, f := range commandPages(t) {
		var have, whole []string
		_, said, _ := strings.Cut(f.text, howRun)
		said, _, _ = strings.Cut(said, "\n\n")
		for name, all := range byTest {
			whole = append(whole, all...)
			if strings.Contains(said, "`"+name+"`") {
				have = append(have, all...)
			}
		}
		if have == nil {
			have = whole
		}
		for _, line := range blocks(f) {
			for _, words := range ofShell(line) {
				for _, pair := range pairs(words) {
					if !slices.Contains(have, pair) {
						t.Errorf("%s: no script of the tests that it names runs replumb %s: %s", f.name, pair, strings.TrimSpace(line))
					}
				}
			}
		}
	}
}

const howRun = "**How its commands were run:** "

// notRun is how a page says that nothing of it was.
var notRun = regexp.MustCompile(`No test runs replumb on|replumb was never run on`)

// saysHow reports whether the last paragraph of a page says how its commands were run: by which test or target, or that they were not. A page
// of a platform on which nothing was run says so at its top instead.
func saysHow(text string) bool {
	top, _, _ := strings.Cut(text, "\n## ")
	last := text[strings.LastIndex(strings.TrimSpace(text), "\n\n")+1:]
	said, ok := strings.CutPrefix(strings.TrimSpace(last), howRun)
	if !ok {
		return notRun.MatchString(top) && !strings.Contains(text, howRun)
	}
	return regexp.MustCompile("`(Test[A-Z]|make )|not run").MatchString(said)
}

// TestPagesSayHowCommandsWereRun: at their foot, where who is paged need not read it first. README has no place for it: TestCallsAreRun and
// TestReadmeNamesWhatIsRun hold its commands.
func TestPagesSayHowCommandsWereRun(t *testing.T) {
	for _, f := range commandPages(t) {
		if f.name != "README.md" && !saysHow(f.text) {
			t.Errorf("%s does not say at its foot: %s", f.name, howRun)
		}
	}
	for text, want := range map[string]bool{
		"# A\n\n## B\n\ntext\n\n" + howRun + "`TestA`\nruns it.\n": true,
		"# A\n\n" + howRun + "not run.\n":                          true,
		"# A\n\nNo test runs replumb on B.\n\n## C\n":              true,
		"# A\n\n" + howRun + "`TestA`.\n\n## B\n\ntext\n":          false,
		"# A\n\n" + howRun + "somehow.\n":                          false,
		"# A\n\n## B\n\ntext\n":                                    false,
	} {
		if saysHow(text) != want {
			t.Errorf("%q: want %t", text, want)
		}
	}
}

var (
	testName = regexp.MustCompile("`(?:test/\\S+ )?(Test[A-Z][A-Za-z]*)([/…]?[^`]*)`")
	target   = regexp.MustCompile(`(?:^|[ ;$(])make ([a-z][a-z0-9-]*)`)
	// named of a target are programs of tests and benchmarks.
	runName = regexp.MustCompile(`(e2e|bench) RUN="?([a-z -]+)`)
)

// made is what pages may name: tests, targets of make, and for each of those that take one, the names that RUN has.
type made struct {
	tests, targets []string
	runs           map[string][]string
}

// missing are tests, targets and names of RUN that a page names and that do not exist.
func (m made) missing(f textFile) []string {
	var wrong []string
	for _, found := range testName.FindAllStringSubmatch(f.text, -1) {
		is := func(name string) bool {
			return name == found[1] || strings.HasPrefix(found[2], "…") && strings.HasPrefix(name, found[1])
		}
		if !slices.ContainsFunc(m.tests, is) {
			wrong = append(wrong, fmt.Sprintf("there is no test %s", found[1]))
		}
	}
	for _, code := range snippets(f) {
		for _, found := range target.FindAllStringSubmatch(strings.Split(code, "#")[0], -1) {
			if !slices.Contains(m.targets, found[1]) {
				wrong = append(wrong, fmt.Sprintf("make has no target %s: %s", found[1], code))
			}
		}
		for _, found := range runName.FindAllStringSubmatch(code, -1) {
			for _, name := range strings.Fields(found[2]) {
				if !slices.Contains(m.runs[found[1]], name) {
					wrong = append(wrong, fmt.Sprintf("%s has no %s: %s", found[1], name, code))
				}
			}
		}
	}
	return wrong
}

// found are the first groups of all that a pattern finds in a file of the repository.
func found(t *testing.T, file, pattern string) []string {
	t.Helper()
	text, err := readFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return all
}

// packetTests are the names of hack/e2e.sh, with the patterns of tests that it runs of test/e2e.
const packetTests = "hack/e2e.sh"

// TestTestsAndTargetsExist: what pages name as a test, or have run by make, is there.
func TestTestsAndTargetsExist(t *testing.T) {
	m := made{targets: found(t, "Makefile", `(?m)^([a-z][a-z0-9-]*):`), runs: map[string][]string{
		"e2e":   append(found(t, packetTests, `(?m)^([a-z-]+) +[a-z0-9,.-]+(?: +\./.*)?$`), "all"),
		"bench": append(found(t, "test/bench/main.go", `"([a-z]+)": of`), "rehearse"),
	}}
	for _, f := range textFiles(t, func(name string) bool { return strings.HasSuffix(name, "_test.go") }) {
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(f.text, -1) {
			m.tests = append(m.tests, found[1])
		}
	}
	if len(m.tests) < 500 || len(m.targets) < 20 || len(m.runs["e2e"]) < 30 || len(m.runs["bench"]) < 7 {
		t.Fatalf("only %d tests, %d targets and %v", len(m.tests), len(m.targets), m.runs)
	}
	problems(t, func(f textFile) []string {
		if !f.markdown() {
			return nil
		}
		return m.missing(f)
	})
	m = made{[]string{"TestTwo"}, []string{"check"}, map[string][]string{"e2e": {"lab"}}}
	for text, want := range map[string]int{
		"`TestTwo/Sub` by `make check`": 0, "`TestT…` and `sudo make check ARGS=1`": 0, "`TestThree`": 1, "`make nothing`": 1,
		"    make check nothing": 0, "`e2e RUN=lab`": 0, "`e2e RUN=\"lab nothing\"`": 1, "`bench RUN=lab`": 1,
	} {
		if got := m.missing(textFile{"x.md", text}); len(got) != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// TestPacketTestsAreRun: each test of test/e2e is run by a name of hack/e2e.sh, and CONTRIBUTING.md says what the names are.
func TestPacketTestsAreRun(t *testing.T) {
	patterns := found(t, packetTests, `(?m)\./e2e .*-run (\S+)$`)
	for _, f := range textFiles(t, func(name string) bool { return strings.HasPrefix(name, "test/e2e/") }) {
		for _, test := range regexp.MustCompile(`(?m)^func (Test\w+)\(t `).FindAllStringSubmatch(f.text, -1) {
			if !slices.ContainsFunc(patterns, func(p string) bool { return regexp.MustCompile(p).MatchString(test[1]) }) {
				t.Errorf("%s runs no %s", packetTests, test[1])
			}
		}
	}
	names := found(t, packetTests, `(?m)^([a-z-]+) +[a-z0-9,.-]+(?: +\./.*)?$`)
	if told := found(t, "CONTRIBUTING.md", "(?m)^\\| `([a-z0-9-]+)` \\|"); !slices.Equal(told, names) {
		t.Errorf("CONTRIBUTING.md has %q, and %s %q", told, packetTests, names)
	}
}
