package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

// readmeWords is how long README may be: five minutes.
const readmeWords = 1100

// words of a page are those with a letter or a digit.
func words(text string) (n int) {
	for _, w := range strings.Fields(text) {
		if regexp.MustCompile(`[\pL\d]`).MatchString(w) {
			n++
		}
	}
	return n
}

func TestReadmeIsShort(t *testing.T) {
	text, err := readFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := words(text); n > readmeWords {
		t.Errorf("README.md has %d words, more than %d", n, readmeWords)
	}
	if n := words("| a | b-c · 1,2 |\n|---|"); n != 3 {
		t.Errorf("%d words", n)
	}
}

// TestReadmeNamesWhatIsRun: continuous integration runs a command of README.
func TestReadmeNamesWhatIsRun(t *testing.T) {
	run := found(t, ".ci/run", `(?m)^exec (.+)$`)
	text, err := readFile("README.md")
	if err != nil || len(run) != 1 {
		t.Fatalf("%q, %v", run, err)
	}
	if !strings.Contains(text, "\n    "+run[0]+" ") {
		t.Errorf("README.md does not name %s, which continuous integration runs", run[0])
	}
}

var (
	shownFinding = regexp.MustCompile(`^(?:BLOCKED|LEFT OUT|warning|unknown) +(RP\d{4}) (.+)$`)
	shownFix     = regexp.MustCompile(`^fix: (.+)$`)
)

// misquoted are the lines of the output of check in a file that no check prints: claims and fixes of others.
func misquoted(f textFile, claims, fixes map[string]string) (wrong []string) {
	code := ""
	for _, line := range blocks(f) {
		line = strings.TrimSpace(line)
		if is := shownFinding.FindStringSubmatch(line); is != nil {
			if code = is[1]; claims[code] != is[2] {
				wrong = append(wrong, line)
			}
		}
		if is := shownFix.FindStringSubmatch(line); is != nil && fixes[code] != is[1] {
			wrong = append(wrong, line)
		}
	}
	return wrong
}

// TestFindingsAreQuoted: pages show findings as check prints them.
func TestFindingsAreQuoted(t *testing.T) {
	claims, fixes := map[string]string{}, map[string]string{}
	for _, checks := range everyCheck() {
		for _, c := range checks {
			claims[c.Code], fixes[c.Code] = c.Claim, c.Fix
		}
	}
	problems(t, func(f textFile) []string { return misquoted(f, claims, fixes) })
	claims, fixes = map[string]string{"RP0001": "it is so"}, map[string]string{"RP0001": "make it so"}
	for text, want := range map[string]int{
		"    BLOCKED RP0001 it is so\n        node a is not\n        fix: make it so\n": 0,
		"    warning RP0001 it was so\n        fix: make it so\n":                       1,
		"    unknown RP0001 it is so\n        fix: leave it\n":                          1,
	} {
		if got := misquoted(textFile{"x.md", text}, claims, fixes); len(got) != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// TestExitCodesAreTold: the table of troubleshooting has each exit code once, and no other.
func TestExitCodesAreTold(t *testing.T) {
	want := found(t, "internal/engine/fault/fault.go", `(?m)^\tExit\w+ = (\d+)$`)
	text, err := readFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(text, "\n## Exit codes\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var told []string
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(table, -1) {
		told = append(told, row[1])
	}
	if strings.Join(told, " ") != strings.Join(want, " ") || len(want) < 8 {
		t.Errorf("docs/troubleshooting.md has the exit codes %q, and there are %q", told, want)
	}
}

var (
	// appliesMigration is a line that gives a Migration to an operator.
	appliesMigration = regexp.MustCompile(`kubectl apply -f [a-z]+\.yaml\b|replumb\.dev/set=\S+ \| kubectl apply`)
	applied          = regexp.MustCompile(`\bdesired: Applied\b`)
)

// TestAppliedMigrationsMove: a page that has kubectl apply a Migration says what it takes to have more than a plan of it.
func TestAppliedMigrationsMove(t *testing.T) {
	seen := 0
	problems(t, func(f textFile) (wrong []string) {
		for _, code := range snippets(f) {
			if code = appliesMigration.FindString(code); code != "" && f.name != "docs/benchmarks.md" {
				if seen++; !applied.MatchString(f.text) {
					wrong = append(wrong, "nowhere says desired: Applied, and has: "+code)
				}
			}
		}
		return wrong
	})
	if seen < 3 {
		t.Errorf("only %d were found", seen)
	}
}
